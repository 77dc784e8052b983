package main

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// server stands in for konnectivity's: agents on TLS here, clients on a UNIX socket in proxy.go.
type server struct {
	pb.UnimplementedProxyServiceServer
	id    string
	count int

	mu      sync.Mutex
	agents  []*backend // in the order they came: the first of an id is the one used
	pending map[int64]*frontend
	open    map[connection]*frontend
}

// connection names an established connection: connect ids are an agent's own.
type connection struct {
	agent string
	id    int64
}

// backend is one agent's stream.
type backend struct {
	stream   grpc.ServerStream
	id       string
	sending  sync.Mutex
	draining bool
}

func (b *backend) send(packet *pb.Packet) error {
	b.sending.Lock()
	defer b.sending.Unlock()
	return b.stream.SendMsg(packet)
}

// runServer serves agents and clients until stdin ends, and prints events.
func runServer(opts *options) (result, error) {
	s := &server{id: opts.id, count: opts.serverCount,
		pending: map[int64]*frontend{}, open: map[connection]*frontend{}}
	forAgents, err := s.listenAgents(opts)
	if err != nil {
		return nil, err
	}
	forClients, err := net.Listen("unix", opts.way.uds)
	if err != nil {
		return nil, err
	}
	clients := grpc.NewServer()
	pb.RegisterProxyServiceServer(clients, s)
	go clients.Serve(forClients)
	say(result{"event": "serving", "agent_port": forAgents.Addr().(*net.TCPAddr).Port})
	waitStdin()
	clients.Stop()
	return result{"event": "stopped"}, nil
}

func (s *server) listenAgents(opts *options) (net.Listener, error) {
	pair, err := tls.LoadX509KeyPair(opts.way.cert, opts.way.key)
	if err != nil {
		return nil, err
	}
	pool, err := readPool(opts.way.ca)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", opts.listen)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	agents := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Hour}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 30 * time.Second, PermitWithoutStream: true}),
	)
	handler := func(_ any, stream grpc.ServerStream) error { return s.connect(stream) }
	agents.RegisterService(&grpc.ServiceDesc{
		ServiceName: "AgentService",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "Connect", Handler: handler, ServerStreams: true, ClientStreams: true}},
	}, struct{}{})
	go agents.Serve(listener)
	return listener, nil
}

// connect is an agent's stream from its first header to its end.
func (s *server) connect(stream grpc.ServerStream) error {
	given, _ := metadata.FromIncomingContext(stream.Context())
	ids := given.Get("agentID")
	if len(ids) != 1 {
		return status.Errorf(codes.InvalidArgument, "expected one agent ID in the context, got %v", ids)
	}
	headers := metadata.Pairs("serverID", s.id, "serverCount", strconv.Itoa(s.count))
	if err := stream.SendHeader(headers); err != nil {
		return err
	}
	b := &backend{stream: stream, id: ids[0]}
	s.mu.Lock()
	s.agents = append(s.agents, b)
	s.mu.Unlock()
	say(result{"event": "agent", "agentID": b.id, "agentIdentifiers": given.Get("agentIdentifiers"),
		"authorization": given.Get("Authorization"), "user_agent": given.Get("user-agent")})
	err := s.receive(b)
	s.lose(b)
	say(result{"event": "agent_gone", "agentID": b.id, "code": status.Code(err).String()})
	return nil
}

// receive takes everything from one agent in turn: a client that does not read stops the others.
func (s *server) receive(b *backend) error {
	for {
		packet := &pb.Packet{}
		if err := b.stream.RecvMsg(packet); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch packet.Type {
		case pb.PacketType_DIAL_RSP:
			s.answered(b, packet)
		case pb.PacketType_DATA:
			s.deliver(b, packet.GetData().ConnectID, packet)
		case pb.PacketType_CLOSE_RSP:
			s.deliver(b, packet.GetCloseResponse().ConnectID, packet)
		case pb.PacketType_DRAIN:
			s.mu.Lock()
			b.draining = true
			s.mu.Unlock()
			say(result{"event": "drain", "agentID": b.id})
		default:
			say(result{"event": "ignored", "type": packet.Type.String()})
		}
	}
}

// answered joins a pending dial and its answer; nobody waiting means that it was cancelled.
func (s *server) answered(b *backend, packet *pb.Packet) {
	answer := packet.GetDialResponse()
	s.mu.Lock()
	f := s.pending[answer.Random]
	delete(s.pending, answer.Random)
	if f != nil && answer.Error == "" {
		f.connectID = answer.ConnectID
		s.open[connection{b.id, answer.ConnectID}] = f
	}
	s.mu.Unlock()
	if f != nil {
		f.send(packet)
	} else if answer.Error == "" {
		b.send(closeReq(answer.ConnectID))
	}
}

func (s *server) deliver(b *backend, id int64, packet *pb.Packet) {
	s.mu.Lock()
	f := s.open[connection{b.id, id}]
	if packet.Type == pb.PacketType_CLOSE_RSP {
		delete(s.open, connection{b.id, id})
	}
	s.mu.Unlock()
	if f != nil {
		f.send(packet)
	} else if packet.Type == pb.PacketType_DATA {
		b.send(closeReq(id))
	}
}

// lose ends what an agent carried. Its pending dials are left to their clients' patience.
func (s *server) lose(b *backend) {
	s.mu.Lock()
	var orphans []*frontend
	for key, f := range s.open {
		if f.backend == b {
			delete(s.open, key)
			orphans = append(orphans, f)
		}
	}
	for i, other := range s.agents {
		if other == b {
			s.agents = append(s.agents[:i:i], s.agents[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	for _, f := range orphans {
		f.send(closeRsp(f.connectID, "backend connection closed"))
	}
}
