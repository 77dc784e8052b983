"""Checks that the settings are consistent, and of the proxy variables of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import Peer
from isthmus.frame.patient import Patient
from isthmus.net.rules_proxies import ProxyRules
from isthmus.settings.options import given_in_vain
from isthmus.tools.doctor.layout import layout_of
from isthmus.values import is_address


def see_configuration(patient: Patient) -> Iterator[Finding]:
    """Check the settings against each other, as the program does when it starts."""
    settings = patient.settings
    where = "the flags of /configz" if patient.running is not None else "the flags"
    asked = Asked(CheckId.CONFIGURATION, "flags", f"checked {where} against each other")
    try:
        settings.validate()
    except ConfigError as error:
        yield asked.fail(str(error), "correct this; the program would not start")
        return
    sentences = [*layout_of(settings).warnings(), *_vain(patient)]
    for sentence in sentences:
        yield asked.warn(sentence, "change it, unless it is intended")
    if not sentences:
        yield asked.ok("they are consistent")


def _vain(patient: Patient) -> list[str]:
    found = given_in_vain(type(patient.settings), patient.given)
    return [f"these flags have no effect here: {', '.join(found)}"] if found else []


#: The variables that matter; no other variable of a program's environment is read.
VARIABLES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


def environ_of(patient: Patient) -> Mapping[str, str]:
    """The proxy variables of the running program, if they can be read, or else the doctor's own."""
    pid = patient.running.pid if patient.running is not None else 0
    if pid:
        try:
            return _of_process(pid)
        except OSError:
            pass
    return {name: patient.environ[name] for name in VARIABLES if name in patient.environ}


def _of_process(pid: int) -> Mapping[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name in VARIABLES}


def see_proxy(patient: Patient) -> Iterator[Finding]:
    """Read HTTPS_PROXY and NO_PROXY, and report which peers are reached through a proxy."""
    environ = environ_of(patient)
    asked = Asked(CheckId.PROXY, "HTTPS_PROXY, NO_PROXY", "read the program's variables")
    try:
        rules = ProxyRules.from_environment(environ)
    except ConfigError as error:
        yield asked.fail(str(error), "write it as http://host:port")
        return
    if rules.proxy is None:
        unused = [name for name in ("NO_PROXY", "no_proxy") if environ.get(name)]
        yield asked.ok(f"no proxy{'; ' + unused[0] + ' has no effect' if unused else ''}")
        return
    if _differ(environ):
        yield asked.warn(
            "HTTPS_PROXY and https_proxy are different; the first counts", "set only one of them"
        )
    for peer in layout_of(patient.settings).peers():
        if peer.by_environment:
            yield judge_way(peer, rules)


def _differ(environ: Mapping[str, str]) -> bool:
    upper, lower = environ.get("HTTPS_PROXY"), environ.get("https_proxy")
    return bool(upper and lower and upper != lower)


def judge_way(peer: Peer, rules: ProxyRules) -> Finding:
    """Is the peer reached through the proxy, and is that probably intended?"""
    asked = Asked(CheckId.PROXY, f"{peer.flag} {peer.at}", "compared it with the proxy variables")
    proxy = rules.proxy_for(peer.at.host, peer.at.port)
    if proxy is None:
        return asked.ok("it is reached directly")
    host = peer.at.host
    if is_address(host) and ip_address(host).is_private:
        return asked.warn(
            f"it is reached by {proxy}, though it is a private address",
            f"put {host} into NO_PROXY, unless the proxy is the way there",
        )
    return asked.ok(f"it is reached by {proxy}")
