// Command server shows the folders of the example's sites over HTTP, on this machine only, so that a rollout can be
// checked the way one checks a real site. It must not do anything else.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	root := flag.String("root", ".data/sites", "the folder with one folder for each site")
	port := flag.Uint("port", 8480, "the port on 127.0.0.1; 0 takes a free one")
	flag.Parse()
	if err := serve(*root, *port); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// serve answers GET /SITE/current/FILE until the process ends.
func serve(root string, port uint) error {
	if _, err := os.Stat(root); err != nil {
		return fmt.Errorf("no sites to show: %w; seed.sh makes them", err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	fmt.Printf("showing %s on http://%s\n", root, listener.Addr())
	// The limit keeps a client that never finishes its request from holding a connection.
	server := &http.Server{Handler: http.FileServer(http.Dir(root)), ReadHeaderTimeout: 5 * time.Second}
	return server.Serve(listener)
}
