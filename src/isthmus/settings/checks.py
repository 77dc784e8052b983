"""Checks that the server and the agent share; each raises one sentence that names the flag.

Whether files exist and certificates are good is checked where they are opened, in net/.
"""

from __future__ import annotations

from isthmus.errors import ConfigError
from isthmus.settings.options import Kind, options_of
from isthmus.text.suggestions import nearest
from isthmus.values import HostPort

KONNECTIVITY = "konnectivity"
# What Go's programs allow; the rest are system ports and ephemeral ports (RFC 6335 §6).
_GO_PORTS = range(1024, 49152)
_PORTS = range(65536)


def check_choices(settings: object) -> None:
    """Hold every setting that has choices against them."""
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        for word in value if isinstance(value, tuple) else (value,):
            if not declared.choices or word in declared.choices:
                continue
            known = [choice for choice in declared.choices if choice]
            hint = nearest(word, known)
            raise ConfigError(f"--{declared.flag} must be {' or '.join(known)}, not {word!r}{hint}")


def check_durations(settings: object) -> None:
    """No wait is negative."""
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        if declared.kind is Kind.DURATION and value < 0:
            raise ConfigError(f"--{declared.flag} must not be negative")


def check_port(flag: str, port: int, *, compat: str) -> None:
    """A port to listen on: 0 (any free one) to 65535, or Go's range with --compat=konnectivity."""
    allowed = _GO_PORTS if compat == KONNECTIVITY else _PORTS
    if port not in allowed:
        why = " with --compat=konnectivity" if compat == KONNECTIVITY else ""
        raise ConfigError(f"--{flag} must be from {allowed[0]} to {allowed[-1]}{why}, not {port}")


def check_host(flag: str, host: str) -> None:
    """A host to bind or to dial is an address, without brackets, or a name."""
    try:
        HostPort(host, 1)
    except ValueError as error:
        raise ConfigError(f"--{flag}: {error}") from error


def check_pair(cert_flag: str, cert: str, key_flag: str, key: str) -> None:
    """A certificate and its key come together."""
    if bool(cert) != bool(key):
        there, missing = (cert_flag, key_flag) if cert else (key_flag, cert_flag)
        raise ConfigError(f"--{there} needs --{missing} as well")


def check_id(flag: str, value: str) -> None:
    """An id goes into headers, log lines and metric labels: printable ASCII without spaces."""
    if len(value) > 253 or not all("!" <= char <= "~" for char in value):
        raise ConfigError(f"--{flag} must be at most 253 printable characters without spaces")


def check_at_least(flag: str, value: int, least: int) -> None:
    """A count that cannot be smaller."""
    if value < least:
        raise ConfigError(f"--{flag} must be at least {least}, not {value}")
