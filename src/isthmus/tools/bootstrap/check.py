"""Check every step between a node and kube-apiserver; rules.py interprets the results.

The code blocks and changes nothing. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from isthmus.errors import ConfigError, KubeError
from isthmus.frame.finding import CheckState
from isthmus.net import host_links
from isthmus.net.certificates import TlsFiles, check_files
from isthmus.net.contexts import client_context
from isthmus.net.host_links import Address, kernel_of_this_host
from isthmus.net.host_only import has_guard
from isthmus.net.settings_bind import parse_bind_address
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.settings.parsing import check_host, check_pair
from isthmus.tools.bootstrap import rules as bootstrap
from isthmus.tools.bootstrap.probe import CutError, PeerCertificate, TlsError, TlsProbe
from isthmus.tools.bootstrap.rules import AddressSeen, CheckReport, CheckStep, StepName
from isthmus.values import HostPort, is_address

if TYPE_CHECKING:
    from isthmus.kube.kubeconfig import Access

_MOST_BYTES = 64 * 1024 * 1024
_REFUSED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """What to check, and where the agent's admin port is.

    Without a ``kubeconfig`` the endpoints are not checked.
    """

    at: HostPort
    admin: HostPort
    ca_pem: str
    server_name: str = ""
    kubeconfig: str = ""
    kubeconfig_server: str = ""
    admin_tls: ssl.SSLContext | None = None
    timeout_s: float = 15.0


class BootstrapCheck:
    """One check of all steps; call ``run`` once."""

    def __init__(
        self, asked: CheckInput, told: Callable[[CheckStep], None] = lambda _: None
    ) -> None:
        """Call ``told`` with each step when it is done."""
        self._asked = asked
        self._told = told
        self._probe = TlsProbe(
            at=asked.at,
            ca_pem=asked.ca_pem,
            name=asked.server_name or asked.at.host,
            timeout_s=asked.timeout_s,
        )
        self._snapshot: Mapping[str, Any] = {}
        self._seen: AddressSeen | None = None
        self._certificate: PeerCertificate | None = None

    def run(self) -> CheckReport:
        """Take the steps one after the other."""
        done: dict[StepName, CheckStep] = {}
        for name in StepName:
            step = bootstrap.skipped_for(name, done)
            if step is None:
                step = self._taken(name)
            done[name] = step
            self._told(step)
        return CheckReport(tuple(done.values()))

    def _taken(self, name: StepName) -> CheckStep:
        take: Callable[[], CheckStep] = getattr(self, f"_take_{name.value}")
        try:
            return take()
        except CutError as cut:  # it worked a moment ago
            return bootstrap.failed(name, f"the connection was cut: {cut}", "try again")
        except (ConfigError, KubeError) as error:
            return bootstrap.failed(name, str(error), "")
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # Any program may listen on that port and answer anything.
            return bootstrap.failed(
                name, f"cannot decode the answer: {error!r}", "check which program listens there"
            )

    # One method for each step, named as in StepName.

    def _take_kubeconfig(self) -> CheckStep:
        name, asked = StepName.KUBECONFIG, self._asked
        if not asked.kubeconfig:
            return CheckStep(name=name, state=CheckState.SKIPPED, found="none given (--kubeconfig)")
        wanted = f"https://{asked.at}"
        if asked.kubeconfig_server.rstrip("/") == wanted:
            return bootstrap.ok(name, f"{asked.kubeconfig} points to {wanted}")
        return bootstrap.warning(
            name,
            f"{asked.kubeconfig} points to {asked.kubeconfig_server}, not to {wanted}",
            "a kubelet with it does not use the agent; see isthmus bootstrap kubeconfig",
        )

    def _take_agent(self) -> CheckStep:
        name, at = StepName.AGENT, self._asked.admin
        try:
            found = self._ask_agent()
        except (OSError, ValueError, http.client.HTTPException) as exc:
            why = (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__
            return bootstrap.failed(
                name,
                f"no agent answers at its admin port {at}: {why.lower()}",
                "start the agent, or give its admin port with --agent-admin",
            )
        if found.get("kind") != "AgentSnapshot":
            return bootstrap.failed(
                name,
                f"the program at {at} is not an agent",
                "give the agent's admin port with --agent-admin",
            )
        self._snapshot = found
        return bootstrap.ok(name, f"{found['agentId']}, version {found['version']}")

    def _take_gate(self) -> CheckStep:
        return bootstrap.judge_gate(self._snapshot, CLUSTER_TO_MASTER)

    def _take_target(self) -> CheckStep:
        return bootstrap.judge_target(self._snapshot, self._asked.at)

    def _take_address(self) -> CheckStep:
        host = self._asked.at.host
        self._seen = look_at(ip_address(host))
        return bootstrap.judge_address(host, self._seen)

    def _take_rule(self) -> CheckStep:
        assert self._seen is not None  # otherwise this step is skipped
        return bootstrap.judge_rule(self._asked.at.host, self._seen)

    def _take_link(self) -> CheckStep:
        return bootstrap.judge_link(self._snapshot)

    def _take_feature(self) -> CheckStep:
        return bootstrap.judge_feature(self._snapshot, CLUSTER_TO_MASTER)

    def _take_listener(self) -> CheckStep:
        why = self._probe.accepts()
        if not why:
            return bootstrap.ok(StepName.LISTENER, f"{self._asked.at} accepts")
        waits = (self._snapshot.get("nodeTraffic") or {}).get("waitsFor", "")
        return bootstrap.failed(
            StepName.LISTENER,
            f"{self._asked.at} does not accept: {why.lower()}",
            f"the agent {waits}" if waits else "start the agent with --target for this port",
        )

    def _take_destination(self) -> CheckStep:
        """Check that anything answers; the next step checks that it speaks TLS."""
        try:
            self._certificate = self._probe.certificate()
        except CutError as cut:
            try:
                found = self._ask_agent()
            except (OSError, ValueError, http.client.HTTPException):
                found = {}
            return bootstrap.judge_cut(found, cut.client, f"the connection was cut: {cut}".lower())
        except TlsError:
            pass
        return bootstrap.ok(StepName.DESTINATION, "the server permits and reaches it")

    def _take_certificate(self) -> CheckStep:
        name = StepName.CERTIFICATE
        try:
            self._certificate = self._certificate or self._probe.certificate()
        except TlsError as error:
            if error.code:
                return bootstrap.failed(
                    name,
                    f"the certificate is not trusted: {error}",
                    "give the CA that signed kube-apiserver's certificate, in a cluster of kubeadm"
                    " /etc/kubernetes/pki/ca.crt",
                )
            return bootstrap.failed(
                name,
                f"no TLS: {error}",
                "check that --target of the agent leads to the secure port of kube-apiserver",
            )
        return bootstrap.ok(name, "signed by a trusted authority")

    def _take_name(self) -> CheckStep:
        assert self._certificate is not None
        trouble = self._probe.trouble(check_name=True, check_time=False)
        return bootstrap.judge_name(
            self._probe.name,
            self._certificate.names,
            matches=trouble is None or not trouble.is_name,
            chosen=bool(self._asked.server_name),
        )

    def _take_expiry(self) -> CheckStep:
        assert self._certificate is not None
        trouble = self._probe.trouble(check_name=False, check_time=True)
        strict = str(trouble) if trouble is not None and trouble.is_time else ""
        found = self._certificate
        return bootstrap.judge_expiry(found.not_before, found.not_after, datetime.now(UTC), strict)

    def _take_api(self) -> CheckStep:
        try:
            status, body = self._probe.get("/version")
        except TlsError as error:
            return bootstrap.failed(
                StepName.API, str(error), "check where --target of the agent leads"
            )
        body = body if isinstance(body, dict) else {}
        version = str(body.get("gitVersion", ""))[:50]
        return bootstrap.judge_answer(status, version, body.get("kind") == "Status")

    def _take_endpoints(self) -> CheckStep:
        name, asked = StepName.ENDPOINTS, self._asked
        if not asked.kubeconfig:
            return CheckStep(
                name=name, state=CheckState.SKIPPED, found="no credentials (--kubeconfig)"
            )
        from isthmus.kube.resources import kubernetes_endpoints

        try:
            found = asyncio.run(kubernetes_endpoints(asked.kubeconfig, timeout_s=asked.timeout_s))
        except KubeError as error:
            if error.status in _REFUSED:
                return CheckStep(
                    name=name, state=CheckState.SKIPPED, found=f"not permitted: {error}"
                )
            return bootstrap.failed(name, str(error), "check the kubeconfig")
        return bootstrap.judge_endpoints(asked.at, found)

    def _ask_agent(self) -> Mapping[str, Any]:
        at, tls = self._asked.admin, self._asked.admin_tls
        timeout = self._asked.timeout_s
        asking = (
            http.client.HTTPSConnection(at.host, at.port, timeout=timeout, context=tls)
            if tls is not None
            else http.client.HTTPConnection(at.host, at.port, timeout=timeout)
        )
        try:
            asking.request("GET", "/snapshot?limit=1")
            answer = asking.getresponse()
            body = answer.read(_MOST_BYTES)
            found = json.loads(body) if answer.status == 200 else {}
        finally:
            asking.close()
        return found if isinstance(found, dict) else {}


def look_at(address: Address) -> AddressSeen | None:
    """The interface with the address, and whether it is guarded; None if this host lacks it.

    Raises:
        ConfigError: the kernel does not answer.
    """
    with kernel_of_this_host() as kernel:
        held = host_links.addresses(kernel, address.version)
        able = host_links.allowed(kernel)
    one = next((each for each in held if each.address == address), None)
    if one is None:
        return None
    return AddressSeen(
        interface=one.interface,
        ours=one.ours,
        ruled=one.ruled,
        guarded=has_guard(address) if able else None,
    )


_HTTPS = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """The flags of ``isthmus bootstrap check``; an empty text means not given."""

    bind_address: str = ""
    local_port: int | None = None
    kubeconfig: str = ""
    ca_cert: str = ""
    tls_server_name: str = ""
    agent_admin: str
    agent_admin_ca: str = ""
    agent_admin_cert: str = ""
    agent_admin_key: str = ""
    timeout_s: float
    default_port: int


def check_input(flags: CheckFlags) -> CheckInput:
    """Collect what to check; flags override the kubeconfig.

    Raises:
        ConfigError: a flag or a file is wrong, or no address is known.
    """
    access = _read(flags.kubeconfig) if flags.kubeconfig else None
    name = flags.tls_server_name
    if name:
        check_host("tls-server-name", name)
    return CheckInput(
        at=_where(flags, access),
        ca_pem=_authorities(flags.ca_cert, access, flags.kubeconfig),
        server_name=name or (access.server_name if access else None) or "",
        kubeconfig=flags.kubeconfig,
        kubeconfig_server=access.config.cluster.server if access else "",
        admin=_admin(flags.agent_admin),
        admin_tls=_admin_tls(flags.agent_admin_ca, flags.agent_admin_cert, flags.agent_admin_key),
        timeout_s=flags.timeout_s,
    )


def _read(kubeconfig: str) -> Access:
    from isthmus.kube.kubeconfig import read_config

    return read_config(kubeconfig)


def _where(flags: CheckFlags, access: Access | None) -> HostPort:
    if flags.bind_address:
        address = parse_bind_address(flags.bind_address)
        return HostPort(str(address), flags.local_port or flags.default_port)
    if access is None:
        raise ConfigError("nothing to check: give --bind-address, or --kubeconfig of the kubelet")
    url = urlsplit(access.config.cluster.server)
    if url.scheme != "https" or not is_address(url.hostname or ""):
        raise ConfigError(
            f"--kubeconfig {flags.kubeconfig} points to {access.config.cluster.server}, which is"
            " not an agent's address: give --bind-address as well"
        )
    address = parse_bind_address(url.hostname or "")
    return HostPort(str(address), flags.local_port or url.port or _HTTPS)


def _authorities(ca_cert: str, access: Access | None, kubeconfig: str) -> str:
    if ca_cert:
        files = TlsFiles("", "", ca_cert, labels=("", "", "--ca-cert"))
        check_files(files, purpose="client")
        return Path(ca_cert).read_text(encoding="utf-8", errors="replace")
    if access is None:
        return ""
    cluster = access.config.cluster
    try:
        if cluster.certificate_auth_data:
            pem = base64.b64decode(cluster.certificate_auth_data).decode()
        elif cluster.certificate_auth:
            pem = Path(access.config.abs_file(cluster.certificate_auth)).read_text()
        else:
            return ""
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ValueError, OSError) as exc:  # an ssl.SSLError is an OSError
        raise ConfigError(
            f"--kubeconfig {kubeconfig}: its certificate-authority cannot be used"
        ) from exc
    return pem


def _admin(text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"--agent-admin: {error}") from error


def _admin_tls(ca: str, cert: str, key: str) -> ssl.SSLContext | None:
    check_pair("agent-admin-cert", cert, "agent-admin-key", key)
    if not ca:
        if cert:
            raise ConfigError("--agent-admin-cert needs --agent-admin-ca as well")
        return None
    labels = ("--agent-admin-cert", "--agent-admin-key", "--agent-admin-ca")
    files = TlsFiles(cert, key, ca, labels=labels)
    check_files(files, purpose="client")
    return client_context(files)
