package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// step is one line of a script. Exactly one of its verbs is set.
type step struct {
	Stream string `json:"stream"`

	Open      string            `json:"open"`       // start the stream, on this method
	Metadata  map[string]string `json:"metadata"`   // with Open
	Send      json.RawMessage   `json:"send"`       // a Packet as protobuf's JSON
	SendBytes []byte            `json:"send_bytes"` // a message as it is
	Await     string            `json:"await"`      // until a packet of this type came
	HalfClose bool              `json:"half_close"`
	Cancel    bool              `json:"cancel"` // RST_STREAM
	End       bool              `json:"end"`    // wait for the status
	Drop      bool              `json:"drop"`   // cut the connection under all streams

	// Send's own: fill DATA with this many bytes; put in the connect id that a DIAL_RSP gave.
	Fill      int    `json:"fill"`
	ConnectOf string `json:"connect_of"`
}

// rawStream is one stream of a script, and what has come on it.
type rawStream struct {
	grpc.ClientStream
	name   string
	cancel context.CancelFunc

	mu        sync.Mutex
	changed   *sync.Cond
	packets   []*pb.Packet // those that no step has awaited yet
	connectID int64
	ended     bool
}

// asItIs passes messages that are bytes already, so that a script can send bad ones.
type asItIs struct{}

func (asItIs) Name() string { return "proto" }
func (asItIs) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (asItIs) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// runRaw obeys a script on stdin, a step for each line, and prints everything that comes.
func runRaw(opts *options) (result, error) {
	var mu sync.Mutex
	var sockets []net.Conn
	dropped := false
	conn, err := opts.way.connection(grpc.WithDefaultCallOptions(grpc.ForceCodec(asItIs{}), grpc.MaxCallSendMsgSize(64<<20)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			network := "tcp"
			if opts.way.uds != "" {
				network, address = "unix", opts.way.uds
			}
			socket, err := (&net.Dialer{}).DialContext(ctx, network, address)
			mu.Lock()
			defer mu.Unlock()
			if dropped { // grpc would try again, unseen, what it thinks was never read
				return nil, errors.New("dropped")
			}
			sockets = append(sockets, socket)
			return socket, err
		}))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	streams := map[string]*rawStream{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for number := 1; lines.Scan(); number++ {
		var s step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		switch {
		case s.Open != "":
			streams[s.Stream], err = openRaw(conn, s)
		case s.Drop:
			mu.Lock()
			dropped = true
			for _, socket := range sockets {
				socket.Close()
			}
			mu.Unlock()
		case streams[s.Stream] == nil:
			err = fmt.Errorf("no stream %q", s.Stream)
		default:
			err = streams[s.Stream].do(s, streams)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil, lines.Err()
}

func openRaw(conn *grpc.ClientConn, s step) (*rawStream, error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(context.Background(), metadata.New(s.Metadata)))
	stream, err := conn.NewStream(ctx, &bothWays, s.Open)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &rawStream{ClientStream: stream, name: s.Stream, cancel: cancel}
	r.changed = sync.NewCond(&r.mu)
	go r.listen()
	return r, nil
}

// listen prints what comes until the stream ends, then its status.
func (r *rawStream) listen() {
	for {
		var message []byte
		err := r.RecvMsg(&message)
		if err != nil {
			headers, _ := r.Header()
			s, _ := status.FromError(err)
			if errors.Is(err, io.EOF) {
				s = status.New(0, "")
			}
			say(result{"stream": r.name, "code": s.Code().String(), "message": s.Message(),
				"headers": headers, "trailers": r.Trailer()})
			r.mu.Lock()
			r.ended = true
			r.mu.Unlock()
			r.changed.Broadcast()
			return
		}
		packet := &pb.Packet{}
		if err := proto.Unmarshal(message, packet); err != nil {
			say(result{"stream": r.name, "garbage": message})
			continue
		}
		said, _ := protojson.Marshal(packet)
		say(result{"stream": r.name, "packet": json.RawMessage(said), "type": packet.Type.String()})
		r.mu.Lock()
		r.packets = append(r.packets, packet)
		if packet.Type == pb.PacketType_DIAL_RSP {
			r.connectID = packet.GetDialResponse().ConnectID
		}
		r.mu.Unlock()
		r.changed.Broadcast()
	}
}

func (r *rawStream) do(s step, streams map[string]*rawStream) error {
	switch {
	case s.Await != "":
		return r.await(s.Await)
	case s.HalfClose:
		return r.CloseSend()
	case s.Cancel:
		r.cancel()
		return nil
	case s.End:
		r.mu.Lock()
		defer r.mu.Unlock()
		for !r.ended {
			r.changed.Wait()
		}
		return nil
	case s.Send != nil:
		message, err := r.build(s, streams)
		if err != nil {
			return err
		}
		return r.send(message)
	default:
		return r.send(s.SendBytes)
	}
}

// send takes the end of the stream for no error: the status says why.
func (r *rawStream) send(message []byte) error {
	if err := r.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (r *rawStream) build(s step, streams map[string]*rawStream) ([]byte, error) {
	packet := &pb.Packet{}
	if err := protojson.Unmarshal(s.Send, packet); err != nil {
		return nil, err
	}
	var connectID int64
	if other := streams[s.ConnectOf]; other != nil {
		other.mu.Lock()
		connectID = other.connectID
		other.mu.Unlock()
	}
	switch payload := packet.Payload.(type) {
	case *pb.Packet_Data:
		payload.Data.ConnectID += connectID
		if s.Fill > 0 {
			payload.Data.Data = make([]byte, s.Fill)
		}
	case *pb.Packet_CloseRequest:
		payload.CloseRequest.ConnectID += connectID
	}
	return proto.Marshal(packet)
}

// await takes the next packet of a type; those of other types before it are dropped.
func (r *rawStream) await(kind string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for len(r.packets) > 0 {
			packet := r.packets[0]
			r.packets = r.packets[1:]
			if packet.Type.String() == kind {
				return nil
			}
		}
		if r.ended {
			return fmt.Errorf("stream %q ended before %s came", r.name, kind)
		}
		r.changed.Wait()
	}
}
