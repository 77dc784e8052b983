// Command etcdload is the load program with etcd's own client: puts, gets and watches, with TLS
// from the client to etcd by every path. A client has one connection and one request in
// progress, and dials like kube-apiserver's (grpc.WithContextDialer).
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"isthmus.test/bench/load"
)

// limit bounds every request: beyond it the run fails.
const limit = 20 * time.Second

// endpoint is a name, which TLS verifies; the dialer decides where it leads.
const endpoint = "https://localhost:2379"

var (
	ca, cert, key string
	size          int
)

func main() {
	load.Main(nil, map[string]load.Work{
		"put":   {Flags: flags, Start: startPuts},
		"get":   {Flags: flags, Start: startGets},
		"watch": {Flags: flags, Start: startWatch},
	})
}

func flags(set *flag.FlagSet) {
	set.StringVar(&ca, "ca", "", "etcd's certificate authority")
	set.StringVar(&cert, "cert", "", "the client's certificate")
	set.StringVar(&key, "key", "", "its key")
	set.IntVar(&size, "size", 1000, "bytes of a value")
}

type opener = func() (net.Conn, error)

func connect(open opener, count int) ([]*clientv3.Client, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	clients := make([]*clientv3.Client, count)
	for i := range clients {
		clients[i], err = clientv3.New(clientv3.Config{
			Endpoints:   []string{endpoint},
			DialTimeout: limit,
			TLS:         &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
			DialOptions: []grpc.DialOption{
				grpc.WithBlock(),
				grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return open() }),
			},
		})
		if err != nil {
			return nil, fmt.Errorf("client %d of %d: %w", i+1, count, err)
		}
	}
	return clients, nil
}

func value() string {
	return string(bytes.Repeat([]byte("v"), size))
}

func keyOf(i int) string { return fmt.Sprintf("/bench/%d", i) }

// put writes a key and returns the new revision.
func put(client *clientv3.Client, key, value string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer, err := client.Put(ctx, key, value)
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// end compacts old revisions, so that one run's writes do not affect the next.
func end(clients []*clientv3.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	revision, err := put(clients[0], keyOf(0), "done")
	if err == nil {
		_, err = clients[0].Compact(ctx, revision, clientv3.WithCompactPhysical())
	}
	for _, client := range clients {
		err = errors.Join(err, client.Close())
	}
	return err
}

func startPuts(open opener, count int) (load.Crew, error) {
	clients, err := connect(open, count)
	if err != nil {
		return load.Crew{}, err
	}
	text := value()
	crew := load.Crew{End: func() error { return end(clients) }}
	for i, client := range clients {
		crew.Workers = append(crew.Workers, func() error {
			_, err := put(client, keyOf(i), text)
			return err
		})
	}
	return crew, nil
}

func startGets(open opener, count int) (load.Crew, error) {
	clients, err := connect(open, count)
	if err != nil {
		return load.Crew{}, err
	}
	text := value()
	crew := load.Crew{End: func() error { return end(clients) }}
	for i, client := range clients {
		if _, err := put(client, keyOf(i), text); err != nil {
			return load.Crew{}, err
		}
		want := []byte(text)
		crew.Workers = append(crew.Workers, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			answer, err := client.Get(ctx, keyOf(i))
			if err != nil {
				return err
			}
			if len(answer.Kvs) != 1 || !bytes.Equal(answer.Kvs[0].Value, want) {
				return fmt.Errorf("get %s: another value than was put", keyOf(i))
			}
			return nil
		})
	}
	return crew, nil
}

// startWatch has one writer, and count clients that watch its key: a put is done when the last of
// them has seen it.
func startWatch(open opener, count int) (load.Crew, error) {
	clients, err := connect(open, count+1)
	if err != nil {
		return load.Crew{}, err
	}
	writer, text := clients[count], value()
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan error, count)
	var watching, watchers sync.WaitGroup
	for _, client := range clients[:count] {
		events := client.Watch(ctx, keyOf(0), clientv3.WithCreatedNotify())
		watching.Add(1)
		watchers.Add(1)
		go func() {
			defer watchers.Done()
			created := false
			for answer := range events {
				if !created {
					created = true
					watching.Done()
				}
				for _, event := range answer.Events {
					var err error
					if len(event.Kv.Value) != len(text) {
						err = errors.New("watch: another value than was put")
					}
					seen <- err
				}
			}
			if ctx.Err() == nil {
				seen <- errors.New("a watch ended")
			}
		}()
	}
	watching.Wait()
	once := func() error {
		if _, err := put(writer, keyOf(0), text); err != nil {
			return err
		}
		late := time.NewTimer(limit)
		defer late.Stop()
		for range count {
			select {
			case err := <-seen:
				if err != nil {
					return err
				}
			case <-late.C:
				return fmt.Errorf("not all of %d watchers saw a put within %s", count, limit)
			}
		}
		return nil
	}
	stop := func() error {
		cancel()
		watchers.Wait()
		return end(clients)
	}
	return load.Crew{Workers: []func() error{once}, End: stop}, nil
}
