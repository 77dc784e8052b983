package main

import (
	"errors"
	"io"
	"sync"

	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// frontend is one client's stream, which carries one connection at most.
type frontend struct {
	stream    pb.ProxyService_ProxyServer
	sending   sync.Mutex
	backend   *backend
	random    int64
	connectID int64
}

func (f *frontend) send(packet *pb.Packet) error {
	f.sending.Lock()
	defer f.sending.Unlock()
	return f.stream.Send(packet)
}

// pick takes the first agent that is not draining, or else the first.
func (s *server) pick() *backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.agents {
		if !b.draining {
			return b
		}
	}
	if len(s.agents) > 0 {
		return s.agents[0]
	}
	return nil
}

// Proxy serves one client's stream.
func (s *server) Proxy(stream pb.ProxyService_ProxyServer) error {
	f := &frontend{stream: stream}
	defer s.leave(f)
	for {
		packet, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.fromClient(f, packet)
	}
}

func (s *server) fromClient(f *frontend, packet *pb.Packet) {
	switch packet.Type {
	case pb.PacketType_DIAL_REQ:
		s.dial(f, packet)
	case pb.PacketType_DIAL_CLS:
		if f.backend != nil {
			f.backend.send(packet)
		}
	case pb.PacketType_CLOSE_REQ:
		if f.backend == nil {
			f.send(closeRsp(packet.GetCloseRequest().ConnectID, "backend is nil"))
		} else {
			f.backend.send(packet)
		}
	case pb.PacketType_DATA:
		id := packet.GetData().ConnectID
		s.mu.Lock()
		own := f.connectID
		s.mu.Unlock()
		switch {
		case f.backend == nil:
			f.send(closeRsp(id, "backend is nil"))
		case own != 0 && id != own:
			// Both are closed: neither can be trusted to be this client's.
			f.backend.send(closeReq(own))
			f.backend.send(closeReq(id))
		default:
			f.backend.send(packet)
		}
	}
}

func (s *server) dial(f *frontend, packet *pb.Packet) {
	asked := packet.GetDialRequest()
	b := s.pick()
	if b == nil {
		f.send(dialRsp(asked.Random, 0, "No agent available"))
		return
	}
	f.backend, f.random = b, asked.Random
	s.mu.Lock()
	s.pending[asked.Random] = f
	s.mu.Unlock()
	b.send(packet)
}

// leave takes back what a client that is gone had asked for.
func (s *server) leave(f *frontend) {
	if f.backend == nil {
		return
	}
	s.mu.Lock()
	_, waiting := s.pending[f.random]
	delete(s.pending, f.random)
	key := connection{f.backend.id, f.connectID}
	established := s.open[key] == f
	if established {
		delete(s.open, key)
	}
	s.mu.Unlock()
	if waiting {
		f.backend.send(dialCls(f.random))
	} else if established {
		f.backend.send(closeReq(f.connectID))
	}
}
