package embed

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// loopback is the only host that is served: there is no authentication, so another one would hand the fleet to
// whoever can reach it.
const loopback = "127.0.0.1"

// ErrPortInUse: another process listens on the address.
var ErrPortInUse = errors.New("port in use")

// ports are the addresses of one server, held open until its services bind them.
type ports struct {
	frontend string
	ui       string // "" without a UI
	// internal ports are spoken between the services of this process only.
	history, matching, worker int

	held []net.Listener
}

// reservePorts checks that the two public addresses are on the loopback and free, picks the internal ones, and holds
// them all, so that nothing has been started when one is taken and no number is handed out twice.
func reservePorts(frontend, ui string) (_ *ports, err error) {
	p := &ports{}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	if p.frontend, err = p.hold("Temporal", frontend); err != nil {
		return nil, err
	}
	if ui != "" {
		if p.ui, err = p.hold("the Temporal UI", ui); err != nil {
			return nil, err
		}
	}
	for _, port := range []*int{&p.history, &p.matching, &p.worker} {
		if *port, err = p.holdFree(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// hold listens on addr and returns it with its port filled in. what names the listener in errors.
func (p *ports) hold(what, addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q for %s: %w; want %s:PORT", addr, what, err, loopback)
	}
	if host != "" && host != loopback {
		return "", fmt.Errorf("address %q for %s: only %s is allowed, because nobody is asked to log in; want %s:%s",
			addr, what, loopback, loopback, port)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("address %q for %s: port %q is not a number between 0 and 65535", addr, what, port)
	}
	if number == 0 {
		free, err := p.holdFree()
		if err != nil {
			return "", err
		}
		return hostPort(free), nil
	}
	l, err := net.Listen("tcp", hostPort(int(number)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return "", fmt.Errorf("%w: another process listens on port %d of %s, which %s would take; stop it, or choose another port (0 takes any free one)",
			ErrPortInUse, number, loopback, what)
	}
	if err != nil {
		return "", fmt.Errorf("listen on %s for %s: %w", hostPort(int(number)), what, err)
	}
	p.held = append(p.held, l)
	return hostPort(int(number)), nil
}

// holdFree holds a port that the system picks.
//
// One connection is made to it and closed from the server's side. That leaves the port in TIME_WAIT, so that Linux
// does not give the same number to somebody else in the moment between release and the service's own listen, which may
// bind it nevertheless (SO_REUSEADDR).
func (p *ports) holdFree() (int, error) {
	l, err := net.Listen("tcp", hostPort(0))
	if err != nil {
		return 0, fmt.Errorf("find a free port on %s: %w", loopback, err)
	}
	p.held = append(p.held, l)
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("find a free port on %s: %w", loopback, err)
	}
	defer func() { _ = client.Close() }()
	accepted, err := l.Accept()
	if err != nil {
		return 0, fmt.Errorf("find a free port on %s: %w", loopback, err)
	}
	_ = accepted.Close() // it only held the port
	return l.Addr().(*net.TCPAddr).Port, nil
}

// release lets the services bind the ports. Idempotent.
func (p *ports) release() {
	for _, l := range p.held {
		_ = l.Close() // likewise
	}
	p.held = nil
}

// portOf returns the port of an address that hostPort made.
func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n
}
