package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// readBytes and dialTimeout are those of konnectivity's agent.
const (
	readBytes   = 4 << 10
	dialTimeout = 5 * time.Second
)

// agent is one stream to one server, and the connections that the server asked for.
type agent struct {
	stream  grpc.ClientStream
	sending sync.Mutex
	queue   int
	lastID  int64

	mu    sync.Mutex
	conns map[int64]*endpoint
}

// endpoint is a connection to a target. Its queue is written by one goroutine; when it is
// full, the agent stops receiving: that is how konnectivity's agent pushes back.
type endpoint struct {
	id    int64
	conn  net.Conn
	queue chan []byte
	once  sync.Once
	gone  chan struct{}
}

// runAgent connects once, serves dials until the stream or stdin ends, and prints events.
// SIGUSR1 drains.
func runAgent(opts *options) (result, error) {
	conn, err := opts.way.connection(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Hour, PermitWithoutStream: true}))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { waitStdin(); cancel() }()
	if ctx, err = opts.agentContext(ctx); err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, &bothWays, connectMethod)
	if err != nil {
		return nil, err
	}
	a := &agent{stream: stream, queue: opts.xfr, conns: map[int64]*endpoint{}}
	headers, err := stream.Header()
	if err != nil {
		return nil, err
	}
	say(result{"event": "connected", "serverID": headers.Get("serverID"), "serverCount": headers.Get("serverCount")})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for range signals {
			err := a.send(drain())
			say(result{"event": "draining", "sent": err == nil})
		}
	}()
	err = a.receive()
	a.closeAll()
	if ctx.Err() != nil {
		err = nil
	}
	s, _ := status.FromError(err)
	return result{"event": "ended", "code": s.Code().String(), "message": s.Message()}, nil
}

func (opts *options) agentContext(ctx context.Context) (context.Context, error) {
	pairs := []string{}
	if opts.id != "" {
		pairs = append(pairs, "agentID", opts.id)
	}
	if opts.identifiers != "" {
		pairs = append(pairs, "agentIdentifiers", opts.identifiers)
	}
	if opts.tokenFile != "" {
		token, err := os.ReadFile(opts.tokenFile)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, "Authorization", "Bearer "+string(token))
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...), nil
}

func (a *agent) send(packet *pb.Packet) error {
	a.sending.Lock()
	defer a.sending.Unlock()
	return a.stream.SendMsg(packet)
}

func (a *agent) find(id int64) *endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conns[id]
}

// receive is the agent's only reader: what blocks here blocks every connection.
func (a *agent) receive() error {
	for {
		packet := &pb.Packet{}
		if err := a.stream.RecvMsg(packet); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch packet.Type {
		case pb.PacketType_DIAL_REQ:
			go a.dial(packet.GetDialRequest())
		case pb.PacketType_DATA:
			asked := packet.GetData()
			if e := a.find(asked.ConnectID); e == nil {
				a.send(closeRsp(asked.ConnectID, "unrecognized connectID"))
			} else {
				select {
				case e.queue <- asked.Data:
				case <-e.gone:
				}
			}
		case pb.PacketType_CLOSE_REQ:
			asked := packet.GetCloseRequest()
			if e := a.find(asked.ConnectID); e == nil {
				a.send(closeRsp(asked.ConnectID, "Unknown connectID"))
			} else {
				close(e.queue) // written to its end, then closed
				a.forget(e)
			}
		default: // DIAL_CLS and DRAIN mean nothing to an agent
			say(result{"event": "ignored", "type": packet.Type.String()})
		}
	}
}

func (a *agent) dial(asked *pb.DialRequest) {
	conn, err := net.DialTimeout(asked.Protocol, asked.Address, dialTimeout)
	if err != nil {
		say(result{"event": "dial_failed", "address": asked.Address, "error": err.Error()})
		a.send(dialRsp(asked.Random, 0, err.Error()))
		return
	}
	e := &endpoint{id: atomic.AddInt64(&a.lastID, 1), conn: conn, queue: make(chan []byte, a.queue), gone: make(chan struct{})}
	a.mu.Lock()
	a.conns[e.id] = e
	a.mu.Unlock()
	say(result{"event": "dialed", "address": asked.Address, "connectID": e.id})
	if err := a.send(dialRsp(asked.Random, e.id, "")); err != nil {
		a.end(e, "")
		return
	}
	go a.fromTarget(e)
	go a.toTarget(e)
}

func (a *agent) fromTarget(e *endpoint) {
	buffer := make([]byte, readBytes)
	for {
		n, err := e.conn.Read(buffer)
		if n > 0 {
			if a.send(data(e.id, append([]byte(nil), buffer[:n]...))) != nil {
				return
			}
		}
		if err != nil {
			problem := ""
			if !errors.Is(err, io.EOF) {
				problem = err.Error()
			}
			a.end(e, problem)
			return
		}
	}
}

func (a *agent) toTarget(e *endpoint) {
	for {
		select {
		case bytes, open := <-e.queue:
			if !open {
				a.end(e, "")
				return
			}
			if _, err := e.conn.Write(bytes); err != nil {
				a.end(e, err.Error())
				return
			}
		case <-e.gone:
			return
		}
	}
}

// end closes the connection and says so with one CLOSE_RSP, whoever comes first.
func (a *agent) end(e *endpoint, problem string) {
	e.once.Do(func() {
		close(e.gone)
		a.forget(e)
		e.conn.Close()
		a.send(closeRsp(e.id, problem))
		say(result{"event": "closed", "connectID": e.id})
	})
}

func (a *agent) forget(e *endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, e.id)
}

func (a *agent) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.conns {
		e.conn.Close()
	}
	fmt.Fprintln(os.Stderr, "agent: stream ended with", len(a.conns), "connections")
}
