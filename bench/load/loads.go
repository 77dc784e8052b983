package load

import (
	"fmt"
	"net"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// slack is the time beyond the measured time after which a connection is an error.
const slack = 10 * time.Second

// Phases of a run. Workers only read it; the run's own goroutine advances it.
const (
	warming int32 = iota
	measuring
	stopping
)

// run is one measurement: workers, a phase, and the first error.
type run struct {
	opts    options
	phase   int32
	workers sync.WaitGroup
	failed  chan error
}

func newRun(opts options) *run { return &run{opts: opts, failed: make(chan error, 1)} }

func (r *run) at() int32 { return atomic.LoadInt32(&r.phase) }

// fail keeps the first error; errors after the end are the end.
func (r *run) fail(err error) {
	if r.at() == stopping {
		return
	}
	select {
	case r.failed <- err:
	default:
	}
}

func (r *run) spawn(work func()) {
	r.workers.Add(1)
	go func() { defer r.workers.Done(); work() }()
}

// wait sleeps through a phase, or returns a worker's error.
func (r *run) wait(length time.Duration) error {
	select {
	case err := <-r.failed:
		return err
	case <-time.After(length):
		return nil
	}
}

// measure warms up, then lets the workers record for the measured time.
func (r *run) measure() (elapsed, cpu float64, err error) {
	_, elapsed, cpu, err = r.measureBy(func() (int64, error) { return 0, nil })
	return
}

// measureBy is measure for what is counted outside the workers: the difference between
// two samples, taken at both ends of the measured time.
func (r *run) measureBy(sample func() (int64, error)) (count int64, elapsed, cpu float64, err error) {
	if err = r.wait(r.opts.warmup); err != nil {
		return
	}
	before, err := sample()
	if err != nil {
		return
	}
	cpuBefore, err := cpuSeconds(r.opts.pids)
	if err != nil {
		return
	}
	start := time.Now()
	atomic.StoreInt32(&r.phase, measuring)
	if err = r.wait(r.opts.seconds); err != nil {
		return
	}
	after, err := sample()
	if err != nil {
		return
	}
	elapsed = time.Since(start).Seconds()
	atomic.StoreInt32(&r.phase, stopping)
	cpuAfter, err := cpuSeconds(r.opts.pids)
	return after - before, elapsed, cpuAfter - cpuBefore, err
}

// closeAll closes all at once: a close through a tunnel waits for the other side's answer,
// which can be behind data that another connection has not read.
func closeAll(conns []net.Conn) {
	var closing sync.WaitGroup
	for _, conn := range conns {
		closing.Add(1)
		go func(conn net.Conn) {
			defer closing.Done()
			conn.Close()
		}(conn)
	}
	closing.Wait()
}

func setDeadline(conns []net.Conn, length time.Duration) error {
	for _, conn := range conns {
		if err := conn.SetDeadline(time.Now().Add(length)); err != nil {
			return err
		}
	}
	return nil
}

type transferred struct {
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	MBPerS   float64 `json:"mb_per_s"`
	CPU      float64 `json:"cpu_s"`
	CPUPerGB float64 `json:"cpu_s_per_gb"`
}

func runDown(opts options) (any, error) {
	return transfer(opts, func(*watcher) []byte { return []byte{modeSource} }, func(conn net.Conn, buffer []byte) (int, error) {
		return conn.Read(buffer)
	})
}

func runUp(opts options) (any, error) {
	return transfer(opts, func(w *watcher) []byte { return append([]byte{modeSink}, w.id...) }, func(conn net.Conn, buffer []byte) (int, error) {
		_, err := conn.Write(buffer)
		return 0, err // counted where it arrives, not where it is queued
	})
}

// transfer moves bytes with step on every connection. Downloads are counted by the client
// and uploads by the target: in both cases bytes that came out of the proxy.
func transfer(opts options, first func(*watcher) []byte, step func(net.Conn, []byte) (int, error)) (any, error) {
	watcher, err := watch(opts.dialer.target)
	if err != nil {
		return nil, err
	}
	conns, err := opts.dialer.openAll(opts.conns, first(watcher))
	if err != nil {
		return nil, err
	}
	if err := setDeadline(conns, opts.warmup+opts.seconds+slack); err != nil {
		return nil, err
	}
	r := newRun(opts)
	var read int64
	for _, conn := range conns {
		conn, buffer := conn, make([]byte, blockBytes)
		r.spawn(func() {
			for r.at() != stopping {
				n, err := step(conn, buffer)
				atomic.AddInt64(&read, int64(n))
				if err != nil {
					r.fail(err)
					return
				}
			}
		})
	}
	count, elapsed, cpu, err := r.measureBy(func() (int64, error) {
		sunk, _, _, err := watcher.ask()
		return sunk + atomic.LoadInt64(&read), err
	})
	closeAll(conns)
	if err != nil {
		return nil, err
	}
	r.workers.Wait()
	if count <= 0 {
		return nil, fmt.Errorf("not one byte in %.1f s", elapsed)
	}
	gb := float64(count) / 1e9
	return transferred{Bytes: count, Seconds: elapsed, MBPerS: gb * 1e3 / elapsed, CPU: cpu, CPUPerGB: cpu / gb}, watcher.waitClosed()
}

type latencies struct {
	Count   int64   `json:"count"`
	Seconds float64 `json:"seconds"`
	PerS    float64 `json:"per_s"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	CPU     float64 `json:"cpu_s"`
	CPUEach float64 `json:"cpu_us_each"`
}

// summarize sorts what all workers recorded, in nanoseconds.
func summarize(recorded [][]uint32, elapsed, cpu float64) (latencies, error) {
	var all []uint32
	for _, part := range recorded {
		all = append(all, part...)
	}
	if len(all) == 0 {
		return latencies{}, fmt.Errorf("nothing was answered in %.1f s", elapsed)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))]) / 1e3 }
	n := float64(len(all))
	return latencies{Count: int64(len(all)), Seconds: elapsed, PerS: n / elapsed, P50: at(0.5), P99: at(0.99),
		CPU: cpu, CPUEach: cpu / n * 1e6}, nil
}

// room is more records than one worker can make; untouched pages cost nothing.
func room(opts options, perSecond int) int {
	return 1024 + int((opts.seconds+time.Second).Seconds())*perSecond
}

func nanos(d time.Duration) uint32 {
	if d > 4*time.Second {
		return 4e9
	}
	return uint32(d)
}
