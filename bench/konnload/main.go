// Command konnload is the load program with two more paths, both by konnectivity-client over
// a UNIX socket: grpc has a tunnel for each connection, as kube-apiserver does; grpc-reuse
// has one tunnel for all.
package main

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"isthmus.test/bench/load"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

func main() {
	load.Main(map[string]load.Open{"grpc": openSingle, "grpc-reuse": openReused}, nil)
}

func options(uds string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", uds)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
}

func openSingle(uds, target string) (net.Conn, error) {
	ctx := context.Background()
	opts := append(options(uds), grpc.WithBlock(), grpc.WithReturnConnectionError())
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, ctx, uds, opts...)
	if err != nil {
		return nil, err
	}
	return patiently(tunnel.DialContext(ctx, "tcp", target))
}

var shared struct {
	sync.Once
	tunnel client.ReusableTunnel
	err    error
}

func openReused(uds, target string) (net.Conn, error) {
	shared.Do(func() {
		shared.tunnel, shared.err = client.CreateGRPCTunnel(context.Background(), uds, options(uds)...)
	})
	if shared.err != nil {
		return nil, shared.err
	}
	return patiently(shared.tunnel.DialContext(context.Background(), "tcp", target))
}

// manyBytes is the size of a bulk connection, whose reader may leave some data unread.
const manyBytes = 64 << 10

// patient is a connection of konnectivity-client that can be used like another.
type patient struct {
	net.Conn
	mu   sync.Mutex
	read int
}

func patiently(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &patient{Conn: conn}, nil
}

// SetDeadline does nothing: the client has no deadlines, and the driver has its own.
func (p *patient) SetDeadline(time.Time) error { return nil }

func (p *patient) Read(buffer []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.Conn.Read(buffer)
	p.read += n
	return n, err
}

// Close reads on while it closes: the client takes the answer to its CLOSE_REQ only after all
// data before it, and would wait ten seconds for a reader.
func (p *patient) Close() error {
	p.mu.Lock()
	bulk := p.read > manyBytes
	p.mu.Unlock()
	if bulk {
		go func() {
			buffer := make([]byte, manyBytes)
			for {
				if _, err := p.Read(buffer); err != nil {
					return
				}
			}
		}()
	}
	return p.Conn.Close()
}
