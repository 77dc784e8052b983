package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const method = "/ProxyService/Proxy"

var description = &grpc.StreamDesc{StreamName: "Proxy", ServerStreams: true, ClientStreams: true}

// checks are done with one call to the target.
var checks = map[string]func(*options, *call) (result, error){
	"echo": runEcho, "reply": runReply, "dial": runDial, "read": runRead, "cancel": runCancel,
	"big": runBig,
}

type call struct {
	grpc.ClientStream
	cancel context.CancelFunc
}

func (c *call) send(data []byte) error { return c.SendMsg(&payload{data: data}) }

func (c *call) receive() ([]byte, error) {
	message := &payload{}
	err := c.RecvMsg(message)
	return message.data, err
}

// readAll reads to the end of the call, which has to be OK.
func (c *call) readAll() ([]byte, error) {
	var all []byte
	for {
		data, err := c.receive()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, data...)
	}
}

func runCheck(opts *options, check func(*options, *call) (result, error)) (result, error) {
	conn, err := connect(opts)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), opts.timeout)
	defer cancel()
	value := opts.metadata
	if value == "" {
		if value, err = connectOptions(opts.target, opts.encoding); err != nil {
			return nil, err
		}
	}
	ctx = metadata.AppendToOutgoingContext(ctx, metadataKey, value)
	stream, err := conn.NewStream(ctx, description, method)
	if err != nil {
		return nil, err
	}
	return check(opts, &call{stream, cancel})
}

func connect(opts *options) (*grpc.ClientConn, error) {
	all := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}))}
	address := opts.address
	if opts.uds != "" {
		address = "localhost"
		all = append(all, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", opts.uds)
			}))
	} else {
		config, err := opts.tls()
		if err != nil {
			return nil, err
		}
		all = append(all, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	}
	return grpc.NewClient("passthrough:///"+address, all...)
}

func pattern(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	return data
}

// runEcho sends and receives at once, half-closes, and wants everything back.
func runEcho(opts *options, c *call) (result, error) {
	header, err := c.Header() // comes when the target is reached
	if err != nil {
		return nil, err
	}
	want := pattern(opts.size)
	failed := make(chan error, 1)
	go func() {
		for at := 0; at < len(want); at += 30000 {
			if err := c.send(want[at:min(at+30000, len(want))]); err != nil {
				failed <- err
				return
			}
		}
		failed <- c.CloseSend()
	}()
	got, err := c.readAll()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%d other bytes came back", len(got))
	}
	return result{"bytes": len(got), "header": header}, <-failed
}

// runReply asks, half-closes, and reads the answer of a target that waits for the half-close.
func runReply(opts *options, c *call) (result, error) {
	if err := c.send([]byte("question")); err != nil {
		return nil, err
	}
	if err := c.CloseSend(); err != nil {
		return nil, err
	}
	got, err := c.readAll()
	return result{"answer": string(got)}, err
}

// runDial only wants to know the status.
func runDial(_ *options, c *call) (result, error) {
	_, err := c.receive()
	found := status.Convert(err)
	return result{"code": found.Code().String(), "message": found.Message()}, nil
}

// runRead reads what a target says that ends first, without half-closing.
func runRead(_ *options, c *call) (result, error) {
	got, err := c.readAll()
	found := status.Convert(err)
	return result{"bytes": len(got), "code": found.Code().String(), "message": found.Message()}, nil
}

// runCancel proves that the target is there, and cancels the call.
func runCancel(_ *options, c *call) (result, error) {
	if err := c.send([]byte("x")); err != nil {
		return nil, err
	}
	if _, err := c.receive(); err != nil {
		return nil, err
	}
	c.cancel()
	_, err := c.receive()
	return result{"code": status.Code(err).String()}, nil
}

// runBig sends everything in one message.
func runBig(opts *options, c *call) (result, error) {
	want := pattern(opts.size)
	failed := make(chan error, 1)
	go func() {
		err := c.send(want)
		if err == nil {
			err = c.CloseSend()
		}
		failed <- err
	}()
	got, err := c.readAll()
	if err != nil {
		found := status.Convert(err)
		return result{"code": found.Code().String(), "message": found.Message()}, nil
	}
	if !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%d other bytes came back", len(got))
	}
	return result{"code": "OK", "bytes": len(got)}, <-failed
}
