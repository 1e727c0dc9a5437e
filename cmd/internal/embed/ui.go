package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/labstack/echo/v4"
	uiserver "github.com/temporalio/ui-server/v2/server"
	"github.com/temporalio/ui-server/v2/server/api"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/server_options"
)

// startUI starts the web UI and waits until it answers.
//
// The UI ends the process when it cannot listen, which is why its port has been held until just now.
func (s *Server) startUI(ctx context.Context) error {
	ui := uiserver.NewServer(
		server_options.WithConfigProvider(&uiconfig.Config{
			TemporalGRPCAddress: s.hostPort,
			Host:                loopback,
			Port:                portOf(s.uiAddr),
			EnableUI:            true,
			DefaultNamespace:    s.options.Namespace,
			// The page must not call home either.
			DisableNewsFetch: true,
			HideLogs:         true,
			// A terminated rollout leaves its targets where they are, with children that nobody tells to stop; a reset one
			// forgets what it asked for; a paused one hears no stop; a workflow started like a target's changes it beside
			// every rule; an activity that is run again may ask for a change twice. Cancelling stays, because it aborts, and
			// nothing here takes updates. Whoever must can still do all of it with Temporal's own CLI.
			WorkflowTerminateDisabled: true,
			WorkflowResetDisabled:     true,
			WorkflowPauseDisabled:     true,
			WorkflowUpdateDisabled:    true,
			StartWorkflowDisabled:     true,
			ActivityCommandsDisabled:  true,
			BatchActionsDisabled:      true, // they offer a reset, whatever the others say
			// A Secure cookie would not be kept for http://127.0.0.1 by every browser.
			CORS: uiconfig.CORS{CookieInsecure: true},
		}),
		server_options.WithAPIMiddleware([]api.Middleware{requireLocalHost}),
	)
	s.ui = ui
	go func() {
		if err := ui.Start(); err != nil {
			s.options.Logger.Error("the Temporal UI ended", "address", s.uiAddr, "error", err)
		}
	}()

	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := uiAnswers(ctx, s.UIURL())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the Temporal UI at %s does not answer: %w", s.uiAddr, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// uiAnswers returns nil when the UI at url is up.
func uiAnswers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// requireLocalHost refuses API calls that came in under another name than the loopback's.
//
// Without it any web page that the operator has open could point its own name at 127.0.0.1 and then call this API as
// if it were the UI, cookies and all (DNS rebinding).
func requireLocalHost(echo.Context) runtime.ServeMuxOption {
	return runtime.WithMiddlewares(func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = r.Host
			}
			if host != loopback && host != "localhost" {
				http.Error(w, "open the UI as "+loopback, http.StatusForbidden)
				return
			}
			next(w, r, params)
		}
	})
}
