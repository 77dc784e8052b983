package load

import (
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
)

// loop accepts, reads the first byte, and serves the small exchanges itself, on one thread
// with plain system calls; connections that move bulk go to a goroutine each.
type loop struct {
	target   *target
	poll     int
	listener int
	modes    map[int]byte // by descriptor; 0: the first byte has not come yet
	buffer   []byte
}

func newLoop(t *target, listener net.Listener) (*loop, error) {
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	file.Close()
	listener.Close()
	// Accepted sockets inherit both.
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	l := &loop{target: t, poll: poll, listener: fd, modes: map[int]byte{}, buffer: make([]byte, 64<<10)}
	return l, l.add(fd)
}

func (l *loop) add(fd int) error {
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}
	return syscall.EpollCtl(l.poll, syscall.EPOLL_CTL_ADD, fd, &event)
}

// run serves until the process ends; an error is fatal for the benchmark.
func (l *loop) run() error {
	runtime.LockOSThread()
	events := make([]syscall.EpollEvent, 256)
	for {
		n, err := syscall.EpollWait(l.poll, events, -1)
		if err != nil && err != syscall.EINTR {
			return err
		}
		for i := 0; i < n; i++ {
			fd := int(events[i].Fd)
			if fd == l.listener {
				err = l.accept()
			} else {
				err = l.ready(fd)
			}
			if err != nil {
				return err
			}
		}
	}
}

func (l *loop) accept() error {
	for {
		fd, _, err := syscall.Accept4(l.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		switch err {
		case nil:
			l.modes[fd] = 0
			if err := l.add(fd); err != nil {
				return err
			}
		case syscall.EAGAIN:
			return nil
		case syscall.EINTR, syscall.ECONNABORTED:
		default:
			return err
		}
	}
}

// ready reads once. A peer's error or end closes its connection, nothing else.
func (l *loop) ready(fd int) error {
	mode := l.modes[fd]
	part := l.buffer
	if mode == 0 {
		part = part[:1] // what follows may belong to a goroutine
	}
	n, errno := readReady(fd, part)
	if errno == syscall.EAGAIN || errno == syscall.EINTR {
		return nil
	}
	if errno != 0 || n == 0 {
		l.close(fd, mode)
		return nil
	}
	if mode == 0 {
		return l.first(fd, part[0])
	}
	// Echo carries one small request at a time, so the answer always fits.
	if _, errno := writeReady(fd, part[:n]); errno != 0 {
		l.close(fd, mode)
	}
	return nil
}

func (l *loop) first(fd int, mode byte) error {
	if mode != modeStats {
		atomic.AddInt64(&l.target.active, 1)
	}
	if mode == modeOne || mode == modeEcho {
		l.modes[fd] = mode
		if mode == modeOne {
			if _, errno := writeReady(fd, l.buffer[:1]); errno != 0 { // still the byte just read
				l.close(fd, mode)
			}
		}
		return nil
	}
	if err := syscall.EpollCtl(l.poll, syscall.EPOLL_CTL_DEL, fd, nil); err != nil {
		return err
	}
	delete(l.modes, fd)
	file := os.NewFile(uintptr(fd), "connection")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return err
	}
	go l.target.serve(conn, mode)
	return nil
}

func (l *loop) close(fd int, mode byte) {
	delete(l.modes, fd)
	syscall.Close(fd)
	if mode != 0 {
		atomic.AddInt64(&l.target.active, -1)
	}
}
