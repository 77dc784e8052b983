// Proxyoracle tells which proxy golang.org/x/net/http/httpproxy chooses: one question and one
// answer a line, in JSON.
package main

import (
	"bufio"
	"encoding/json"
	"net"
	"net/url"
	"os"

	"golang.org/x/net/http/httpproxy"
)

type question struct {
	Environment map[string]string
	Host        string
	Port        string
}

type answer struct {
	Scheme   string
	Host     string
	Port     string
	User     []byte
	Password []byte
	HasUser  bool
}

func ask(q question) *answer {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"} {
		os.Unsetenv(name)
		if value, given := q.Environment[name]; given {
			os.Setenv(name, value)
		}
	}
	target := &url.URL{Scheme: "https", Host: net.JoinHostPort(q.Host, q.Port)}
	proxy, err := httpproxy.FromEnvironment().ProxyFunc()(target)
	if err != nil || proxy == nil {
		return nil
	}
	given := &answer{Scheme: proxy.Scheme, Host: proxy.Hostname(), Port: proxy.Port()}
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		given.User, given.Password = []byte(proxy.User.Username()), []byte(password)
		given.HasUser = true
	}
	return given
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			panic(err)
		}
		if err := answers.Encode(ask(q)); err != nil {
			panic(err)
		}
	}
}
