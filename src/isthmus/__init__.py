"""Isthmus joins a Kubernetes control plane and its cluster across a boundary, in both directions.

The words used everywhere, in code, logs, metrics and documents:

frontend     takes a connection from a client and learns where it wants to go
agent        runs in the far network and opens connections there
server       runs beside the control plane; frontends on one side, agents on the other
link         one authenticated connection between a server and an agent, carrying many streams
carrier      the connection below a link's session: TLS over TCP
session      the multiplexing protocol spoken over a carrier (yamux)
stream       one byte stream inside a session
dial         one request to open a connection to a target, with its deadline and its answer
dialer       opens the far side: directly, or through a link
target       the host and port a dial asks for
end          one side of a byte stream: a socket, a TLS connection, a stream
join         making two ends each other's peer
tunnel       two joined ends, from the accepted dial to the last byte
ending       how an end finished: cleanly, reset, lost, timed out
hand on      passing an agent's connection, as it is, to the server that it asked for
relay        passing a dial of another server to one's own agents
drain        taking no new dials while old tunnels finish
strategy     the rule that chooses an agent for a dial
network      a named set of targets that one group of agents can reach
destination  a control-plane address that nodes may reach
identity     who asked: the subject of a certificate, or a user id on a UNIX socket
"""

__version__ = "0.1.0"
