package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// Request/response is measured from one thread with plain system calls. Goroutines would
// add 10 to 150 µs of scheduling to a round trip, and on a small machine take from the
// proxies the CPU that determines the result. A path that is not a socket needs goroutines:
// there each connection has one.

const requestBytes = 64

func runRR(opts options) (any, error) {
	watcher, err := watch(opts.dialer.target)
	if err != nil {
		return nil, err
	}
	peers, err := openPeers(opts)
	if err != nil {
		return nil, err
	}
	result, err := requestResponse(opts, peers)
	if err != nil {
		return nil, err
	}
	for _, p := range peers {
		p.close()
	}
	return result, watcher.waitClosed()
}

// peer is one connection with at most one request in flight.
type peer struct {
	conn     net.Conn // set: a path that is not a socket
	file     *os.File
	fd       int
	sent     time.Time
	n        uint64
	request  [requestBytes]byte
	answer   [requestBytes]byte
	got      int
	recorded []uint32
}

func openPeers(opts options) ([]*peer, error) {
	conns, err := opts.dialer.openAll(opts.conns, []byte{modeEcho})
	if err != nil {
		return nil, err
	}
	peers := make([]*peer, len(conns))
	for i, conn := range conns {
		if opts.dialer.other != nil {
			peers[i] = &peer{conn: conn, fd: i}
		} else if peers[i], err = newPeer(conn); err != nil {
			return nil, err
		}
	}
	return peers, nil
}

// newPeer takes the connection away from Go's poller.
func newPeer(conn net.Conn) (*peer, error) {
	file, err := conn.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		return nil, err
	}
	if err := conn.Close(); err != nil {
		return nil, err
	}
	p := &peer{file: file, fd: int(file.Fd())} // Fd makes it blocking
	return p, setTimeouts(p.fd)
}

// setTimeouts bounds every read and write of a blocking socket.
func setTimeouts(fd int) error {
	limit := syscall.NsecToTimeval(int64(slack))
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	return syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit)
}

func (p *peer) close() {
	if p.conn != nil {
		p.conn.Close()
	} else {
		p.file.Close()
	}
}

func (p *peer) send() error {
	p.n++
	p.got = 0
	binary.BigEndian.PutUint64(p.request[:], p.n<<16|uint64(p.fd&0xffff))
	p.sent = time.Now()
	if n, errno := writeReady(p.fd, p.request[:]); errno != 0 || n != requestBytes {
		return fmt.Errorf("cannot send a request: %w", errno)
	}
	return nil
}

// take reads once; true means the answer is complete and correct.
func (p *peer) take() (bool, error) {
	n, errno := readReady(p.fd, p.answer[p.got:])
	if errno != 0 || n == 0 {
		return false, fmt.Errorf("the connection ended: %w", errno)
	}
	return p.took(n)
}

func (p *peer) took(n int) (bool, error) {
	p.got += n
	if p.got < requestBytes {
		return false, nil
	}
	if !bytes.Equal(p.request[:], p.answer[:]) {
		return false, fmt.Errorf("the answer differs from the request")
	}
	return true, nil
}

// readReady and writeReady are for sockets known to be ready: they cannot block, so Go's
// scheduler need not be involved.
func readReady(fd int, buffer []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)))
	return int(n), errno
}

func writeReady(fd int, data []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
	return int(n), errno
}

func readSome(fd int, buffer []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, buffer)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0, fmt.Errorf("no answer for %v", slack)
		case err != nil:
			return 0, err
		case n == 0:
			return 0, fmt.Errorf("the connection ended")
		default:
			return n, nil
		}
	}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := syscall.Write(fd, data)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// requestResponse keeps one request in flight on every connection and checks every answer.
func requestResponse(opts options, peers []*peer) (latencies, error) {
	r := newRun(opts)
	for _, p := range peers {
		p.recorded = make([]uint32, 0, room(opts, 300_000/len(peers)+1000))
	}
	exchange := exchangeMany
	if len(peers) == 1 {
		exchange = exchangeOne
	}
	if peers[0].conn != nil {
		for _, p := range peers {
			p := p
			r.spawn(func() {
				if err := exchangeConn(r, p); err != nil {
					r.fail(err)
				}
			})
		}
	} else {
		r.spawn(func() {
			runtime.LockOSThread()
			if err := exchange(r, peers); err != nil {
				r.fail(err)
			}
		})
	}
	elapsed, cpu, err := r.measure()
	if err != nil {
		return latencies{}, err
	}
	r.workers.Wait()
	recorded := make([][]uint32, len(peers))
	for i, p := range peers {
		if len(p.recorded) == 0 {
			return latencies{}, fmt.Errorf("connection %d of %d got no answer in %.1f s", i+1, len(peers), elapsed)
		}
		recorded[i] = p.recorded
	}
	return summarize(recorded, elapsed, cpu)
}

func exchangeOne(r *run, peers []*peer) error {
	p := peers[0]
	for r.at() != stopping {
		if err := p.send(); err != nil {
			return err
		}
		for whole := false; !whole; {
			n, err := readSome(p.fd, p.answer[p.got:])
			if err != nil {
				return err
			}
			if whole, err = p.took(n); err != nil {
				return err
			}
		}
		if r.at() == measuring {
			p.recorded = append(p.recorded, nanos(time.Since(p.sent)))
		}
	}
	return nil
}

// exchangeConn is exchangeOne for a connection that is not a socket.
func exchangeConn(r *run, p *peer) error {
	for r.at() != stopping {
		p.n++
		p.got = 0
		binary.BigEndian.PutUint64(p.request[:], p.n<<16|uint64(p.fd&0xffff))
		p.sent = time.Now()
		if _, err := p.conn.Write(p.request[:]); err != nil {
			return err
		}
		for whole := false; !whole; {
			n, err := p.conn.Read(p.answer[p.got:])
			if err != nil {
				return err
			}
			if whole, err = p.took(n); err != nil {
				return err
			}
		}
		if r.at() == measuring {
			p.recorded = append(p.recorded, nanos(time.Since(p.sent)))
		}
	}
	return nil
}

// exchangeMany returns when the run stops and the last answers are in.
func exchangeMany(r *run, peers []*peer) error {
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer syscall.Close(poll)
	for i, p := range peers {
		event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)} // an index, not a descriptor
		if err := syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, p.fd, &event); err != nil {
			return err
		}
		if err := p.send(); err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, len(peers))
	for open := len(peers); open > 0; {
		n, err := syscall.EpollWait(poll, events, int(slack.Milliseconds()))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("no answer on any of %d connections for %v", open, slack)
		}
		for _, event := range events[:n] {
			again, err := peers[event.Fd].turn(r)
			if err != nil {
				return err
			}
			if !again {
				open--
			}
		}
	}
	return nil
}

// turn reads an answer and sends the next request; false after the last answer.
func (p *peer) turn(r *run) (bool, error) {
	whole, err := p.take()
	if err != nil || !whole {
		return true, err
	}
	phase := r.at()
	if phase == measuring {
		p.recorded = append(p.recorded, nanos(time.Since(p.sent)))
	}
	if phase == stopping {
		return false, nil
	}
	return true, p.send()
}
