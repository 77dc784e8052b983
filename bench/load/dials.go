package load

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"
)

// runDial opens, sends one byte, gets it back and closes, over and over. Each worker is a
// thread with plain system calls, for the reason given in rr.go.
func runDial(opts options) (any, error) {
	watcher, err := watch(opts.dialer.target)
	if err != nil {
		return nil, err
	}
	caller, err := newCaller(&opts.dialer)
	if err != nil {
		return nil, err
	}
	r := newRun(opts)
	recorded := make([][]uint32, opts.conns)
	for i := range recorded {
		i := i
		recorded[i] = make([]uint32, 0, room(opts, 50_000))
		buffer := make([]byte, 4096)
		r.spawn(func() {
			if caller.through == nil {
				runtime.LockOSThread()
			}
			for r.at() != stopping {
				start := time.Now()
				if err := caller.call(buffer); err != nil {
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
	return result, watcher.waitClosed()
}

// caller reaches the target without using Go's net package each time.
type caller struct {
	family  int
	address syscall.Sockaddr
	request []byte  // empty: no CONNECT
	through *dialer // set: a path that is not a socket
}

func newCaller(d *dialer) (*caller, error) {
	if d.other != nil {
		return &caller{through: d}, nil
	}
	if d.via != "tcp" {
		c := &caller{family: syscall.AF_UNIX, address: &syscall.SockaddrUnix{Name: d.uds}}
		if d.via == "connect" {
			c.request = d.request
		}
		return c, nil
	}
	to, err := net.ResolveTCPAddr("tcp4", d.target)
	if err != nil {
		return nil, err
	}
	address := &syscall.SockaddrInet4{Port: to.Port}
	copy(address.Addr[:], to.IP.To4())
	return &caller{family: syscall.AF_INET, address: address}, nil
}

func (c *caller) call(buffer []byte) error {
	if c.through != nil {
		return c.callThrough(buffer)
	}
	fd, err := syscall.Socket(c.family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := setTimeouts(fd); err != nil {
		return err
	}
	if c.family == syscall.AF_INET {
		// Directly, thousands per second from this process would leave no port free for a
		// minute (TIME_WAIT). Through a proxy this is a UNIX socket and closes normally.
		linger := syscall.Linger{Onoff: 1}
		if err := syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &linger); err != nil {
			return err
		}
	}
	if err := syscall.Connect(fd, c.address); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if len(c.request) > 0 {
		if err := c.connect(fd, buffer); err != nil {
			return err
		}
	}
	buffer[0] = modeOne
	if err := writeAll(fd, buffer[:1]); err != nil {
		return err
	}
	buffer[0] = 0
	if _, err := readSome(fd, buffer[:1]); err != nil {
		return err
	}
	if buffer[0] != modeOne {
		return fmt.Errorf("the byte came back changed")
	}
	return nil
}

func (c *caller) callThrough(buffer []byte) error {
	conn, err := c.through.open()
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer[0] = modeOne
	if _, err := conn.Write(buffer[:1]); err != nil {
		return err
	}
	buffer[0] = 0
	if _, err := conn.Read(buffer[:1]); err != nil {
		return err
	}
	if buffer[0] != modeOne {
		return fmt.Errorf("the byte came back changed")
	}
	return nil
}

func (c *caller) connect(fd int, buffer []byte) error {
	if err := writeAll(fd, c.request); err != nil {
		return err
	}
	for n := 0; n < len(buffer); {
		m, err := readSome(fd, buffer[n:])
		if err != nil {
			return fmt.Errorf("no answer to CONNECT: %w (got %q)", err, buffer[:n])
		}
		n += m
		if done, err := accepted(buffer[:n]); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("the answer to CONNECT has no end: %q", buffer)
}

// accepted checks the received part of an answer to CONNECT. The targets never send first,
// so nothing may follow the head.
func accepted(got []byte) (bool, error) {
	end := bytes.Index(got, []byte("\r\n\r\n"))
	if end < 0 {
		return false, nil
	}
	if !bytes.Equal(got[8:12], []byte(" 200")) {
		return false, fmt.Errorf("CONNECT was answered with %q", got)
	}
	if end+4 != len(got) {
		return false, fmt.Errorf("bytes after the answer to CONNECT: %q", got[end+4:])
	}
	return true, nil
}
