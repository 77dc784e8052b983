package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// connectTimeout is kube-apiserver's for reaching the proxy server.
const connectTimeout = 30 * time.Second

// way is how the proxy server is reached: its UNIX socket in the clear, or TCP with mutual TLS.
type way struct {
	uds, address             string
	ca, cert, key, nameInTLS string
	reusable                 bool
	shared                   client.ReusableTunnel
}

func (w *way) flags(flags *flag.FlagSet) {
	flags.StringVar(&w.uds, "uds", "", "the proxy server's UNIX socket")
	flags.StringVar(&w.address, "address", "", "the proxy server's address, with TLS")
	flags.StringVar(&w.ca, "ca", "", "the CA of the other side")
	flags.StringVar(&w.cert, "cert", "", "own certificate")
	flags.StringVar(&w.key, "key", "", "own key")
	flags.StringVar(&w.nameInTLS, "server-name", "", "the name to expect in the server's certificate")
	flags.BoolVar(&w.reusable, "reusable", false, "dial over one reusable tunnel, not a tunnel for each")
}

// options are those with which kube-apiserver dials, and the address that it names.
func (w *way) options() (string, []grpc.DialOption, error) {
	if w.uds != "" {
		dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.uds)
		})
		return w.uds, []grpc.DialOption{dialer, grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	config, err := w.tlsConfig()
	if err != nil {
		return "", nil, err
	}
	return w.address, []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}, nil
}

func (w *way) tlsConfig() (*tls.Config, error) {
	pool, err := readPool(w.ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, ServerName: w.nameInTLS}
	if w.cert != "" {
		pair, err := tls.LoadX509KeyPair(w.cert, w.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func readPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", path)
	}
	return pool, nil
}

// start makes the shared tunnel if there is to be one.
func (w *way) start() error {
	if !w.reusable {
		return nil
	}
	address, opts, err := w.options()
	if err != nil {
		return err
	}
	w.shared, err = client.CreateGRPCTunnel(context.Background(), address, opts...)
	return err
}

// finish ends the shared tunnel, and waits until every dial over it has ended.
func (w *way) finish() error {
	if w.shared == nil {
		return nil
	}
	return w.shared.Close()
}

// dial opens one connection to the target. ctx is that of the request: it bounds the dial only.
func (w *way) dial(ctx context.Context, target string) (net.Conn, error) {
	if w.shared != nil {
		return w.shared.DialContext(ctx, "tcp", target)
	}
	address, opts, err := w.options()
	if err != nil {
		return nil, err
	}
	// As kube-apiserver does: wait for the connection, and say why there is none.
	opts = append(opts, grpc.WithBlock(), grpc.WithReturnConnectionError())
	createCtx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(createCtx, context.Background(), address, opts...)
	if err != nil {
		return nil, fmt.Errorf("no tunnel: %w", err)
	}
	return tunnel.DialContext(ctx, "tcp", target)
}

// connection is for raw packets and for the agent: a ClientConn of its own.
func (w *way) connection(more ...grpc.DialOption) (*grpc.ClientConn, error) {
	if w.uds == "" && w.address == "" {
		return nil, errors.New("--uds or --address is needed")
	}
	address, opts, err := w.options()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+address, append(opts, more...)...)
}
