"""Which files and certificates the settings of each program name; ports and peers are places.py.

These two know the flags of every program; the looks know none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.net.certificates import Purpose, TlsFiles
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.plan import Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.peers_relay import peer_files
from isthmus.programs.server.settings import BY_NAME_WORD, ServerSettings
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import block_of, values_of
from isthmus.values import HostPort

SETTINGS: dict[str, type] = {
    "server": ServerSettings,
    "agent": AgentSettings,
    "sni-router": SniRouterSettings,
    "socks5-proxy": Socks5ProxySettings,
    "https-proxy": HttpsProxySettings,
    "node-proxy": NodeProxySettings,
    "apiserver-proxy": ApiserverProxySettings,
}
ALL = frozenset(SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsUse:
    """A certificate with its key and the authorities beside it, and what it is used as.

    ``names`` are those that peers ask for, as far as flags say.
    """

    files: TlsFiles
    purpose: Purpose
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file that a flag names; what is in a secret one is for the program alone.

    A ``document`` is configuration that somebody wrote, as flags are.
    """

    flag: str
    path: str
    secret: bool = False
    is_directory: bool = False
    certificates: bool = False
    document: bool = False


def plan_of(settings: ApiserverProxySettings) -> ProxyPlan:
    """What an apiserver proxy does, by its flags or its file; reads it.

    Raises:
        ConfigError: it is wrong.
    """
    if not settings.config:
        return settings.plan()
    from isthmus.programs.apiserver_proxy.planning import read_plan

    return read_plan(settings.config)


def tls_uses(settings: object) -> Iterator[TlsUse]:
    """Every certificate that the settings name."""
    match settings:
        case ServerSettings():
            address = settings.advertise_agent_address
            names = (HostPort.parse(address).host,) if address else ()
            yield _use(settings, "cluster", "server", names)
            yield _use(settings, "server", "server")
            if settings.relay.peer_relay:
                yield TlsUse(files=peer_files(settings), purpose="client")
            else:
                yield _use(settings, "peer", "client")
        case AgentSettings():
            yield TlsUse(
                files=TlsFiles(
                    settings.agent_cert,
                    settings.agent_key,
                    settings.ca_cert,
                    labels=("--agent-cert", "--agent-key", "--ca-cert"),
                ),
                purpose="client",
            )
        case ApiserverProxySettings():
            check = plan_of(settings).check
            labels = ("--client-cert", "--client-key", "--ca-cert")
            if check.kind is Checks.HTTPS:
                files = TlsFiles(check.cert, check.key, check.ca, labels=labels)
                yield TlsUse(files=files, purpose="client")
        case SidecarSettings():
            if not settings.konnectivity_uds:
                yield TlsUse(files=sidecar_files(settings), purpose="client")
        case _:
            pass
    admin = block_of(settings, AdminSettings)
    if admin is not None and admin.cert:
        yield TlsUse(
            files=TlsFiles(
                admin.cert,
                admin.key,
                admin.client_ca,
                labels=("--admin-cert", "--admin-key", "--admin-client-ca"),
            ),
            purpose="server",
        )


def _use(
    settings: ServerSettings, prefix: str, purpose: Purpose, names: tuple[str, ...] = ()
) -> TlsUse:
    values = values_of(settings)
    files = TlsFiles(
        values[f"{prefix}_cert"],
        values[f"{prefix}_key"],
        values[f"{prefix}_ca_cert"],
        labels=(f"--{prefix}-cert", f"--{prefix}-key", f"--{prefix}-ca-cert"),
    )
    return TlsUse(files=files, purpose=purpose, names=names)


def sidecar_files(settings: SidecarSettings) -> TlsFiles:
    """The files that a sidecar shows its server, and trusts it by."""
    return TlsFiles(
        settings.tls_cert_path,
        settings.tls_key_path,
        settings.ca_cert_path,
        labels=("--tls-cert-path", "--tls-key-path", "--ca-cert-path"),
    )


#: Flags that name a file with a secret in it; certificates are in ``tls_uses``.
_SECRET_FLAGS = ("kubeconfig", "service_account_token_path", "password_file", "admin_token_file")
_DOCUMENT_FLAGS = ("policy_file", "config")
_OTHER_FLAGS = ("cluster_crl_file", "server_crl_file", "crl_file")
_CA_FLAGS = ("proxy_ca_path", "http_proxy_ca_cert")


def named_files(settings: object) -> Iterator[NamedFile]:
    """Every file that the settings name, in a fixed order, each once."""
    found: dict[str, NamedFile] = {}
    values = values_of(settings)
    for use in tls_uses(settings):
        cert, key, ca = use.files.labels
        for flag, path, secret in (
            (cert, use.files.cert, False),
            (key, use.files.key, True),
            (ca, use.files.ca, False),
        ):
            if path:
                file = NamedFile(flag=flag, path=path, secret=secret, certificates=not secret)
                found.setdefault(path, file)
    for attributes, kind in (
        (_SECRET_FLAGS, {"secret": True}),
        (_DOCUMENT_FLAGS, {"document": True}),
        (_OTHER_FLAGS, {}),
        (_CA_FLAGS, {"certificates": True}),
    ):
        for attribute in attributes:
            path = values.get(attribute, "")
            if path:
                flag = f"--{attribute.replace('_', '-')}"
                found.setdefault(path, NamedFile(flag=flag, path=path, **kind))
    binding = values.get("agent_identity_binding", "")
    if binding and binding != BY_NAME_WORD:
        file = NamedFile(flag="--agent-identity-binding", path=binding, document=True)
        found.setdefault(binding, file)
    manifests = values.get("manifests", "")
    if manifests:
        file = NamedFile(flag="--manifests", path=manifests, is_directory=True)
        found.setdefault(manifests, file)
    yield from found.values()
