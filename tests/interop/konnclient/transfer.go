package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
)

// period is prime, so that no buffer size divides it: a byte in the wrong place is seen.
const period = 65521

var pattern = func() []byte {
	block := make([]byte, 2*period)
	for i := range block {
		block[i] = byte((i%period)*31 + (i%period>>8)*7)
	}
	return block
}()

// part is n bytes of the endless pattern from an offset on, n at most a period.
func part(offset, n int) []byte { return pattern[offset%period : offset%period+n] }

// digest is the SHA-256 of the pattern's first n bytes.
func digest(n int) string {
	sum := sha256.New()
	for at := 0; at < n; at += period {
		sum.Write(part(0, min(period, n-at)))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// sendPattern writes n bytes of the pattern, a chunk for each write.
func sendPattern(conn io.Writer, n, chunk int) error {
	buffer := make([]byte, chunk)
	for at := 0; at < n; at += chunk {
		piece := buffer[:min(chunk, n-at)]
		for done := 0; done < len(piece); {
			done += copy(piece[done:], part(at+done, min(period, len(piece)-done)))
		}
		if _, err := conn.Write(piece); err != nil {
			return fmt.Errorf("sending at %d of %d: %w", at, n, err)
		}
	}
	return nil
}

// roundTrip sends bytes that only this connection sends, and takes them back.
func roundTrip(conn net.Conn, salt, size int) error {
	request := bytes.Clone(part(salt*7919, size))
	if _, err := conn.Write(request); err != nil {
		return err
	}
	answer := make([]byte, size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("reading an answer of %d bytes: %w", size, err)
	}
	if !bytes.Equal(request, answer) {
		return errors.New("the answer differs from what was sent")
	}
	return nil
}

// runEcho makes n connections with so many round trips each, of 1 byte to --bytes.
func runEcho(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	err := each(opts.n, opts.concurrency, func(i int) error {
		conn, err := opts.way.dial(context.Background(), opts.target)
		if err != nil {
			return err
		}
		for round := 0; round < opts.rounds; round++ {
			size := 1 + (opts.bytes-1)*round/max(1, opts.rounds-1)
			if err := roundTrip(conn, i+round, min(size, period)); err != nil {
				return err
			}
		}
		return closed(conn)
	})
	if err != nil {
		return nil, err
	}
	return result{"connections": opts.n, "round_trips": opts.n * opts.rounds}, opts.way.finish()
}

// runConcurrent has n connections open at once, each having answered before any is closed.
func runConcurrent(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	conns := make([]net.Conn, opts.n)
	err := each(opts.n, opts.n, func(i int) (err error) {
		if conns[i], err = opts.way.dial(context.Background(), opts.target); err != nil {
			return err
		}
		return roundTrip(conns[i], i, min(opts.bytes, period))
	})
	if err != nil {
		return nil, err
	}
	if err := each(opts.n, opts.n, func(i int) error { return roundTrip(conns[i], i+opts.n, 10) }); err != nil {
		return nil, err
	}
	if err := each(opts.n, opts.n, func(i int) error { return closed(conns[i]) }); err != nil {
		return nil, err
	}
	return result{"connections": opts.n}, opts.way.finish()
}

// runReuse is echo over one reusable tunnel whatever the flags say.
func runReuse(opts *options) (result, error) {
	opts.way.reusable = true
	return runEcho(opts)
}

// runBulk moves --bytes --up, --down or both, one after the other, and compares sums.
func runBulk(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	found := result{"bytes": opts.bytes}
	if opts.up == opts.down {
		return nil, errors.New("one of --up and --down is needed")
	}
	move := bulkDown
	if opts.up {
		move = bulkUp
	}
	sums := make([]string, opts.n)
	err := each(opts.n, opts.n, func(i int) (err error) {
		sums[i], err = move(opts)
		return err
	})
	if err != nil {
		return found, err
	}
	wanted := digest(opts.bytes)
	found["sha256"] = wanted
	for i, sum := range sums {
		if sum != wanted {
			return found, fmt.Errorf("connection %d of %d: sum %s instead of %s", i+1, opts.n, sum, wanted)
		}
	}
	return found, opts.way.finish()
}

// bulkUp returns the sum that the target computed.
func bulkUp(opts *options) (string, error) {
	conn, err := askFor(opts)
	if err != nil {
		return "", err
	}
	if err := sendPattern(conn, opts.bytes, opts.chunk); err != nil {
		return "", err
	}
	sum := make([]byte, hex.EncodedLen(sha256.Size))
	if _, err := io.ReadFull(conn, sum); err != nil {
		return "", fmt.Errorf("reading the target's sum: %w", err)
	}
	return string(sum), closed(conn)
}

// bulkDown returns the sum of what came until the end; the target closes after the last byte.
func bulkDown(opts *options) (string, error) {
	conn, err := askFor(opts)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	n, err := io.Copy(sum, conn)
	if err != nil || n != int64(opts.bytes) {
		return "", fmt.Errorf("%d bytes came instead of %d: %v", n, opts.bytes, err)
	}
	// The target closed first: what Close says then is a race inside the client.
	conn.Close()
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// askFor opens a connection to a source or sink and says how much.
func askFor(opts *options) (net.Conn, error) {
	conn, err := opts.way.dial(context.Background(), opts.target)
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(opts.bytes)))
	return conn, err
}

// runSpeaksFirst reads a greeting of --bytes before it sends anything, then has an echo.
func runSpeaksFirst(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	var cut atomic.Int64
	err := each(opts.n, opts.concurrency, func(i int) error {
		conn, err := opts.way.dial(context.Background(), opts.target)
		if err != nil {
			return err
		}
		greeting := make([]byte, greetingBytes)
		if _, err := io.ReadFull(conn, greeting); err == io.EOF || err == io.ErrUnexpectedEOF {
			cut.Add(1)
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the greeting: %w", err)
		}
		if !bytes.Equal(greeting, part(0, greetingBytes)) {
			return errors.New("the greeting is not whole")
		}
		if err := roundTrip(conn, i, 50); err != nil {
			return err
		}
		return closed(conn)
	})
	if err != nil {
		return nil, err
	}
	missed := int(cut.Load())
	return result{"greeted": opts.n - missed, "cut": missed}, opts.way.finish()
}

// runHangUp dials a target that sends a greeting and closes: all of it comes, then the end. Of cut
// ones it is as with runSpeaksFirst.
func runHangUp(opts *options) (result, error) {
	if err := opts.way.start(); err != nil {
		return nil, err
	}
	var cut atomic.Int64
	err := each(opts.n, opts.concurrency, func(i int) error {
		conn, err := opts.way.dial(context.Background(), opts.target)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(conn)
		if err != nil {
			return err
		}
		if len(got) < greetingBytes {
			cut.Add(1)
			return nil
		}
		if len(got) != greetingBytes || !bytes.Equal(got, part(0, greetingBytes)) {
			return fmt.Errorf("%d bytes of %d before the end", len(got), greetingBytes)
		}
		conn.Close() // the target was first: its answer is a race inside the client
		return nil
	})
	if err != nil {
		return nil, err
	}
	missed := int(cut.Load())
	return result{"ended": opts.n - missed, "cut": missed}, opts.way.finish()
}
