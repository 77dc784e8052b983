// Command kep1281 is the two Go peers of KEP-1281's protocol: a client that checks a server, and a
// server that a client can be checked with. Both are plain programs of google.golang.org/grpc.
//
// A check prints one JSON line and exits with 0 or 1. The server prints one line for everything
// that happens and lives until its stdin ends.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"
)

type options struct {
	uds, address        string
	ca, cert, key, name string
	target, encoding    string
	metadata            string
	size                int
	timeout             time.Duration
	lazy                bool
	maxStreams          int
}

type result map[string]any

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kep1281 server|CHECK [flags]")
		os.Exit(2)
	}
	opts := &options{}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&opts.uds, "uds", "", "the server's UNIX socket")
	flags.StringVar(&opts.address, "address", "", "the server's address, with TLS")
	flags.StringVar(&opts.ca, "ca", "", "the CA of the other side")
	flags.StringVar(&opts.cert, "cert", "", "own certificate")
	flags.StringVar(&opts.key, "key", "", "own key")
	flags.StringVar(&opts.name, "server-name", "localhost", "the name in the server's certificate")
	flags.StringVar(&opts.target, "target", "", "host:port to be connected to")
	flags.StringVar(&opts.encoding, "encoding", "std", "std, url, rawstd or rawurl")
	flags.StringVar(&opts.metadata, "metadata", "", "the metadata as they are, not made from --target")
	flags.IntVar(&opts.size, "bytes", 1<<20, "how much is moved")
	flags.DurationVar(&opts.timeout, "timeout", 30*time.Second, "for all of it")
	flags.BoolVar(&opts.lazy, "lazy", false, "server: no headers before the first data")
	flags.IntVar(&opts.maxStreams, "max-streams", 0, "server: calls in one connection")
	_ = flags.Parse(os.Args[2:])

	var found result
	var err error
	if os.Args[1] == "server" {
		err = serve(opts)
	} else if check := checks[os.Args[1]]; check != nil {
		found, err = runCheck(opts, check)
	} else {
		err = fmt.Errorf("no check %q", os.Args[1])
	}
	if found == nil {
		found = result{}
	}
	found["ok"] = err == nil
	if err != nil {
		found["error"] = err.Error()
	}
	say(found)
	if err != nil {
		os.Exit(1)
	}
}

var saying sync.Mutex

func say(what result) {
	saying.Lock()
	defer saying.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(what)
}

func (o *options) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + o.ca)
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{pair}, ServerName: o.name, MinVersion: tls.VersionTLS12,
	}, nil
}
