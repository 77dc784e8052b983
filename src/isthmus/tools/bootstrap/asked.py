"""What ``isthmus bootstrap check`` is asked, from flags and from the kubelet's kubeconfig."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from isthmus.errors import ConfigError
from isthmus.net.certificates import TlsFiles, check_files
from isthmus.net.contexts import client_context
from isthmus.net.settings_bind import parse_bind_address
from isthmus.settings.checks import check_host, check_pair
from isthmus.tools.bootstrap.check import CheckInput
from isthmus.values import HostPort, is_address

if TYPE_CHECKING:
    from isthmus.kube.kubeconfig import Access

_HTTPS = 443


def check_input(
    *,
    bind_address: str,
    local_port: int | None,
    kubeconfig: str,
    ca_cert: str,
    tls_server_name: str,
    agent_admin: str,
    agent_admin_ca: str,
    agent_admin_cert: str,
    agent_admin_key: str,
    timeout_s: float,
    default_port: int,
) -> CheckInput:
    """Put together what to look at; flags win over the kubeconfig.

    Raises:
        ConfigError: a flag or a file is wrong, or no address is known; one sentence.
    """
    access = _read(kubeconfig) if kubeconfig else None
    if tls_server_name:
        check_host("tls-server-name", tls_server_name)
    return CheckInput(
        at=_where(bind_address, local_port, access, kubeconfig, default_port),
        ca_pem=_authorities(ca_cert, access, kubeconfig),
        server_name=tls_server_name or (access.server_name if access else None) or "",
        kubeconfig=kubeconfig,
        kubeconfig_server=access.config.cluster.server if access else "",
        admin=_admin(agent_admin),
        admin_tls=_admin_tls(agent_admin_ca, agent_admin_cert, agent_admin_key),
        timeout_s=timeout_s,
    )


def _read(kubeconfig: str) -> Access:
    from isthmus.kube.kubeconfig import read_config

    return read_config(kubeconfig)


def _where(
    bind_address: str,
    local_port: int | None,
    access: Access | None,
    kubeconfig: str,
    default_port: int,
) -> HostPort:
    if bind_address:
        return HostPort(str(parse_bind_address(bind_address)), local_port or default_port)
    if access is None:
        raise ConfigError("check what? give --bind-address, or --kubeconfig of the kubelet")
    url = urlsplit(access.config.cluster.server)
    if url.scheme != "https" or not is_address(url.hostname or ""):
        raise ConfigError(
            f"--kubeconfig {kubeconfig} points to {access.config.cluster.server}, which is no"
            " address of an agent: give --bind-address as well"
        )
    address = parse_bind_address(url.hostname or "")
    return HostPort(str(address), local_port or url.port or _HTTPS)


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
