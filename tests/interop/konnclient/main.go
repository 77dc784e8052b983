// Command konnclient is every Go peer that the konnectivity tests need: kube-apiserver's own
// client library in many shapes, a client of raw packets, an agent, a server and a target.
//
// A check prints one JSON line and exits with 0 or 1; a peer prints one line for everything
// that happens and lives until its stdin ends. klog and grpc write to stderr.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync"
	"time"
)

// options are the flags of all commands; a command ignores those it has no use for.
type options struct {
	way         way
	target      string
	n           int
	concurrency int
	rounds      int
	bytes       int
	chunk       int
	up, down    bool
	seconds     float64
	timeout     time.Duration

	// The peers' own.
	listen      string
	id          string
	identifiers string
	tokenFile   string
	serverCount int
	xfr         int
}

// result is what a check found; it is printed with "ok" added.
type result map[string]any

var commands = map[string]func(*options) (result, error){
	"dial": runDial, "cancel": runCancel, "idle": runIdle, "halfdata": runHalfData, "stall": runStall,
	"echo": runEcho, "concurrent": runConcurrent, "reuse": runReuse,
	"bulk": runBulk, "speaksfirst": runSpeaksFirst, "hangup": runHangUp,
	"raw": runRaw, "agent": runAgent, "server": runServer, "target": runTarget,
}

// endless commands have no time limit of their own.
var endless = map[string]bool{"agent": true, "server": true, "target": true}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: konnclient COMMAND [flags]; commands are the keys of the table in main.go")
		os.Exit(2)
	}
	name := os.Args[1]
	opts := parse(name, os.Args[2:])
	if !endless[name] {
		time.AfterFunc(opts.timeout, func() {
			// A connection of konnectivity-client has no deadlines: nothing else ends a read
			// that hangs. The stacks say which one it was.
			pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			say(result{"ok": false, "error": fmt.Sprintf("not done after %v", opts.timeout)})
			os.Exit(1)
		})
	}
	found, err := commands[name](opts)
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

func parse(name string, args []string) *options {
	opts := &options{}
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	opts.way.flags(flags)
	flags.StringVar(&opts.target, "target", "", "the address to dial through the tunnel")
	flags.IntVar(&opts.n, "n", 1, "connections in all")
	flags.IntVar(&opts.concurrency, "concurrency", 1, "connections at a time")
	flags.IntVar(&opts.rounds, "rounds", 10, "round trips on each connection")
	flags.IntVar(&opts.bytes, "bytes", 1000, "how much to send or receive")
	flags.IntVar(&opts.chunk, "chunk", 64<<10, "bytes of one write, which is one DATA packet")
	flags.BoolVar(&opts.up, "up", false, "send")
	flags.BoolVar(&opts.down, "down", false, "receive")
	flags.Float64Var(&opts.seconds, "seconds", 1, "how long to hold, or until a dial is cancelled")
	flags.DurationVar(&opts.timeout, "timeout", 60*time.Second, "give up after this long")
	flags.StringVar(&opts.listen, "listen", "127.0.0.1:0", "where a server takes agents")
	flags.StringVar(&opts.id, "id", "", "the agent's or server's id")
	flags.StringVar(&opts.identifiers, "identifiers", "", "the agent's identifiers, as in a URL's query")
	flags.StringVar(&opts.tokenFile, "token-file", "", "an agent's bearer token")
	flags.IntVar(&opts.serverCount, "server-count", 1, "how many servers a server says there are")
	flags.IntVar(&opts.xfr, "xfr-channel-size", 150, "packets an agent queues for each connection")
	_ = flags.Parse(args)
	return opts
}

var saying sync.Mutex

// say prints one JSON line; stdout is not buffered, so the test sees it at once.
func say(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// waitStdin returns when whoever started this process is gone or wants it to end.
func waitStdin() { io.Copy(io.Discard, os.Stdin) }
