"""A DNS server by UDP and TCP, in its own thread, that does what a test says, right or wrong."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from isthmus.net.name_service import NamePaths

#: What the name of a server begins with that is never answered.
HANGS = "hang"


class NameServer:
    """Answers from ``names``; ``seen`` has every question: name, kind, and how it came."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.names: dict[str, dict[str, list[str]]] = {}
        self.errors: dict[str, str] = {}
        #: Names that are answered with nothing but "truncated" by UDP.
        self.truncated: set[str] = set()
        #: The same of one kind alone.
        self.truncated_kinds: set[tuple[str, str]] = set()
        #: Names that are never answered by TCP.
        self.silent_tcp: set[str] = set()
        #: Names and kinds that are never answered.
        self.silent: set[tuple[str, str]] = set()
        #: Names before whose answer come a wrong id, another question's answer, and garbage.
        self.noisy: set[str] = set()
        #: Names whose answers wait until the test lets them go.
        self.held: set[str] = set()
        self._late: list[tuple[str, bytes, tuple[str, int]]] = []
        self.refuses_edns = False
        self.seen: list[tuple[str, str, str]] = []
        self.edns: list[bool] = []
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._told, self._tell = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="dns", daemon=True)
        self.port = 0

    def put(self, name: str, *addresses: str, cname: str = "") -> None:
        """Have a name."""
        records = self.names.setdefault(name, {})
        records["A"] = [it for it in addresses if ":" not in it]
        records["AAAA"] = [it for it in addresses if ":" in it]
        records["CNAME"] = [cname] if cname else []

    def asked(self, name: str) -> list[tuple[str, str]]:
        """How a name was asked for: the kinds, and by what."""
        return [(kind, by) for one, kind, by in list(self.seen) if one == name]

    def paths(
        self, directory: Path, *, resolv: str = "", nsswitch: str = "", hosts: str = ""
    ) -> NamePaths:
        """Write the files of a host that asks this server; empty: there is no nsswitch.conf."""
        (directory / "resolv.conf").write_text(f"nameserver {self.host}\n{resolv}\n")
        (directory / "hosts").write_text(hosts)
        if nsswitch:
            (directory / "nsswitch.conf").write_text(nsswitch)
        return NamePaths(
            resolv_conf=str(directory / "resolv.conf"),
            hosts=str(directory / "hosts"),
            nsswitch=str(directory / "nsswitch.conf"),
            dns_port=self.port,
        )

    def __enter__(self) -> Self:
        while True:  # a port that is free for both
            self._udp.bind((self.host, 0))
            self.port = self._udp.getsockname()[1]
            try:
                self._tcp.bind((self.host, self.port))
                break
            except OSError:
                self._udp.close()
                self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tell.close()
        self._thread.join(20)
        for sock in (self._udp, self._tcp, self._told):
            sock.close()

    def let_go(self, name: str) -> None:
        """Answer those that were held."""
        self.held.discard(name)
        for one, wire, peer in list(self._late):
            if one == name:
                self._udp.sendto(wire, peer)

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._udp, self._tcp, self._told], [], [])
            if self._told in ready:
                return
            if self._udp in ready:
                wire, peer = self._udp.recvfrom(65535)
                self._by_udp(wire, peer)
            if self._tcp in ready:
                sock, _ = self._tcp.accept()
                with sock, contextlib.suppress(OSError):
                    sock.settimeout(20)
                    self._by_tcp(sock)

    def _by_udp(self, wire: bytes, peer: tuple[str, int]) -> None:
        query = dns.message.from_wire(wire)
        name, kind = self._note(query, "udp")
        if name.startswith(HANGS) or (name, kind) in self.silent:
            return
        answer = self._answer(query, name, kind)
        if name in self.truncated or (name, kind) in self.truncated_kinds:
            answer = dns.message.make_response(query)
            answer.flags |= dns.flags.TC
        if name in self.noisy:
            for noise in self._noise(query, answer):
                self._udp.sendto(noise, peer)
        if name in self.held:
            self._late.append((name, answer.to_wire(), peer))
            return
        self._udp.sendto(answer.to_wire(), peer)

    def _by_tcp(self, sock: socket.socket) -> None:
        size = int.from_bytes(sock.recv(2, socket.MSG_WAITALL), "big")
        query = dns.message.from_wire(sock.recv(size, socket.MSG_WAITALL))
        name, kind = self._note(query, "tcp")
        if name in self.silent_tcp:
            sock.recv(1)  # until the client gives up
            return
        wire = self._answer(query, name, kind).to_wire()
        sock.sendall(len(wire).to_bytes(2, "big") + wire)

    def _note(self, query: dns.message.Message, by: str) -> tuple[str, str]:
        asked = query.question[0]
        name = asked.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(asked.rdtype)
        self.seen.append((name, kind, by))
        self.edns.append(query.edns >= 0)
        return name, kind

    def _answer(self, query: dns.message.Message, name: str, kind: str) -> dns.message.Message:
        answer = dns.message.make_response(query)
        if self.refuses_edns and query.edns >= 0:
            answer.use_edns(False)
            answer.set_rcode(dns.rcode.FORMERR)
        elif name in self.errors:
            answer.set_rcode(dns.rcode.from_text(self.errors[name]))
        elif name not in self.names:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        else:
            self._records(answer, name, kind)
        return answer

    def _records(self, answer: dns.message.Message, name: str, kind: str) -> None:
        records = self.names[name]
        for data in records.get("CNAME", []):
            answer.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "CNAME", f"{data}."))
        if records.get(kind):
            answer.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", kind, *records[kind]))

    def _noise(self, query: dns.message.Message, answer: dns.message.Message) -> list[bytes]:
        wrong = dns.message.from_wire(answer.to_wire())
        wrong.id = query.id ^ 1
        other = dns.message.make_response(dns.message.make_query("evil.example.", "A"))
        other.id = query.id
        lies = dns.rrset.from_text("evil.example.", 60, "IN", "A", "203.0.113.66")
        other.answer.append(lies)
        right_id = query.id.to_bytes(2, "big")
        return [
            wrong.to_wire(), other.to_wire(), b"", b"\0", right_id, right_id + b"\x81\x80",
            right_id + b"\xff" * 40,
        ]  # fmt: skip
