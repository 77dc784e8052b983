package load

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// openTimeout bounds one dial, CONNECT answer included.
const openTimeout = 10 * time.Second

// dialer opens connections to the target: directly, through a proxy with a fixed target,
// by CONNECT over a UNIX socket, or by a function that Main was given.
type dialer struct {
	via, target, uds string
	request          []byte
	other            Open
}

func (d *dialer) prepare() {
	// The Host header is what kube-apiserver sends.
	d.request = []byte("CONNECT " + d.target + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

// open returns a connection whose next byte goes to the target.
func (d *dialer) open() (net.Conn, error) {
	if d.other != nil {
		return d.other(d.uds, d.target)
	}
	switch d.via {
	case "tcp":
		return net.DialTimeout("tcp", d.target, openTimeout)
	case "unix":
		return net.DialTimeout("unix", d.uds, openTimeout)
	case "connect":
		conn, err := net.DialTimeout("unix", d.uds, openTimeout)
		if err != nil {
			return nil, err
		}
		if err := d.connect(conn); err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}
	return nil, fmt.Errorf("no way named %q", d.via)
}

var heads = sync.Pool{New: func() any { b := make([]byte, 4096); return &b }}

func (d *dialer) connect(conn net.Conn) error {
	head := heads.Get().(*[]byte)
	defer heads.Put(head)
	if err := conn.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(d.request); err != nil {
		return err
	}
	for n := 0; ; {
		m, err := conn.Read((*head)[n:])
		n += m
		got := (*head)[:n]
		if done, bad := accepted(got); bad != nil {
			return bad
		} else if done {
			return conn.SetDeadline(time.Time{})
		}
		if err != nil {
			return fmt.Errorf("no answer to CONNECT: %w (got %q)", err, got)
		}
		if n == len(*head) {
			return fmt.Errorf("answer to CONNECT has no end: %q", got)
		}
	}
}

// openAll opens n connections in turn, then sends the first bytes on each: a source whose data
// is not read yet could keep a slow path from opening the next one.
func (d *dialer) openAll(n int, first []byte) ([]net.Conn, error) {
	conns := make([]net.Conn, n)
	for i := range conns {
		conn, err := d.open()
		if err != nil {
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, n, err)
		}
		conns[i] = conn
	}
	for i, conn := range conns {
		if _, err := conn.Write(first); err != nil {
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, n, err)
		}
	}
	return conns, nil
}

// runStub serves CONNECT on --uds until stdin ends: what a proxy without TLS, link or
// decisions would do. It tests the client and shows the cost of the harness itself.
func runStub(opts options) (any, error) {
	listener, err := net.Listen("unix", opts.dialer.uds)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go stub(conn.(*net.UnixConn))
		}
	}()
	say(map[string]string{"uds": opts.dialer.uds})
	waitStdin()
	return map[string]bool{"stopped": true}, listener.Close()
}

func stub(client *net.UnixConn) {
	defer client.Close()
	head := make([]byte, 4096)
	n := 0
	for !bytes.Contains(head[:n], []byte("\r\n\r\n")) {
		m, err := client.Read(head[n:])
		if err != nil || n+m == len(head) {
			return
		}
		n += m
	}
	words := bytes.Fields(head[:n])
	if len(words) < 3 || string(words[0]) != "CONNECT" {
		io.WriteString(client, "HTTP/1.1 405 Method Not Allowed\r\n\r\n")
		return
	}
	conn, err := net.DialTimeout("tcp", string(words[1]), openTimeout)
	if err != nil {
		io.WriteString(client, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer conn.Close()
	io.WriteString(client, "HTTP/1.1 200 Connection Established\r\n\r\n")
	done := make(chan struct{})
	go func() {
		io.Copy(client, conn)
		client.CloseWrite()
		close(done)
	}()
	_, err = io.Copy(conn, client)
	if err != nil {
		return
	}
	conn.(*net.TCPConn).CloseWrite()
	<-done
}
