package load

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

const (
	slowBytesPerSecond = 1_000_000
	slowPause          = 10 * time.Millisecond
	aloneFor           = 3 * time.Second
	earlyFor           = time.Second
)

type besideSlow struct {
	Alone      latencies `json:"alone"`
	Early      latencies `json:"early"`
	Rest       latencies `json:"rest"`
	EarlyRatio float64   `json:"early_p99_ratio"`
	RestRatio  float64   `json:"rest_p99_ratio"`
	ReadBytes  int64     `json:"read_bytes"`
	ReadPerS   float64   `json:"read_mb_per_s"`
	GrownKB    int       `json:"slow_grown_kb"`
}

// runSlow measures request/response alone, then beside a download that is read at 1 MB/s and
// compared byte by byte: its first second, and the measured time after that.
func runSlow(opts options) (any, error) {
	watcher, err := watch(opts.dialer.target)
	if err != nil {
		return nil, err
	}
	peers, err := openPeers(opts)
	if err != nil {
		return nil, err
	}
	alone, err := requestResponse(lasting(opts, aloneFor, opts.warmup), peers)
	if err != nil {
		return nil, fmt.Errorf("alone: %w", err)
	}
	before, err := rssKB(opts.pids)
	if err != nil {
		return nil, err
	}
	conns, err := opts.dialer.openAll(1, []byte{modeSource})
	if err != nil {
		return nil, err
	}
	reader := readSlowly(conns[0])
	began := time.Now()
	early, err := requestResponse(lasting(opts, earlyFor, 100*time.Millisecond), peers)
	if err != nil {
		return nil, fmt.Errorf("beside a slow reader, at first: %w", err)
	}
	rest, err := requestResponse(lasting(opts, opts.seconds, 0), peers)
	if err != nil {
		return nil, fmt.Errorf("beside a slow reader: %w", err)
	}
	took := time.Since(began).Seconds()
	after, err := rssKB(opts.pids)
	if err != nil {
		return nil, err
	}
	read, err := reader.end()
	if err != nil {
		return nil, fmt.Errorf("the slow reader, after %d bytes: %w", read, err)
	}
	closeAll(conns)
	for _, p := range peers {
		p.close()
	}
	return besideSlow{Alone: alone, Early: early, Rest: rest, EarlyRatio: early.P99 / alone.P99,
		RestRatio: rest.P99 / alone.P99, ReadBytes: read, ReadPerS: float64(read) / 1e6 / took,
		GrownKB: after - before}, watcher.waitClosed()
}

func lasting(opts options, length, warmup time.Duration) options {
	opts.seconds, opts.warmup = length, warmup
	return opts
}

type slowReader struct {
	stop int32
	read int64
	done chan error
}

// readSlowly reads at 1 MB/s; the target's bytes repeat, so that each is known by its position.
func readSlowly(conn net.Conn) *slowReader {
	r := &slowReader{done: make(chan error, 1)}
	go func() { r.done <- r.run(conn) }()
	return r
}

func (r *slowReader) run(conn net.Conn) error {
	buffer := make([]byte, slowBytesPerSecond/int(time.Second/slowPause))
	for next := time.Now(); atomic.LoadInt32(&r.stop) == 0; next = next.Add(slowPause) {
		time.Sleep(time.Until(next))
		if err := conn.SetReadDeadline(time.Now().Add(slack)); err != nil {
			return err
		}
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		for i, b := range buffer[:n] {
			if b != byte((r.read+int64(i))*7) {
				return fmt.Errorf("byte %d is wrong", r.read+int64(i))
			}
		}
		r.read += int64(n)
	}
	return nil
}

func (r *slowReader) end() (int64, error) {
	atomic.StoreInt32(&r.stop, 1)
	err := <-r.done
	return r.read, err
}
