package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Options say what to simulate and where.
type Options struct {
	// Scenario is the path of the scenario file; required.
	Scenario string
	// Log is the path of the effect log; required. One that is there already is taken up.
	Log string
	// Listen is the address to listen on; empty means 127.0.0.1:0, a free port. The protocol has no authentication:
	// give no address that strangers reach.
	Listen string
	// Beside, when not nil, may put other services about the fleet beside its protocol, on the same address.
	Beside func(f *Fleet, protocol http.Handler) http.Handler
}

// Run simulates until ctx is done. When it listens it prints one line of JSON, {"url": "http://127.0.0.1:…"}.
func Run(ctx context.Context, o Options, stdout io.Writer) error {
	if o.Scenario == "" || o.Log == "" {
		return errors.New("fleet: both a scenario and an effect log are required")
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	s, err := Load(o.Scenario)
	if err != nil {
		return err
	}
	f, err := New(s, o.Log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("fleet: listen: %w", err), f.Close())
	}
	err = json.NewEncoder(stdout).Encode(map[string]string{"url": "http://" + listener.Addr().String()})
	if err != nil {
		return errors.Join(fmt.Errorf("fleet: print the address: %w", err), listener.Close(), f.Close())
	}
	handler := f.Handler()
	if o.Beside != nil {
		handler = o.Beside(f, handler)
	}
	return errors.Join(serve(ctx, listener, handler), f.Close())
}

// Serve answers on the listener until ctx is done, then closes it and every connection. It does not close the fleet.
func (f *Fleet) Serve(ctx context.Context, listener net.Listener) error {
	return serve(ctx, listener, f.Handler())
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler,
		// The slowest honest client sends a header of a few lines; the rest is a stuck connection.
		ReadHeaderTimeout: 10 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("fleet: serve: %w", err)
	}
	return nil
}
