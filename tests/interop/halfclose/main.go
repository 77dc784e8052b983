// Halfclose is one side of a TLS connection that ends its directions one by one.
//
// It connects or accepts once (-role), does one thing (-act), and prints one line of JSON:
// how many bytes came, their SHA-256, and the error that ended them ("" is a clean end).
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"
)

const patience = 30 * time.Second

var (
	role    = flag.String("role", "client", "client or server")
	act     = flag.String("act", "ask", "ask, answer, cut or read")
	address = flag.String("address", "", "where the client connects to")
	cert    = flag.String("cert", "", "our certificate")
	key     = flag.String("key", "", "our key")
	ca      = flag.String("ca", "", "the CA of the other side")
	size    = flag.Int64("size", 0, "how many bytes to send")
	tls12   = flag.Bool("tls12", false, "speak TLS 1.2")
)

type result struct {
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
	Error  string `json:"error"`
}

func main() {
	flag.Parse()
	conn, err := open(config())
	if err != nil {
		log.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	if err := conn.Handshake(); err != nil {
		log.Fatal(err)
	}
	json.NewEncoder(os.Stdout).Encode(perform(conn))
	conn.NetConn().Close() // not conn.Close: that would say close_notify once more
}

func config() *tls.Config {
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	made := &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ServerName:   "localhost",
	}
	if *tls12 {
		made.MaxVersion = tls.VersionTLS12
	}
	return made
}

func open(config *tls.Config) (*tls.Conn, error) {
	if *role == "client" {
		conn, err := net.DialTimeout("tcp", *address, patience)
		if err != nil {
			return nil, err
		}
		return tls.Client(conn, config), nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	conn, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(conn, config), nil
}

func perform(conn *tls.Conn) result {
	switch *act {
	case "ask": // half-close, then read the whole reply
		send(conn)
		closeWrite(conn)
		return receive(conn)
	case "answer": // read to the half-close, then reply
		got := receive(conn)
		send(conn)
		closeWrite(conn)
		return got
	case "cut": // end TCP without a word of TLS
		send(conn)
		if err := conn.NetConn().(*net.TCPConn).CloseWrite(); err != nil {
			log.Fatal(err)
		}
		return receive(conn)
	default: // only send and read
		send(conn)
		return receive(conn)
	}
}

func send(conn *tls.Conn) {
	block := make([]byte, 65521)
	for i := range block {
		block[i] = byte(i*31 + (i>>8)*7)
	}
	for left := *size; left > 0; {
		n, err := conn.Write(block[:min(left, int64(len(block)))])
		if err != nil {
			log.Fatal(err)
		}
		left -= int64(n)
	}
}

func closeWrite(conn *tls.Conn) {
	if err := conn.CloseWrite(); err != nil {
		log.Fatal(err)
	}
}

func receive(conn *tls.Conn) result {
	sum := sha256.New()
	n, err := io.Copy(sum, conn)
	got := result{Bytes: n, Digest: hex.EncodeToString(sum.Sum(nil))}
	if err != nil {
		got.Error = err.Error()
	}
	return got
}
