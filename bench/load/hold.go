package load

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// openers is how many tunnels are opened, filled or checked at a time.
const openers = 16

// runHold opens tunnels, tests each with one exchange, reports that, and obeys stdin.
func runHold(opts options) (any, error) {
	conns := make([]net.Conn, opts.conns)
	buffers := make([][]byte, openers)
	for i := range buffers {
		buffers[i] = make([]byte, blockBytes)
	}
	err := each(opts.conns, func(worker, i int) error {
		conn, err := opts.dialer.open()
		if err != nil {
			return err
		}
		conns[i] = conn
		if _, err := conn.Write([]byte{modeExchange}); err != nil {
			return err
		}
		return swap(conn, buffers[worker], 8)
	})
	if err != nil {
		return nil, err
	}
	say(map[string]int{"held": len(conns)})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		size := 8
		if lines.Text() == "quit" {
			break
		}
		if _, err := fmt.Sscanf(lines.Text(), "pass %d", &size); err != nil && lines.Text() != "check" {
			return nil, fmt.Errorf("no command %q", lines.Text())
		}
		if err := each(opts.conns, func(worker, i int) error { return swap(conns[i], buffers[worker], size) }); err != nil {
			return nil, err
		}
		say(map[string]int{"answered": len(conns), "bytes": size})
	}
	closeAll(conns)
	return map[string]bool{"closed": true}, nil
}

// each calls do for 0..n-1 from a few workers and returns the first error.
func each(n int, do func(worker, i int) error) error {
	var workers sync.WaitGroup
	failed := make(chan error, openers)
	next := make(chan int, n)
	for i := 0; i < n; i++ {
		next <- i
	}
	close(next)
	for worker := 0; worker < openers; worker++ {
		workers.Add(1)
		go func(worker int) {
			defer workers.Done()
			for i := range next {
				if err := do(worker, i); err != nil {
					failed <- fmt.Errorf("tunnel %d of %d: %w", i+1, n, err)
					return
				}
			}
		}(worker)
	}
	workers.Wait()
	close(failed)
	return <-failed
}

// swap sends size bytes to the target and takes as many back.
func swap(conn net.Conn, buffer []byte, size int) error {
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	var head [8]byte
	binary.BigEndian.PutUint32(head[:4], uint32(size))
	binary.BigEndian.PutUint32(head[4:], uint32(size))
	if _, err := conn.Write(head[:]); err != nil {
		return err
	}
	if err := writeN(conn, buffer, size); err != nil {
		return err
	}
	return readN(conn, buffer, size)
}

type stalled struct {
	Unloaded    latencies `json:"unloaded"`
	Stalled     latencies `json:"stalled"`
	P50Ratio    float64   `json:"p50_ratio"`
	P99Ratio    float64   `json:"p99_ratio"`
	SourceBytes int64     `json:"source_bytes"`
	GrownKB     int       `json:"grown_kb"`
}

// runStall measures request/response alone, then beside a reader that never reads.
func runStall(opts options) (any, error) {
	watcher, err := watch(opts.dialer.target)
	if err != nil {
		return nil, err
	}
	peers, err := openPeers(opts)
	if err != nil {
		return nil, err
	}
	unloaded, err := requestResponse(opts, peers)
	if err != nil {
		return nil, fmt.Errorf("unloaded: %w", err)
	}
	before, err := rssKB(opts.pids)
	if err != nil {
		return nil, err
	}
	_, start, _, err := watcher.ask()
	if err != nil {
		return nil, err
	}
	reader, err := opts.dialer.openAll(1, []byte{modeSource})
	if err != nil {
		return nil, err
	}
	taken, err := watcher.waitStuck(start)
	if err != nil {
		return nil, err
	}
	loaded, err := requestResponse(opts, peers)
	if err != nil {
		return nil, fmt.Errorf("beside a stalled reader: %w", err)
	}
	after, err := rssKB(opts.pids)
	if err != nil {
		return nil, err
	}
	closeAll(reader)
	for _, p := range peers {
		p.close()
	}
	return stalled{Unloaded: unloaded, Stalled: loaded, P50Ratio: loaded.P50 / unloaded.P50,
		P99Ratio: loaded.P99 / unloaded.P99, SourceBytes: taken, GrownKB: after - before}, watcher.waitClosed()
}

// waitStuck returns once the source has sent more than start and then nothing for 100 ms:
// the amount that a path buffers for a reader that does not read.
func (w *watcher) waitStuck(start int64) (int64, error) {
	last, since := start, time.Now()
	for deadline := time.Now().Add(slack); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		_, now, _, err := w.ask()
		if err != nil {
			return 0, err
		}
		if now != last {
			last, since = now, time.Now()
		} else if last > start && time.Since(since) > 100*time.Millisecond {
			return last - start, nil
		}
	}
	return 0, fmt.Errorf("the source was never stopped: %d bytes went in for a reader that does not read", last-start)
}
