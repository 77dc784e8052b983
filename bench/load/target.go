package load

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// The first byte of a connection selects its mode.
const (
	modeEcho     = 'E' // every byte comes back
	modeOne      = '1' // this byte comes back, then nothing until the end
	modeSource   = 'D' // bytes as fast as they are accepted
	modeSink     = 'U' // 8 bytes of run id, then bytes to be counted for that run
	modeExchange = 'H' // repeatedly: 4 bytes of up length, 4 of down length, up bytes; down bytes come back
	modeStats    = 'Q' // 8 bytes of run id, then for every byte a stats record
)

const blockBytes = 256 << 10

// target serves all modes and counts what crosses it.
type target struct {
	sinks  sync.Map // run id -> *int64
	source int64
	active int64
	block  []byte
	spare  sync.Pool
}

// runTarget serves until stdin ends.
func runTarget(opts options) (any, error) {
	listener, err := net.Listen("tcp", opts.listen)
	if err != nil {
		return nil, err
	}
	t := &target{block: make([]byte, blockBytes)}
	t.spare.New = func() any { b := make([]byte, blockBytes); return &b }
	for i := range t.block {
		t.block[i] = byte(i * 7)
	}
	address := listener.Addr().String()
	l, err := newLoop(t, listener)
	if err != nil {
		return nil, err
	}
	go func() {
		fmt.Fprintln(os.Stderr, "load target:", l.run())
		os.Exit(1)
	}()
	say(map[string]string{"address": address})
	waitStdin()
	return map[string]bool{"stopped": true}, nil
}

// waitStdin returns when the parent process is gone or wants this one to end.
func waitStdin() { io.Copy(io.Discard, os.Stdin) }

// serve takes over a connection whose first byte was mode.
func (t *target) serve(conn net.Conn, mode byte) {
	defer conn.Close()
	word := make([]byte, 8)
	if mode == modeStats {
		t.stats(conn, word)
		return
	}
	defer atomic.AddInt64(&t.active, -1)
	switch mode {
	case modeSource:
		// A write is counted when it is done: a small one first, so that something is counted
		// even for a reader that never reads.
		for size := 4096; ; size = blockBytes {
			n, err := conn.Write(t.block[:size])
			atomic.AddInt64(&t.source, int64(n))
			if err != nil {
				return
			}
		}
	case modeSink:
		if _, err := io.ReadFull(conn, word); err == nil {
			t.sink(conn, t.counter(word))
		}
	case modeExchange:
		t.exchange(conn, word)
	}
}

func (t *target) counter(id []byte) *int64 {
	found, _ := t.sinks.LoadOrStore(binary.BigEndian.Uint64(id), new(int64))
	return found.(*int64)
}

func (t *target) sink(conn net.Conn, count *int64) {
	buffer := make([]byte, blockBytes)
	for {
		n, err := conn.Read(buffer)
		atomic.AddInt64(count, int64(n))
		if err != nil {
			return
		}
	}
}

// exchange keeps no buffer while idle: ten thousand of these wait in one process.
func (t *target) exchange(conn net.Conn, head []byte) {
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		up, down := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
		buffer := t.spare.Get().(*[]byte)
		err := readN(conn, *buffer, int(up))
		t.spare.Put(buffer)
		if err == nil {
			err = writeN(conn, t.block, int(down))
		}
		if err != nil {
			return
		}
	}
}

func readN(conn net.Conn, buffer []byte, n int) error {
	for n > 0 {
		part := buffer
		if n < len(part) {
			part = part[:n]
		}
		m, err := conn.Read(part)
		n -= m
		if err != nil {
			return err
		}
	}
	return nil
}

func writeN(conn net.Conn, block []byte, n int) error {
	for n > 0 {
		part := block
		if n < len(part) {
			part = part[:n]
		}
		m, err := conn.Write(part)
		n -= m
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *target) stats(conn net.Conn, id []byte) {
	if _, err := io.ReadFull(conn, id); err != nil {
		return
	}
	sunk := t.counter(id)
	record := make([]byte, 24)
	for {
		if _, err := io.ReadFull(conn, record[:1]); err != nil {
			return
		}
		binary.BigEndian.PutUint64(record[0:], uint64(atomic.LoadInt64(sunk)))
		binary.BigEndian.PutUint64(record[8:], uint64(atomic.LoadInt64(&t.source)))
		binary.BigEndian.PutUint64(record[16:], uint64(atomic.LoadInt64(&t.active)))
		if _, err := conn.Write(record); err != nil {
			return
		}
	}
}

// watcher asks the target, on a direct connection, what reached it.
type watcher struct {
	conn   net.Conn
	id     []byte
	record [24]byte
}

func watch(address string) (*watcher, error) {
	conn, err := net.DialTimeout("tcp", address, openTimeout)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 8)
	binary.BigEndian.PutUint64(id, uint64(time.Now().UnixNano()))
	_, err = conn.Write(append([]byte{modeStats}, id...))
	return &watcher{conn: conn, id: id}, err
}

func (w *watcher) ask() (sunk, sourced, active int64, err error) {
	if _, err = w.conn.Write([]byte{'?'}); err != nil {
		return
	}
	if _, err = io.ReadFull(w.conn, w.record[:]); err != nil {
		return
	}
	field := func(at int) int64 { return int64(binary.BigEndian.Uint64(w.record[at:])) }
	return field(0), field(8), field(16), nil
}

// waitClosed checks that every connection of this run has ended at the target as well,
// so that nothing of it leaks into the next measurement.
func (w *watcher) waitClosed() error {
	var active int64
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var err error
		if _, _, active, err = w.ask(); err != nil || active == 0 {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
	return fmt.Errorf("%d connections are still open at the target 10 s after the client closed them", active)
}
