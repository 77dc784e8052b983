"""``isthmus socks5-proxy``: a sidecar whose clients speak SOCKS5.

The frontend greets, asks for a password if one is set, dials, answers and joins. Only CONNECT is
supported, because the tunnel carries only TCP. wire/socks5.py parses the messages.
"""

from __future__ import annotations

import logging
import socket
from enum import Enum

from isthmus.errors import DialFailure
from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.net.raw import RawSocket
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.frontend import SidecarClient, SidecarOwner
from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics, Unserved
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.sidecar.program import DialingPart, SidecarListening
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.tunnel.end import BaseEnd
from isthmus.wire.socks5 import (
    Choice,
    Code,
    Command,
    LoginAnswer,
    Method,
    Reply,
    Request,
    SocksError,
    take_greeting,
    take_login,
    take_request,
)

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.socks5")

#: RFC 1928 §6 has no code for a dial that timed out. "TTL expired" is what Tor sends, and leaves
#: "host unreachable" to hosts that are known to be.
CODE_OF: dict[DialFailure, Code] = {
    DialFailure.REFUSED: Code.REFUSED,
    DialFailure.TIMED_OUT: Code.TTL_EXPIRED,
    DialFailure.UNREACHABLE: Code.HOST_UNREACHABLE,
    DialFailure.UNRESOLVED: Code.HOST_UNREACHABLE,
    DialFailure.DENIED: Code.NOT_ALLOWED,
    DialFailure.NO_AGENT: Code.FAILURE,
    DialFailure.AGENT_LOST: Code.FAILURE,
    DialFailure.TOO_MANY: Code.FAILURE,
    DialFailure.INTERNAL: Code.FAILURE,
}
# The text of the system (net/connect.py) and of Go's agents. DialFailure does not distinguish them.
_NETWORK_UNREACHABLE = ("ENETUNREACH", "ENETDOWN", "network is unreachable")


def code_for(failure: DialFailure, detail: str) -> Code:
    """The reply code of a failed dial; the detail distinguishes network and host."""
    if failure is DialFailure.UNREACHABLE and any(text in detail for text in _NETWORK_UNREACHABLE):
        return Code.NETWORK_UNREACHABLE
    return CODE_OF[failure]


class Socks5Stage(Enum):
    """The next message of a client."""

    GREETING = "its methods"
    LOGIN = "its user name and password"
    REQUEST = "its target"
    DONE = "nothing"


class Socks5Client(SidecarClient):
    """One client of the SOCKS5 sidecar."""

    __slots__ = ("_stage",)

    frontend = "socks5"

    def __init__(self, owner: SidecarOwner, sock: socket.socket) -> None:
        self._stage = Socks5Stage.GREETING
        super().__init__(owner, sock)

    def heard(self) -> None:
        """Take all complete messages off the buffer."""
        try:
            while self.end is not None and self._step(self.end):
                continue
        except SocksError as exc:
            self.unserved(Unserved.BAD_REQUEST, exc.reason, exc.answer)

    def _step(self, end: SocketEnd) -> bool:
        """Take one message; True if there may be another."""
        if self._stage is Socks5Stage.GREETING:
            greeting = take_greeting(self.buffer)
            return greeting is not None and self._choose(end, greeting.methods)
        if self._stage is Socks5Stage.LOGIN:
            login = take_login(self.buffer)
            return login is not None and self._check(end, login.username, login.password)
        if self._stage is Socks5Stage.REQUEST:
            request = take_request(self.buffer)
            if request is not None:
                self._stage = Socks5Stage.DONE
                self._serve(request)
        return False

    def _choose(self, end: SocketEnd, methods: bytes) -> bool:
        wanted = Method.NONE if self.owner.credentials() is None else Method.PASSWORD
        if wanted not in methods:
            offered = ", ".join(f"{method:#04x}" for method in methods[:16]) or "none"
            self.unserved(
                Unserved.NO_METHOD,
                f"method {wanted:#04x} is required, the client offered {offered}",
                Choice(Method.NO_ACCEPTABLE).to_bytes(),
            )
            return False
        self._stage = Socks5Stage.REQUEST if wanted is Method.NONE else Socks5Stage.LOGIN
        end.write(Choice(wanted).to_bytes())
        return True

    def _check(self, end: SocketEnd, username: bytes, password: bytes) -> bool:
        wanted = self.owner.credentials()
        if wanted is not None and not wanted.match(username, password):
            # RFC 1929 §2: anything but 0 is a failure, and the connection must be closed.
            self.unserved(Unserved.WRONG_PASSWORD, answer=LoginAnswer(False).to_bytes())
            return False
        self._stage = Socks5Stage.REQUEST
        end.write(LoginAnswer(True).to_bytes())
        return True

    def _serve(self, request: Request) -> None:
        if request.command == Command.CONNECT:
            self.connect(request.target)
            return
        if request.command == Command.UDP_ASSOCIATE:
            what = "UDP ASSOCIATE"
        else:
            what = "BIND" if request.command == Command.BIND else f"{request.command:#04x}"
        self.owner.once.log(
            "tcp only", _QUIET_S, _log, logging.WARNING,
            "TCP only: this proxy opens TCP connections to targets; it supports neither UDP nor"
            " incoming connections", command=what, source=self.source,
        )  # fmt: skip
        self.unserved(
            Unserved.NOT_SUPPORTED,
            f"TCP only, {what} is not supported",
            Reply(Code.COMMAND_NOT_SUPPORTED).to_bytes(),
        )

    def say_established(self, end: SocketEnd, far: BaseEnd) -> None:
        """Report success and the local address."""
        end.write(Reply(Code.SUCCEEDED, *_bound(far)).to_bytes())

    def say_failed(self, failure: DialFailure, detail: str) -> bytes:
        """Report the reply code of the failure."""
        return Reply(code_for(failure, detail)).to_bytes()


def _bound(far: BaseEnd) -> tuple[str, int]:
    """The local address of the connection; zero if it is not TCP."""
    if isinstance(far, RawSocket):
        try:
            name = far.sock.getsockname()
        except OSError:
            name = ""
        if isinstance(name, tuple):
            return str(name[0]).partition("%")[0], int(name[1])
    return "0.0.0.0", 0


def parts(ground: Ground[SidecarSettings, Socks5ProxyMetrics]) -> tuple[Part, ...]:
    """The parts of a SOCKS5 sidecar, foundations first."""
    settings = ground.settings
    allow_connections(settings.max_connections)
    password = PasswordFile(settings.username, settings.password_file)
    dialing, tunnels = DialingPart(ground), TunnelsPart(ground)
    connections = SidecarConnections(
        ground, tunnels.table, make=Socks5Client, dialer=dialing.dialer, password=password
    )
    listening = SidecarListening(ground, connections)
    return password, dialing, tunnels, connections, listening
