// Yamuxpeer speaks yamux as HashiCorp's Go module does, so that Isthmus's session can be held
// against it in both roles. It dials the address it is given; commands come line by line on
// standard input, what happened goes as JSON lines to standard output.
//
// A stream that the other side opens begins with one line that names a behaviour; a stream that
// this side opens (command "open BEHAVIOUR") follows it without saying so.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

type event struct {
	Event string `json:"event"`
	ID    uint32 `json:"id"`
	Bytes int64  `json:"bytes"`
	Sum   string `json:"sum"`
	Error string `json:"error"`
}

type peer struct {
	session *yamux.Session
	out     sync.Mutex
	release chan struct{}
	gate    sync.Once
}

// A prime period: chunks of 64 KiB that are swapped or repeated change the sum.
const period = 65521

var pattern = func() []byte {
	block := make([]byte, period)
	for i := range block {
		block[i] = byte(i*31 + (i>>8)*7)
	}
	return block
}()

func (p *peer) say(e event, err error) {
	if err != nil {
		e.Error = err.Error()
	}
	p.out.Lock()
	defer p.out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(e)
}

func source(w io.Writer, left int64) error {
	for left > 0 {
		block := pattern[:min(left, period)]
		if _, err := w.Write(block); err != nil {
			return err
		}
		left -= int64(len(block))
	}
	return nil
}

func (p *peer) behave(s *yamux.Stream, r io.Reader, words []string) {
	number := int64(0)
	if len(words) > 1 {
		number, _ = strconv.ParseInt(words[1], 10, 64)
	}
	e := event{Event: words[0], ID: s.StreamID()}
	var err error
	switch words[0] {
	case "echo":
		e.Bytes, err = io.Copy(s, r)
		s.Close()
	case "stall": // read nothing until told to
		<-p.release
		p.sink(s, r, &e, &err)
		fmt.Fprintf(s, "%d %s\n", e.Bytes, e.Sum)
		s.Close()
	case "sink": // the reply comes after the other side's half-close
		p.sink(s, r, &e, &err)
		if err == nil {
			fmt.Fprintf(s, "%d %s\n", e.Bytes, e.Sum)
		}
		s.Close()
	case "source":
		err = source(s, number)
		s.Close()
		if err == nil {
			e.Bytes, err = io.Copy(io.Discard, r)
		}
	case "both": // N bytes out while any number come in
		sent := make(chan error, 1)
		go func() {
			sent <- source(s, number)
			s.Close()
		}()
		p.sink(s, r, &e, &err)
		if sendErr := <-sent; err == nil {
			err = sendErr
		}
	case "ask": // a line with a number is answered by that many zeros in one Write
		lines := bufio.NewScanner(r)
		for lines.Scan() && err == nil {
			number, _ = strconv.ParseInt(lines.Text(), 10, 64)
			_, err = s.Write(make([]byte, number))
			e.Bytes += number
		}
		s.Close()
	case "leave": // half-close at once; StreamCloseTimeout makes it a reset
		s.Close()
		p.sink(s, r, &e, &err)
	default:
		err = fmt.Errorf("unknown behaviour")
	}
	p.say(e, err)
}

func (p *peer) sink(s *yamux.Stream, r io.Reader, e *event, err *error) {
	sum := sha256.New()
	e.Bytes, *err = io.Copy(sum, r)
	e.Sum = fmt.Sprintf("%x", sum.Sum(nil))
}

func (p *peer) accept() {
	for {
		s, err := p.session.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			r := bufio.NewReader(s)
			line, err := r.ReadString('\n')
			if err != nil {
				p.say(event{Event: "unnamed", ID: s.StreamID()}, err)
				return
			}
			p.behave(s, r, strings.Fields(line))
		}()
	}
}

func (p *peer) command(words []string) {
	switch words[0] {
	case "open":
		s, err := p.session.OpenStream()
		if err != nil {
			p.say(event{Event: "opened"}, err)
			return
		}
		p.say(event{Event: "opened", ID: s.StreamID()}, nil)
		go p.behave(s, s, words[1:])
	case "ping":
		_, err := p.session.Ping()
		p.say(event{Event: "pinged"}, err)
	case "goaway":
		p.say(event{Event: "gone"}, p.session.GoAway())
	case "accept":
		go p.accept()
	case "release":
		p.gate.Do(func() { close(p.release) })
	case "streams":
		p.say(event{Event: "streams", Bytes: int64(p.session.NumStreams())}, nil)
	case "close":
		p.session.Close()
	}
}

func main() {
	address := flag.String("address", "", "where to connect")
	client := flag.Bool("client", false, "take the client's role")
	accept := flag.Bool("accept", true, "accept streams from the beginning")
	window := flag.Uint("window", 256*1024, "MaxStreamWindowSize")
	closeTimeout := flag.Duration("close-timeout", 5*time.Minute, "StreamCloseTimeout")
	flag.Parse()

	conn, err := net.Dial("tcp", *address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = uint32(*window)
	config.StreamCloseTimeout = *closeTimeout
	config.EnableKeepAlive = false
	start := yamux.Server
	if *client {
		start = yamux.Client
	}
	session, err := start(conn, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	p := &peer{session: session, release: make(chan struct{})}
	if *accept {
		go p.accept()
	}
	go func() {
		<-session.CloseChan()
		_, err := session.AcceptStream() // tells why
		p.say(event{Event: "closed"}, err)
	}()
	// The end of standard input is the end of the program, so that none is left behind.
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		p.command(strings.Fields(commands.Text()))
	}
}
