package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

const (
	idle       = time.Hour
	creation   = 30 * time.Second
	everyLine  = 100 * time.Millisecond
	echoPort   = 7
	pathParts  = 3 // namespace, pod, container
	spoutChunk = 32 * 1024
)

// container is every container of this node.
type container struct{}

// ExecInContainer knows three programs: upper, exit N and spout BYTES.
func (container) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader,
	out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	switch {
	case len(cmd) == 1 && cmd[0] == "upper" && in != nil:
		return upper(out, in)
	case len(cmd) == 2 && cmd[0] == "exit":
		code, err := strconv.Atoi(cmd[1])
		if err != nil {
			return err
		}
		return utilexec.CodeExitError{Err: fmt.Errorf("exit %d", code), Code: code}
	case len(cmd) == 2 && cmd[0] == "spout":
		size, err := strconv.Atoi(cmd[1])
		if err != nil {
			return err
		}
		return spout(out, size)
	}
	return fmt.Errorf("no such program: %q", cmd)
}

// AttachContainer greets, and repeats what it is told in capitals.
func (container) AttachContainer(_ context.Context, _, _, _ string, in io.Reader,
	out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if _, err := io.WriteString(out, "attached\n"); err != nil {
		return err
	}
	if in == nil {
		return nil
	}
	return upper(out, in)
}

// PortForward has an echo server at one port; the others are those of this node's loopback.
func (container) PortForward(_ context.Context, _, _ string, port int32,
	stream io.ReadWriteCloser) error {
	defer stream.Close()
	if port == echoPort {
		_, err := io.Copy(stream, stream)
		return err
	}
	// As a runtime does it: the pod's own loopback, whoever may connect there from outside.
	found, err := net.Dial("tcp4", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace: %w", port, err)
	}
	defer found.Close()
	go func() {
		io.Copy(found, stream)
		found.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, found)
	return err
}

func upper(to io.Writer, from io.Reader) error {
	buffer := make([]byte, spoutChunk)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(bytes.ToUpper(buffer[:n])); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// spout writes the letters of the alphabet over and over.
func spout(to io.Writer, size int) error {
	chunk := bytes.Repeat([]byte("abcdefghijklmnopqrstuvwxyz"), spoutChunk/26)
	for size > 0 {
		n := min(size, len(chunk))
		if _, err := to.Write(chunk[:n]); err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// runtime serves streams as a container runtime does: SPDY, and the WebSocket of older clients.
func runtime() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/", func(w http.ResponseWriter, req *http.Request) {
		options, err := remotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, req, container{}, "", "", "", req.URL.Query()["command"],
			options, idle, creation, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/", func(w http.ResponseWriter, req *http.Request) {
		options, err := remotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, req, container{}, "", "", "", options, idle, creation,
			remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/", func(w http.ResponseWriter, req *http.Request) {
		options, err := portforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, req, container{}, "", "", options, idle, creation,
			portforward.SupportedProtocols)
	})
	return mux
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// newKubelet passes streams on to a runtime of its own on loopback, as a kubelet does, and
// translates the WebSockets that a runtime does not know.
func newKubelet() (http.Handler, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { log.Fatal(http.Serve(listener, runtime())) }()
	inner := func(req *http.Request) *url.URL {
		location := *req.URL
		location.Scheme, location.Host = "http", listener.Addr().String()
		return &location
	}
	command := func(w http.ResponseWriter, req *http.Request) {
		note(req)
		if !wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
			proxy.NewUpgradeAwareHandler(inner(req), nil, false, true, responder{}).ServeHTTP(w, req)
			return
		}
		given, err := remotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		options := translator.Options{
			Stdin: given.Stdin, Stdout: given.Stdout, Stderr: given.Stderr, Tty: given.TTY,
		}
		translator.NewStreamTranslatorHandler(inner(req), nil, 0, options).ServeHTTP(w, req)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/", command)
	mux.HandleFunc("/attach/", command)
	mux.HandleFunc("/portForward/", func(w http.ResponseWriter, req *http.Request) {
		note(req)
		var handler http.Handler = proxy.NewUpgradeAwareHandler(
			inner(req), nil, false, true, responder{})
		if wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
			handler = translator.NewTunnelingHandler(handler)
		}
		handler.ServeHTTP(w, req)
	})
	mux.HandleFunc("/containerLogs/", serveLogs)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, req *http.Request) {
		note(req)
		fmt.Fprint(w, "ok")
	})
	mux.HandleFunc("/pods", func(w http.ResponseWriter, req *http.Request) {
		note(req)
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`)
	})
	return mux, nil
}

func note(req *http.Request) {
	upgrade := strings.ToLower(req.Header.Get("Upgrade"))
	seen.note(map[string]any{"kubelet": req.URL.Path, "upgrade": upgrade})
}

// serveLogs writes three lines, or one every 100 ms for as long as it is followed.
func serveLogs(w http.ResponseWriter, req *http.Request) {
	note(req)
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/containerLogs/"), "/")
	if len(parts) != pathParts {
		http.NotFound(w, req)
		return
	}
	follow := req.URL.Query().Get("follow") == "true"
	ticks := time.NewTicker(everyLine)
	defer ticks.Stop()
	defer seen.note(map[string]any{"log ended": parts[1]})
	for line := 0; follow || line < 3; line++ {
		fmt.Fprintf(w, "line %d of %s\n", line, parts[1])
		w.(http.Flusher).Flush()
		if !follow {
			continue
		}
		select {
		case <-req.Context().Done():
			return
		case <-ticks.C:
		}
	}
}
