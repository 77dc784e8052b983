"""The netlink part of ipvs mode: virtual servers, and the addresses of Services.

Virtual servers use the generic netlink family IPVS with pyroute2's messages, attribute by attribute
as in linux/ip_vs.h. pyroute2's own IPVSService lacks IPv6 netmasks and the timeouts.

The node needs the addresses of Services so that their packets are delivered to it. They are on the
dummy interface ``kube-ipvs0``, as in kube-proxy. On a kernel without dummy interfaces they are on
``lo``, with host scope and a metric that identifies them.

pyroute2 is slow to import: import this module only where it is used.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Self, assert_never

from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink import (
    CTRL_CMD_GETFAMILY,
    GENL_ID_CTRL,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    ctrlmsg,
)
from pyroute2.netlink.generic import GenericNetlinkSocket
from pyroute2.netlink.generic import ipvs as codes

from isthmus.programs.node_proxy.kernel.backend import ApplyError, NoIpvsError
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddDestination,
    AddServer,
    ChangeServer,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    IpvsFlags,
    KernelServer,
    RemoveDestination,
    RemoveServer,
    ServerKey,
    VirtualServer,
    WeighDestination,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol

_DO = NLM_F_REQUEST | NLM_F_ACK
_DUMP = NLM_F_REQUEST | NLM_F_DUMP
_ALL_FLAGS = 0xFFFFFFFF
_MASQUERADE = 0  # IP_VS_CONN_F_MASQ: replies return through this node
_PROTOCOLS = {
    PortProtocol.TCP: socket.IPPROTO_TCP,
    PortProtocol.UDP: socket.IPPROTO_UDP,
    PortProtocol.SCTP: socket.IPPROTO_SCTP,
}
_BY_NUMBER = {number: protocol for protocol, number in _PROTOCOLS.items()}
_FAMILIES = {IpFamily.IPV4: socket.AF_INET, IpFamily.IPV6: socket.AF_INET6}


class IpvsMessage(codes.ipvsmsg):  # type: ignore[misc]  # pyroute2 has no types
    """A message of the family; pyroute2's own does not decode the timeouts."""

    nla_map = (
        ("IPVS_CMD_ATTR_UNSPEC", "none"),
        ("IPVS_CMD_ATTR_SERVICE", "service"),
        ("IPVS_CMD_ATTR_DEST", "dest"),
        ("IPVS_CMD_ATTR_DAEMON", "hex"),
        ("IPVS_CMD_ATTR_TIMEOUT_TCP", "uint32"),
        ("IPVS_CMD_ATTR_TIMEOUT_TCP_FIN", "uint32"),
        ("IPVS_CMD_ATTR_TIMEOUT_UDP", "uint32"),
    )


Ask = Callable[[IpvsMessage, int], Iterable[Any]]


class IpvsTable:
    """The kernel's table of virtual servers, a context manager; blocks.

    ``ask`` sends a message with flags and returns the answers; the kernel's by default.
    """

    def __init__(self, ask: Ask | None = None) -> None:
        self._given = ask
        self._kernel: _Kernel | None = None

    def __enter__(self) -> Self:
        """Open the netlink socket.

        Raises:
            NoIpvsError: the kernel has no IPVS.
            ApplyError: access is denied.
        """
        if self._given is None:
            try:
                self._kernel = _Kernel()
            except (NetlinkError, OSError) as error:
                raise ApplyError(f"IPVS: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def servers(self, family: IpFamily) -> list[KernelServer]:
        """Every virtual server of a family, with its destinations.

        Raises:
            ApplyError: access is denied.
        """
        found = []
        for answer in self._do(_message(codes.IPVS_CMD_GET_SERVICE), "list the servers", _DUMP):
            server = _server(answer, family)
            if server is not None:
                of = self.destinations(server.key)
                found.append(KernelServer(server=server, destinations=of))
        return found

    def destinations(self, key: ServerKey) -> Mapping[IpvsDestination, DestinationState]:
        """The destinations of a virtual server with their numbers of connections.

        Raises:
            ApplyError: the server does not exist.
        """
        message = _message(codes.IPVS_CMD_GET_DEST, _key_attributes(key))
        answers = self._do(message, f"list the destinations of {key}", _DUMP)
        return dict(_destination(answer) for answer in answers)

    def apply(self, command: IpvsCommand) -> None:
        """Execute a command.

        Raises:
            ApplyError: the kernel refused.
        """
        self._do(message_of(command), str(command), _DO)

    def set_timeouts(self, *, tcp_s: int, tcp_fin_s: int, udp_s: int) -> None:
        """Set the timeouts of connections; 0 keeps the current value.

        Raises:
            ApplyError: the kernel refused.
        """
        message = IpvsMessage()
        message["cmd"] = codes.IPVS_CMD_SET_CONFIG
        message["version"] = codes.GENL_VERSION
        message["attrs"] = [
            ("IPVS_CMD_ATTR_TIMEOUT_TCP", tcp_s),
            ("IPVS_CMD_ATTR_TIMEOUT_TCP_FIN", tcp_fin_s),
            ("IPVS_CMD_ATTR_TIMEOUT_UDP", udp_s),
        ]
        self._do(message, "set the timeouts", _DO)

    def _do(self, message: IpvsMessage, what: str, flags: int) -> list[Any]:
        ask = self._given or (self._kernel.ask if self._kernel is not None else None)
        if ask is None:
            raise RuntimeError("IpvsTable used outside of its with block")
        try:
            return list(ask(message, flags))
        except (NetlinkError, OSError) as error:
            raise ApplyError(f"IPVS: {error}", rule=what) from error


def message_of(command: IpvsCommand) -> IpvsMessage:
    match command:
        case AddServer():
            return _message(codes.IPVS_CMD_NEW_SERVICE, _server_attributes(command.server))
        case ChangeServer():
            return _message(codes.IPVS_CMD_SET_SERVICE, _server_attributes(command.server))
        case RemoveServer():
            return _message(codes.IPVS_CMD_DEL_SERVICE, _key_attributes(command.key))
        case AddDestination():
            return _to(codes.IPVS_CMD_NEW_DEST, command.key, command.destination, 1)
        case WeighDestination():
            return _to(codes.IPVS_CMD_SET_DEST, command.key, command.destination, command.weight)
        case RemoveDestination():
            return _to(codes.IPVS_CMD_DEL_DEST, command.key, command.destination, None)
        case _:
            assert_never(command)


def _message(
    number: int,
    service: list[tuple[str, object]] | None = None,
    dest: list[tuple[str, object]] | None = None,
) -> IpvsMessage:
    message = IpvsMessage()
    message["cmd"] = number
    message["version"] = codes.GENL_VERSION
    attributes: list[tuple[str, object]] = []
    if service is not None:
        attributes.append(("IPVS_CMD_ATTR_SERVICE", {"attrs": service}))
    if dest is not None:
        attributes.append(("IPVS_CMD_ATTR_DEST", {"attrs": dest}))
    message["attrs"] = attributes
    return message


def _to(
    number: int, key: ServerKey, destination: IpvsDestination, weight: int | None
) -> IpvsMessage:
    dest: list[tuple[str, object]] = [
        ("IPVS_DEST_ATTR_ADDR_FAMILY", _family_number(destination.ip)),
        ("IPVS_DEST_ATTR_ADDR", destination.ip),
        ("IPVS_DEST_ATTR_PORT", destination.port),
    ]
    if weight is not None:
        dest += [
            ("IPVS_DEST_ATTR_FWD_METHOD", _MASQUERADE),
            ("IPVS_DEST_ATTR_WEIGHT", weight),
            ("IPVS_DEST_ATTR_U_THRESH", 0),
            ("IPVS_DEST_ATTR_L_THRESH", 0),
        ]
    return _message(number, _key_attributes(key), dest)


def _family_number(ip: str) -> int:
    return int(socket.AF_INET6 if ":" in ip else socket.AF_INET)


def _key_attributes(key: ServerKey) -> list[tuple[str, object]]:
    return [
        ("IPVS_SVC_ATTR_AF", _family_number(key.address)),
        ("IPVS_SVC_ATTR_PROTOCOL", int(_PROTOCOLS[key.protocol])),
        ("IPVS_SVC_ATTR_ADDR", key.address),
        ("IPVS_SVC_ATTR_PORT", key.port),
    ]


def _server_attributes(server: VirtualServer) -> list[tuple[str, object]]:
    # Affinity is by full address: a netmask in IPv4, a prefix length in host order in IPv6.
    whole = socket.inet_ntoa((128).to_bytes(4, sys.byteorder))
    netmask = whole if ":" in server.key.address else "255.255.255.255"
    return [
        *_key_attributes(server.key),
        ("IPVS_SVC_ATTR_SCHED_NAME", server.scheduler),
        ("IPVS_SVC_ATTR_FLAGS", {"flags": int(server.flags), "mask": _ALL_FLAGS}),
        ("IPVS_SVC_ATTR_TIMEOUT", server.timeout_s),
        ("IPVS_SVC_ATTR_NETMASK", netmask),
    ]


def _server(answer: Any, family: IpFamily) -> VirtualServer | None:
    """Decode a server of a family; None for other families and for firewall marks."""
    service = answer.get_attr("IPVS_CMD_ATTR_SERVICE")
    protocol = _BY_NUMBER.get(service.get_attr("IPVS_SVC_ATTR_PROTOCOL"))
    if service.get_attr("IPVS_SVC_ATTR_AF") != _FAMILIES[family] or protocol is None:
        return None
    flags = IpvsFlags(service.get_attr("IPVS_SVC_ATTR_FLAGS")["flags"]) & ~IpvsFlags.HASHED
    return VirtualServer(
        key=ServerKey(
            service.get_attr("IPVS_SVC_ATTR_ADDR"),
            service.get_attr("IPVS_SVC_ATTR_PORT"),
            protocol,
        ),
        scheduler=service.get_attr("IPVS_SVC_ATTR_SCHED_NAME"),
        flags=flags,
        timeout_s=service.get_attr("IPVS_SVC_ATTR_TIMEOUT"),
    )


def _destination(answer: Any) -> tuple[IpvsDestination, DestinationState]:
    dest = answer.get_attr("IPVS_CMD_ATTR_DEST")
    connections = sum(
        dest.get_attr(f"IPVS_DEST_ATTR_{kind}_CONNS") or 0 for kind in ("ACTIVE", "INACT")
    )
    return (
        IpvsDestination(dest.get_attr("IPVS_DEST_ATTR_ADDR"), dest.get_attr("IPVS_DEST_ATTR_PORT")),
        DestinationState(weight=dest.get_attr("IPVS_DEST_ATTR_WEIGHT"), connections=connections),
    )


class _Kernel:
    """A netlink socket for the IPVS family."""

    def __init__(self) -> None:
        self._socket = GenericNetlinkSocket()
        try:
            # Resolving an unknown family makes pyroute2 log an error: look it up first.
            self._socket.bind("nlctrl", ctrlmsg)
            if not any(
                each.get_attr("CTRL_ATTR_FAMILY_NAME") == codes.GENL_NAME for each in self._all()
            ):
                raise NoIpvsError
            self._socket.bind(codes.GENL_NAME, IpvsMessage)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, message: IpvsMessage, flags: int) -> list[Any]:
        found = self._socket.nlm_request(message, msg_type=self._socket.prid, msg_flags=flags)
        return list(found)

    def close(self) -> None:
        self._socket.close()

    def _all(self) -> list[Any]:
        message = ctrlmsg()
        message["cmd"] = CTRL_CMD_GETFAMILY
        message["version"] = 1
        return list(self._socket.nlm_request(message, msg_type=GENL_ID_CTRL, msg_flags=_DUMP))


DEVICE = "kube-ipvs0"
_LO = "lo"
_LO_INDEX = 1
_LO_LABEL = "lo:kube-ipvs"
_METRIC = 20250100
# linux/if_addr.h, rtnetlink.h
_NODAD = 0x02
_NOPREFIXROUTE = 0x200
_FOREVER = 0xFFFFFFFF
_SCOPE_HOST = 254


class ServiceAddresses:
    """The addresses of Services of one family in the network namespace of the calling thread."""

    def __init__(self, family: IpFamily) -> None:
        self._family = family
        self._on_lo = False

    def open(self) -> bool:
        """Create the interface if necessary; False if addresses go on ``lo`` instead.

        Raises:
            ApplyError: access is denied.
        """
        with _kernel() as kernel:
            if not kernel.link_lookup(ifname=DEVICE):
                try:
                    kernel.link("add", kind="dummy", ifname=DEVICE)
                except NetlinkError as error:
                    # The other family may have created it in the meantime.
                    if error.code not in (errno.EOPNOTSUPP, errno.EEXIST):
                        raise
                    self._on_lo = error.code == errno.EOPNOTSUPP
        return not self._on_lo

    def ours(self) -> set[str]:
        """The addresses of Services that this node has now."""
        with _kernel() as kernel:
            return {address for address, ours in self._list(kernel) if ours}

    def node(self) -> set[str]:
        """The other addresses of this node, without loopback and IPv6 link-local ones."""
        with _kernel() as kernel:
            others = {address for address, ours in self._list(kernel) if not ours}
        found = {text: ip_address(text) for text in others}
        return {
            text
            for text, ip in found.items()
            if not ip.is_loopback and not (ip.version == 6 and ip.is_link_local)
        }

    def change(self, *, add: set[str], remove: set[str]) -> None:
        """Add and remove addresses, ignoring those that already exist or are gone.

        Raises:
            ApplyError: the kernel refused.
        """
        if not add and not remove:
            return
        with _kernel() as kernel:
            index = self._index(kernel)
            for address in sorted(add):
                kernel.addr(
                    "replace", index=index, address=address, prefixlen=self._bits, **self._how()
                )
            for address in sorted(remove):
                try:
                    kernel.addr("del", index=index, address=address, prefixlen=self._bits)
                except NetlinkError as error:
                    if error.code != errno.EADDRNOTAVAIL:
                        raise

    def close(self) -> None:
        """Remove every Service address, and the interface if the other family does not use it.

        Raises:
            ApplyError: the kernel refused.
        """
        with _kernel() as kernel:
            self._on_lo = not kernel.link_lookup(ifname=DEVICE)
        self.change(add=set(), remove=self.ours())
        if self._on_lo:
            return
        with _kernel() as kernel:
            index = self._index(kernel)
            left = [
                message
                for message in kernel.get_addr(index=index)
                if not ip_address(message.get_attr("IFA_ADDRESS")).is_link_local
            ]
            if not left:
                kernel.link("del", index=index)

    @property
    def _bits(self) -> int:
        return 32 if self._family is IpFamily.IPV4 else 128

    def _index(self, kernel: IPRoute) -> int:
        if self._on_lo:
            return _LO_INDEX
        found = kernel.link_lookup(ifname=DEVICE)
        if not found:
            raise ApplyError(f"the interface {DEVICE} has disappeared")
        return int(found[0])

    def _how(self) -> dict[str, object]:
        if not self._on_lo:
            return {}
        if self._family is IpFamily.IPV4:
            return {
                "IFA_FLAGS": _NOPREFIXROUTE,
                "IFA_RT_PRIORITY": _METRIC,
                "scope": _SCOPE_HOST,
                "label": _LO_LABEL,
            }
        # IPv6 has no host scope; a deprecated address is not used as a source.
        return {
            "IFA_FLAGS": _NOPREFIXROUTE | _NODAD,
            "IFA_RT_PRIORITY": _METRIC,
            "IFA_CACHEINFO": {"ifa_preferred": 0, "ifa_valid": _FOREVER},
        }

    def _list(self, kernel: IPRoute) -> Iterator[tuple[str, bool]]:
        index = 0 if self._on_lo else self._index(kernel)
        for message in kernel.get_addr(family=_FAMILIES[self._family]):
            text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            marked = (message.get_attr("IFA_RT_PRIORITY") or 0) == _METRIC
            yield str(ip_address(text)), marked or message["index"] == index


@contextmanager
def _kernel() -> Iterator[IPRoute]:
    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        raise ApplyError(f"the kernel refused a Service address: {error}") from error
    except OSError as error:
        raise ApplyError(f"netlink is not available: {error}") from error
