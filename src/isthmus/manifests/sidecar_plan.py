"""Which sidecars a workload gets, each with its own flags, out of everything that was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.manifests.arguments import Given, arguments, with_examples
from isthmus.manifests.settings_sidecar import SidecarManifestSettings
from isthmus.programs.sidecar.settings_https import HttpsProxySettings
from isthmus.programs.sidecar.settings_presets import DUAL, HTTPS, SOCKS5
from isthmus.programs.sidecar.settings_socks5 import Socks5ProxySettings
from isthmus.settings.checks import nearest
from isthmus.settings.options import Kind, Option, options_of
from isthmus.settings.parsing import load
from isthmus.text.addresses import is_loopback
from isthmus.values import HostPort

Settings = Socks5ProxySettings | HttpsProxySettings

#: By kind: the program, and its settings.
PROGRAMS: Mapping[str, tuple[str, type[Settings]]] = {
    HTTPS: ("https-proxy", HttpsProxySettings),
    SOCKS5: ("socks5-proxy", Socks5ProxySettings),
}
#: Where the HTTPS sidecar of two listens.
DUAL_HTTPS_PORT = "8092"
_PORTS = ("serving_port", "health_port", "admin_port")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """One sidecar: what was given for it, and what that means."""

    kind: str
    settings: Settings
    given: Given

    @property
    def args(self) -> list[str]:
        """Its command line, without the program. The kubeconfig is in its environment."""
        given = {key: texts for key, texts in self.given.items() if key != "kubeconfig"}
        program, settings = PROGRAMS[self.kind]
        return [program, *arguments(options_of(settings), given)]

    @property
    def at(self) -> str:
        """Where its pod reaches it, as in a URL."""
        host = self.settings.serving_address
        host = host if is_loopback(host) else "127.0.0.1"
        return str(HostPort(host, self.settings.serving_port))


def plan_sidecars(manifest: SidecarManifestSettings, typed: Given) -> dict[str, Sidecar]:
    """The sidecars by kind, the HTTPS one first, as HyperShift has them.

    ``typed`` has the flags of the sidecars, and what --socks5-arg and --https-arg say.

    Raises:
        ConfigError: a flag is none of theirs, or makes no sense; one sentence.
    """
    mode = manifest.chosen.mode
    kinds = [kind for kind in PROGRAMS if mode in (kind, DUAL)]
    own = {kind: _own(kind, typed.get(f"{kind}_arg", ())) for kind in PROGRAMS}
    for kind in PROGRAMS:
        if kind not in kinds and own[kind]:
            raise ConfigError(f"--{kind}-arg means nothing: there is no such sidecar in {mode}")
    flags = {key: texts for key, texts in typed.items() if not key.endswith("_arg")}
    _check_known(flags, kinds)
    found = {kind: _sidecar(kind, manifest, flags, own[kind]) for kind in kinds}
    _check_ports(found)
    return found


def _sidecar(kind: str, manifest: SidecarManifestSettings, typed: Given, own: Given) -> Sidecar:
    _, settings = PROGRAMS[kind]
    known = {option.attribute for option in options_of(settings)}
    preset = manifest.chosen
    base: dict[str, tuple[str, ...]] = {}
    if preset.mode == DUAL and kind == HTTPS:
        base["serving_port"] = (DUAL_HTTPS_PORT,)
    base |= preset.https if kind == HTTPS else preset.socks5
    if manifest.all_ipv4:
        base["prefer_ipv4"] = ("true",)
    given: Given = {
        **base,
        **{key: texts for key, texts in typed.items() if key in known},
        **own,
    }
    loaded = load(settings, with_examples(given), {})
    loaded.validate()
    return Sidecar(kind=kind, settings=loaded, given=given)


def _own(kind: str, texts: Sequence[str]) -> Given:
    known: dict[str, Option] = {}
    for option in options_of(PROGRAMS[kind][1]):
        known |= {f"--{name}": option for name in (option.flag, *option.aliases)}
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        flag, equals, value = text.partition("=")
        if flag not in known:
            raise ConfigError(f"--{kind}-arg: unknown flag {flag}{nearest(flag, list(known))}")
        option = known[flag]
        if not equals and option.kind is not Kind.BOOL:
            raise ConfigError(f"--{kind}-arg: {flag} needs a value, {flag}={option.takes}")
        value = value if equals else "true"
        found[option.attribute] = (*found.get(option.attribute, ()), value)
    return found


def _check_known(flags: Given, kinds: list[str]) -> None:
    """Whoever types a flag for one kind has that kind in mind."""
    for kind, (program, settings) in PROGRAMS.items():
        for option in options_of(settings):
            if not flags.get(option.attribute):
                continue
            if not any(_has(each, option.attribute) for each in kinds):
                raise ConfigError(
                    f"--{option.flag} is a flag of {program}, and there is no {kind} sidecar here"
                )


def _has(kind: str, attribute: str) -> bool:
    return any(option.attribute == attribute for option in options_of(PROGRAMS[kind][1]))


def _check_ports(found: Mapping[str, Sidecar]) -> None:
    taken: dict[int, str] = {}
    for sidecar in found.values():
        settings = sidecar.settings
        for attribute in _PORTS:
            port, flag = getattr(settings, attribute), attribute.replace("_", "-")
            if port == 0 and attribute != "admin_port":
                raise ConfigError(f"--{flag} must not be 0 in a manifest: others have to find it")
            who = f"--{flag} of {sidecar.kind}"
            other = taken.setdefault(port, who) if port else who
            if other != who:
                raise ConfigError(
                    f"{other} and {who} are both {port}: give one another by --socks5-arg or"
                    " --https-arg"
                )
        host = settings.health_bind_address
        if host and is_loopback(host):
            raise ConfigError(
                f"--health-bind-address {host}: the kubelet probes from outside the pod; leave it"
                " out"
            )
        if settings.konnectivity_uds:
            raise ConfigError(
                "--konnectivity-uds: the connectivity server's socket is in another pod; use"
                " --konnectivity-hostname"
            )
