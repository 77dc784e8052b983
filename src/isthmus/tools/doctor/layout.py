"""The files, ports and peers that settings name: those of each program, and those common to all.

This module knows the flags that any program may have; the looks know none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isthmus.frame.layout import ListeningPort, SettingsFile, SettingsLayout, TlsUse
from isthmus.net.certificates import TlsFiles
from isthmus.programs import program_of, programs
from isthmus.programs.server.settings import BY_NAME_WORD
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import block_of, values_of

SETTINGS: dict[str, type] = {it.name: it.settings_class for it in programs()}
LAYOUTS: dict[str, type[SettingsLayout[Any]]] = {it.name: it.found(it.layout) for it in programs()}
ALL = frozenset(SETTINGS)


def programs_with(what: str) -> frozenset[str]:
    """The programs that have such items at all, by the name of the layout's method."""
    return frozenset(name for name, layout in LAYOUTS.items() if layout.has(what))


def layout_of(settings: object) -> SettingsLayout[Any]:
    """The items that the settings of a program name."""
    return LAYOUTS[program_of(settings).name](settings)


def tls_uses(settings: object) -> Iterator[TlsUse]:
    """Every certificate that the settings name."""
    yield from layout_of(settings).tls_uses()
    admin = block_of(settings, AdminSettings)
    values = values_of(settings)  # a node proxy has these two and has no admin port
    if values["health_cert"]:
        labels = ("--health-cert", "--health-key", "")
        files = TlsFiles(values["health_cert"], values["health_key"], "", labels=labels)
        yield TlsUse(files=files, purpose="server")
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


def listeners(settings: object) -> Iterator[ListeningPort]:
    """Every TCP port that the settings open; 0 is any free port."""
    yield from layout_of(settings).listeners()
    admin, flags = block_of(settings, AdminSettings), program_of(settings).operator_flags
    if admin is not None and flags is not None:
        infix = "-server" if flags.as_agent else ""
        yield ListeningPort(
            flag=f"--health{infix}-port", host=admin.health_bind_address, port=admin.health_port
        )
        yield ListeningPort(flag=f"--admin{infix}-port", host=admin.bind_address, port=admin.port)


#: Flags that name a file with a secret; certificates are in ``tls_uses``.
_SECRET_FLAGS = ("kubeconfig", "service_account_token_path", "password_file", "admin_token_file")
_DOCUMENT_FLAGS = ("policy_file", "config")
_OTHER_FLAGS = ("cluster_crl_file", "server_crl_file", "crl_file")
_CA_FLAGS = ("proxy_ca_path", "http_proxy_ca_cert")


def named_files(settings: object) -> Iterator[SettingsFile]:
    """Every file that the settings name, in a fixed order, each once."""
    found: dict[str, SettingsFile] = {}
    values = values_of(settings)
    for use in tls_uses(settings):
        cert, key, ca = use.files.labels
        for flag, path, secret in (
            (cert, use.files.cert, False),
            (key, use.files.key, True),
            (ca, use.files.ca, False),
        ):
            if path:
                file = SettingsFile(flag=flag, path=path, secret=secret, certificates=not secret)
                found.setdefault(path, file)
    for attributes, kind in (
        (_SECRET_FLAGS, {"secret": True}),
        (_DOCUMENT_FLAGS, {"document": True}),
        (_OTHER_FLAGS, {}),
        (_CA_FLAGS, {"certificates": True}),
    ):
        for attribute in attributes:
            said = values.get(attribute, "")
            for path in said if isinstance(said, tuple) else filter(None, (said,)):
                flag = f"--{attribute.replace('_', '-')}"
                found.setdefault(path, SettingsFile(flag=flag, path=path, **kind))
    binding = values.get("agent_identity_binding", "")
    if binding and binding != BY_NAME_WORD:
        file = SettingsFile(flag="--agent-identity-binding", path=binding, document=True)
        found.setdefault(binding, file)
    manifests = values.get("manifests", "")
    if manifests:
        file = SettingsFile(flag="--manifests", path=manifests, is_directory=True)
        found.setdefault(manifests, file)
    yield from found.values()
