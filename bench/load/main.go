// Package load drives the benchmark: it is the target, the clients and a plain
// CONNECT stub. Each run prints JSON on stdout; bench/run.py reads it.
//
// It must never be the bottleneck: buffers are allocated before the clock starts and
// nothing is allocated per request. It needs only the standard library; cmd/load is the
// command, and another module can add more paths to the target.
package load

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const usage = `usage: load COMMAND [flags]

  target        echo, source, sink and sized exchange on one port, by the first byte
  connect-stub  CONNECT on a UNIX socket, dialed and copied without TLS: an upper bound
  down, up      move bytes on --conns connections
  rr            64-byte request/response on --conns connections
  dial          open, one byte there and back, close, with --conns workers
  hold          open --conns idle tunnels, then obey lines on stdin (pass N, check, quit)
  stall         rr alone, then rr beside one reader that stopped reading
  slow          rr alone, then rr beside one reader of 1 MB/s whose bytes are compared
`

// options are the flags of all commands; a command ignores those it does not use.
type options struct {
	dialer  dialer
	listen  string
	conns   int
	seconds time.Duration
	warmup  time.Duration
	pids    []int
}

// Open returns a connection through the proxy at uds whose next byte goes to the target.
type Open func(uds, target string) (net.Conn, error)

// Main is the command; ways are further values of --via, and works are further commands.
func Main(ways map[string]Open, works map[string]Work) {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	commands := map[string]func(options) (any, error){
		"target": runTarget, "connect-stub": runStub, "down": runDown, "up": runUp,
		"rr": runRR, "dial": runDial, "hold": runHold, "stall": runStall, "slow": runSlow,
	}
	work, isWork := works[os.Args[1]]
	if isWork {
		commands[os.Args[1]] = work.run
	}
	command, known := commands[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "load: no command %q\n%s", os.Args[1], usage)
		os.Exit(2)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	if isWork {
		work.Flags(flags)
	}
	result, err := command(parse(flags, os.Args[2:], ways))
	if err != nil {
		fmt.Fprintf(os.Stderr, "load %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	say(result)
}

func parse(flags *flag.FlagSet, args []string, ways map[string]Open) options {
	via := flags.String("via", "tcp", "tcp (to the target), unix (a fixed proxy), connect (CONNECT on --uds)")
	target := flags.String("target", "", "the target's address, 127.0.0.1:PORT")
	uds := flags.String("uds", "", "the proxy's UNIX socket")
	listen := flags.String("listen", "127.0.0.1:0", "where target listens")
	conns := flags.Int("conns", 1, "connections, workers or tunnels")
	seconds := flags.Float64("seconds", 1.5, "how long to measure")
	warmup := flags.Float64("warmup", 0.3, "how long to run before measuring")
	pids := flags.String("pids", "", "processes whose CPU time and memory to report, comma separated")
	_ = flags.Parse(args)
	opts := options{
		dialer:  dialer{via: *via, target: *target, uds: *uds, other: ways[*via]},
		listen:  *listen,
		conns:   *conns,
		seconds: time.Duration(*seconds * float64(time.Second)),
		warmup:  time.Duration(*warmup * float64(time.Second)),
	}
	opts.dialer.prepare()
	for _, field := range strings.FieldsFunc(*pids, func(r rune) bool { return r == ',' }) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			fmt.Fprintf(os.Stderr, "load: bad pid %q\n", field)
			os.Exit(2)
		}
		opts.pids = append(opts.pids, pid)
	}
	if *conns < 1 {
		fmt.Fprintln(os.Stderr, "load: --conns must be at least 1")
		os.Exit(2)
	}
	return opts
}

// say prints one JSON line; stdout is not buffered, so the driver sees it at once.
func say(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(line, '\n'))
}
