package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// counting says every connection that is accepted.
type counting struct{ net.Listener }

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		say(result{"event": "connection"})
	}
	return conn, err
}

type proxy struct{ lazy bool }

// serve is the server that the KEP describes: it connects to the target itself.
func serve(opts *options) error {
	all := []grpc.ServerOption{grpc.ForceServerCodec(codec{})}
	if opts.maxStreams > 0 {
		all = append(all, grpc.MaxConcurrentStreams(uint32(opts.maxStreams)))
	}
	network, address := "unix", opts.uds
	if opts.uds == "" {
		network, address = "tcp", opts.address
		config, err := opts.tls()
		if err != nil {
			return err
		}
		all = append(all, grpc.Creds(credentials.NewTLS(config)))
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	server := grpc.NewServer(all...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "ProxyService",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Proxy", Handler: handle, ServerStreams: true, ClientStreams: true,
		}},
	}, &proxy{lazy: opts.lazy})
	go commands(server)
	say(result{"event": "serving", "address": listener.Addr().String()})
	return server.Serve(counting{listener})
}

// commands reads stdin: "drain" ends gracefully, the end of it ends everything.
func commands(server *grpc.Server) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "drain" {
			go server.GracefulStop()
			say(result{"event": "draining"})
		}
	}
	server.Stop()
}

func handle(srv any, stream grpc.ServerStream) error {
	address, err := target(stream)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer conn.Close()
	if !srv.(*proxy).lazy {
		if err := stream.SendHeader(metadata.MD{}); err != nil {
			return err
		}
	}
	say(result{"event": "call", "target": address})
	go upload(stream, conn.(*net.TCPConn))
	buffer := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := stream.SendMsg(&payload{data: buffer[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Error(codes.Aborted, err.Error())
		}
	}
}

func target(stream grpc.ServerStream) (string, error) {
	values := metadata.ValueFromIncomingContext(stream.Context(), metadataKey)
	if len(values) != 1 {
		return "", errors.New("no " + metadataKey)
	}
	return readConnectOptions(values[0])
}

// upload passes on what the client sends, its half-close, and its going away as a reset.
func upload(stream grpc.ServerStream, conn *net.TCPConn) {
	for {
		message := &payload{}
		err := stream.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			_ = conn.CloseWrite()
			say(result{"event": "half-closed"})
			return
		}
		if err != nil {
			say(result{"event": "gone", "code": status.Code(err).String()})
			_ = conn.SetLinger(0)
			_ = conn.Close()
			return
		}
		if _, err := conn.Write(message.data); err != nil {
			return
		}
	}
}
