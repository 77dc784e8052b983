package load

import (
	"flag"
	"net"
	"time"
)

// Work is a command of another module: an operation that workers repeat while the clock runs.
// It may have flags besides those of all commands.
type Work struct {
	Flags func(*flag.FlagSet)
	// Start prepares --conns workers and returns the function that each repeats; End is
	// called when all have stopped.
	Start func(open func() (net.Conn, error), conns int) (Crew, error)
}

// Crew is the result of Start: a function for each worker, and one to call at the end.
type Crew struct {
	Workers []func() error
	End     func() error
}

func (w Work) run(opts options) (any, error) {
	crew, err := w.Start(opts.dialer.open, opts.conns)
	if err != nil {
		return nil, err
	}
	r := newRun(opts)
	recorded := make([][]uint32, len(crew.Workers))
	for i, once := range crew.Workers {
		i, once := i, once
		recorded[i] = make([]uint32, 0, room(opts, 50_000))
		r.spawn(func() {
			for r.at() != stopping {
				start := time.Now()
				if err := once(); err != nil {
					r.fail(err)
					return
				}
				if r.at() == measuring {
					recorded[i] = append(recorded[i], nanos(time.Since(start)))
				}
			}
		})
	}
	elapsed, cpu, err := r.measure()
	if err != nil {
		return nil, err
	}
	r.workers.Wait()
	result, err := summarize(recorded, elapsed, cpu)
	if err != nil {
		return nil, err
	}
	return result, crew.End()
}
