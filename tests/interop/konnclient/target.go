package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
)

// greetingBytes is what a target says first: more than one of an agent's 4 KiB reads.
const greetingBytes = 6000

// role is one port of the target, and what crossed it.
type role struct {
	serve                    func(r *role, conn *net.TCPConn)
	accepted, open, received int64
}

var roles = map[string]*role{
	"echo":   {serve: func(r *role, conn *net.TCPConn) { io.Copy(conn, conn) }},
	"source": {serve: serveSource},
	"sink":   {serve: serveSink},
	"count":  {serve: serveCount},
	"greet":  {serve: serveGreet},
	"hangup": {serve: func(r *role, conn *net.TCPConn) { conn.Write(part(0, greetingBytes)) }},
	"silent": {serve: func(r *role, conn *net.TCPConn) { io.Copy(io.Discard, conn) }},
	"stats":  {},
}

// runTarget listens once for every role, says where, and serves until stdin ends. "stuck" is
// a port that never answers a connection: it takes as long as the agent waits.
func runTarget(opts *options) (result, error) {
	addresses := result{}
	for name, r := range roles {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addresses[name] = listener.Addr().String()
		go r.accept(listener)
	}
	stuck, err := listenStuck()
	if err != nil {
		return nil, err
	}
	addresses["stuck"] = stuck
	say(addresses)
	waitStdin()
	return nil, nil
}

func (r *role) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		atomic.AddInt64(&r.accepted, 1)
		atomic.AddInt64(&r.open, 1)
		go func() {
			defer atomic.AddInt64(&r.open, -1)
			defer conn.Close()
			r.serve(r, conn.(*net.TCPConn))
		}()
	}
}

// size is how much a client of source or sink wants moved.
func size(conn net.Conn) (int, error) {
	var head [8]byte
	_, err := io.ReadFull(conn, head[:])
	return int(binary.BigEndian.Uint64(head[:])), err
}

func serveSource(r *role, conn *net.TCPConn) {
	if n, err := size(conn); err == nil {
		sendPattern(conn, n, 256<<10)
	}
}

func serveSink(r *role, conn *net.TCPConn) {
	n, err := size(conn)
	if err != nil {
		return
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, conn, int64(n)); err == nil {
		io.WriteString(conn, hex.EncodeToString(sum.Sum(nil)))
		io.Copy(io.Discard, conn) // the client closes
	}
}

func serveCount(r *role, conn *net.TCPConn) {
	n, _ := io.Copy(io.Discard, conn)
	atomic.AddInt64(&r.received, n)
}

func serveGreet(r *role, conn *net.TCPConn) {
	conn.Write(part(0, greetingBytes))
	io.Copy(conn, conn)
}

func serveStats(_ *role, conn *net.TCPConn) {
	found := map[string]map[string]int64{}
	for name, r := range roles {
		if name != "stats" {
			found[name] = map[string]int64{
				"accepted": atomic.LoadInt64(&r.accepted),
				"open":     atomic.LoadInt64(&r.open),
				"received": atomic.LoadInt64(&r.received),
			}
		}
	}
	json.NewEncoder(conn).Encode(found)
}

func init() { roles["stats"].serve = serveStats }

// listenStuck listens without accepting and fills the queue: the kernel drops further SYNs.
func listenStuck() (string, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", err
	}
	if err := syscall.Listen(fd, 0); err != nil {
		return "", err
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	_, err = net.Dial("tcp", address) // one fits into a queue of length 0; it stays open
	return address, err
}
