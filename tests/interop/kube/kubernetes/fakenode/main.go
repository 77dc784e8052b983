// Command fakenode is what a kube-apiserver finds on a node, as small as it can be: a kubelet on
// the Kubernetes streaming packages, a web server that is a pod, and the servers that webhooks and
// an aggregated API lead to. Each listens only when it is given an address. Every request it
// serves is one line of JSON on the standard output.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
)

// journal writes one line for each thing that happened.
type journal struct {
	lock sync.Mutex
	to   *json.Encoder
}

func (j *journal) note(entry map[string]any) {
	j.lock.Lock()
	defer j.lock.Unlock()
	if err := j.to.Encode(entry); err != nil {
		log.Fatal(err)
	}
}

var seen = &journal{to: json.NewEncoder(os.Stdout)}

func main() {
	kubelet := flag.String("kubelet", "", "serve a kubelet at this address")
	web := flag.String("web", "", "serve plain HTTP, as a pod would, at this address")
	hooks := flag.String("hooks", "", "serve webhooks and the aggregated API at this address")
	cert := flag.String("cert", "", "certificate file of kubelet and hooks")
	key := flag.String("key", "", "private key file of kubelet and hooks")
	clientCA := flag.String("client-ca", "", "the kubelet takes clients of this authority only")
	flag.Parse()

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	var serving sync.WaitGroup
	start := func(address string, handler http.Handler, config *tls.Config) {
		if address == "" {
			return
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			log.Fatal(err)
		}
		if config != nil {
			listener = tls.NewListener(listener, config)
		}
		serving.Go(func() { log.Fatal(http.Serve(listener, handler)) })
	}
	if *kubelet != "" {
		handler, err := newKubelet()
		if err != nil {
			log.Fatal(err)
		}
		strict := config.Clone()
		strict.ClientAuth = tls.RequireAndVerifyClientCert
		strict.ClientCAs = authorities(*clientCA)
		start(*kubelet, handler, strict)
	}
	start(*web, http.HandlerFunc(serveWeb), nil)
	start(*hooks, newHooks(), config)
	seen.note(map[string]any{"serving": true})
	serving.Wait()
}

func authorities(name string) *x509.CertPool {
	pem, err := os.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatalf("%s: no certificate in it", name)
	}
	return pool
}

func serveWeb(w http.ResponseWriter, req *http.Request) {
	seen.note(map[string]any{"web": req.URL.Path})
	fmt.Fprintf(w, "pod says %s %s\n", req.Method, req.URL.Path)
}
