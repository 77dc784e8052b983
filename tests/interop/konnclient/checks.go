package main

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// runDial dials once and reports how it went; a failed dial is a result, not a failure.
func runDial(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	begun := time.Now()
	conn, err := opts.way.dial(context.Background(), opts.target)
	found := result{"dial_error": "", "reason": "", "seconds": time.Since(begun).Seconds()}
	if err != nil {
		found["dial_error"] = err.Error()
		if typed, reason := client.GetDialFailureReason(err); typed {
			found["reason"] = string(reason)
		}
		return found, opts.way.finish()
	}
	if err := closed(conn); err != nil {
		return found, err
	}
	return found, opts.way.finish()
}

// closed closes, and is strict about it: the server has to answer CLOSE_REQ with CLOSE_RSP. Where
// the target closed first the client chooses by chance between that answer and the end of its
// tunnel, which it then reports as an error.
func closed(conn net.Conn) error {
	if err := conn.Close(); err != nil && err.Error() != "tunnel closed" {
		return fmt.Errorf("closing: %w", err)
	}
	return nil
}

// runCancel cancels n dials after up to --seconds each, some before and some after their
// answer; then one plain echo must work.
func runCancel(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	var won, lost, other int64
	err := each(opts.n, opts.concurrency, func(i int) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		timer := time.AfterFunc(time.Duration(rand.Float64()*opts.seconds*1e9), cancel)
		defer timer.Stop()
		conn, err := opts.way.dial(ctx, opts.target)
		if err == nil {
			atomic.AddInt64(&won, 1)
			return closed(conn)
		}
		if ctx.Err() != nil {
			atomic.AddInt64(&lost, 1)
			return nil
		}
		atomic.AddInt64(&other, 1)
		return fmt.Errorf("not cancelled, but failed: %w", err)
	})
	found := result{"dialed": won, "cancelled": lost, "failed": other}
	if err != nil {
		return found, err
	}
	return found, opts.way.finish()
}

// runIdle holds n connections without a byte for a while, then asks each.
func runIdle(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	conns := make([]net.Conn, opts.n)
	err := each(opts.n, 16, func(i int) (err error) {
		conns[i], err = opts.way.dial(context.Background(), opts.target)
		return err
	})
	if err != nil {
		return nil, err
	}
	say(result{"held": opts.n})
	time.Sleep(time.Duration(opts.seconds * 1e9))
	err = each(opts.n, 16, func(i int) error {
		if err := roundTrip(conns[i], i, 100); err != nil {
			return err
		}
		return closed(conns[i])
	})
	if err != nil {
		return nil, err
	}
	return result{"answered": opts.n}, opts.way.finish()
}

// runStall asks for --bytes on n connections and reads none of them for --seconds.
func runStall(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	for i := 0; i < opts.n; i++ {
		if _, err := askFor(opts); err != nil {
			return nil, err
		}
	}
	say(result{"stalled": opts.n})
	time.Sleep(time.Duration(opts.seconds * 1e9))
	return nil, nil
}

// runHalfData sends and closes at once: the target has to get every byte.
func runHalfData(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	err := each(opts.n, opts.concurrency, func(i int) error {
		conn, err := opts.way.dial(context.Background(), opts.target)
		if err != nil {
			return err
		}
		if err := sendPattern(conn, opts.bytes, opts.chunk); err != nil {
			return err
		}
		return closed(conn)
	})
	if err != nil {
		return nil, err
	}
	return result{"sent": opts.n * opts.bytes}, opts.way.finish()
}

// each calls do for 0..n-1, at most so many at a time, and returns the first error.
func each(n, concurrency int, do func(i int) error) error {
	var workers sync.WaitGroup
	var next int64 = -1
	failed := make(chan error, concurrency)
	for worker := 0; worker < concurrency; worker++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				i := int(atomic.AddInt64(&next, 1))
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failed <- fmt.Errorf("%d of %d: %w", i+1, n, err)
					return
				}
			}
		}()
	}
	workers.Wait()
	close(failed)
	return <-failed
}
