"""Sidecars of a hosted control plane's component: containers, the component's variables, volumes.

Names, requests, mounts and variables are those of HyperShift (support/controlplane-component),
because workloads expect them. Probes and the security context are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import containers, volumes
from isthmus.manifests.arguments import (
    Given,
    arguments,
    for_pod,
    references,
    typed_flags,
    with_examples,
)
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.pods import Manifest, deployment_patch
from isthmus.manifests.settings import PATCH
from isthmus.manifests.volumes import CA, CERT, KEY, FlagFile, Volume
from isthmus.programs.sidecar.settings_manifest import SIDECARS, SidecarManifestSettings
from isthmus.programs.sidecar.settings_presets import (
    DUAL,
    GRPC_VARIABLES,
    HANDED_ON,
    HTTP_VARIABLES,
    HTTPS,
    SOCKS5,
)
from isthmus.settings.options import options_of, values_of
from isthmus.settings.parsing import load
from isthmus.text.addresses import is_loopback
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

KUBECONFIG = "/etc/kubernetes/secrets/kubeconfig/kubeconfig"
#: Where Go programs look for CAs. Isthmus has flags for that.
TRUST = "/etc/pki/tls/certs/konnectivity-proxy"
_BUNDLE = "additional-ca-bundle.pem"
_NAME = "konnectivity-proxy"
_NOT_OF_THE_SECRET = frozenset({"ca_cert_path", "tls_cert_path", "tls_key_path", "kubeconfig"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarPlan:
    """A workload and its sidecars, by kind."""

    manifest: SidecarManifestSettings
    sidecars: Mapping[str, PlannedSidecar]


def sidecar_manifest(plan: SidecarPlan) -> str:
    """Write the manifest.

    Raises:
        ConfigError: the files of a sidecar cannot be mounted.
    """
    manifest = plan.manifest
    found = {kind: _volumes(plan, sidecar) for kind, sidecar in plan.sidecars.items()}
    main: Manifest = {"name": manifest.main}
    env = containers.variables(main_variables(plan))
    if env:
        main["env"] = env
    made = [_container(plan, sidecar, found[kind]) for kind, sidecar in plan.sidecars.items()]
    spec: Manifest = {"containers": [main, *made] if env else made}
    spec["volumes"] = volumes.specs(volume for each in found.values() for volume in each)
    if manifest.run_as:
        spec["securityContext"] = {"fsGroup": manifest.run_as}
    if manifest.part == PATCH:
        spec = deployment_patch(manifest.deployment, manifest.namespace, spec)
    return to_yaml([spec])


def main_variables(plan: SidecarPlan) -> dict[str, str]:
    """The variables of the main container."""
    manifest, sidecars = plan.manifest, plan.sidecars
    socks5 = f"socks5://{sidecars[SOCKS5].at}" if SOCKS5 in sidecars else ""
    http = f"http://{sidecars[HTTPS].at}" if HTTPS in sidecars else socks5
    match manifest.for_main:
        case kind if kind == HTTP_VARIABLES:
            found = {"HTTP_PROXY": http, "HTTPS_PROXY": http}
            if manifest.chosen.mode == DUAL:
                found["ALL_PROXY"] = socks5
        case kind if kind == GRPC_VARIABLES:
            found = {"GRPC_PROXY": socks5 or http}
        case kind if kind == HANDED_ON:
            # The component passes them on and does not use them itself.
            return {f"MGMT_{name}": text for name, text in manifest.management_proxy.items()}
        case _:
            return {}
    return {**found, "NO_PROXY": manifest.no_proxy}


def _container(plan: SidecarPlan, sidecar: PlannedSidecar, found: list[Volume]) -> dict[str, Any]:
    manifest, settings = plan.manifest, sidecar.settings
    values = {"KUBECONFIG": settings.kubeconfig or KUBECONFIG}
    if settings.connect_directly_to_cloud_apis:
        values |= manifest.management_proxy
    if manifest.trust_bundle:
        values["SSL_CERT_FILE"] = f"{TRUST}/{_BUNDLE}"
    security = containers.unprivileged_anybody()
    if manifest.run_as:
        security = containers.unprivileged(manifest.run_as)
    container = PodContainer(
        name=f"{_NAME}-{sidecar.kind}",
        image=manifest.image,
        args=for_pod(sidecar.args),
        security=security,
        env=[*containers.fields(references(sidecar.given)), *containers.variables(values)],
        volumes=found,
        ports={f"{sidecar.kind}-health": settings.admin.health_port},
        probes=containers.probes_of(settings.admin),
        resources={"requests": {"cpu": "10m", "memory": manifest.memory}},
    )
    return container.to_spec()


def _volumes(plan: SidecarPlan, sidecar: PlannedSidecar) -> list[Volume]:
    manifest, settings = plan.manifest, sidecar.settings
    pair = {
        CERT: FlagFile.named("--tls-cert-path", settings.tls_cert_path),
        KEY: FlagFile.named("--tls-key-path", settings.tls_key_path),
    }
    authorities = {CA: FlagFile.named("--ca-cert-path", settings.ca_cert_path)}
    found = [
        _kubeconfig(manifest, settings.kubeconfig or KUBECONFIG),
        volumes.secret(f"{_NAME}-cert", manifest.client_secret, pair),
        volumes.config_map(f"{_NAME}-ca", manifest.ca_config_map, authorities),
    ]
    if manifest.trust_bundle:
        bundle = {"ca-bundle.crt": FlagFile("--trust-bundle", PurePosixPath(TRUST, _BUNDLE))}
        volume = volumes.config_map("proxy-additional-trust-bundle", manifest.trust_bundle, bundle)
        found.append(volume)
    found += _others(manifest, sidecar)
    # For keys embedded in a kubeconfig: the root file system is read-only.
    found.append(replace(volumes.scratch(), name=f"{_NAME}-tmp"))
    volumes.check_apart(found)
    return found


def _kubeconfig(manifest: SidecarManifestSettings, path: str) -> Volume:
    name = manifest.kubeconfig_volume or manifest.chosen.kubeconfig_volume
    files = {"kubeconfig": FlagFile.named("--kubeconfig", path)}
    volume = volumes.secret(name, manifest.kubeconfig_secret, files)
    # Without its own Secret, it is a volume of the workload.
    return volume if manifest.kubeconfig_secret else replace(volume, source={})


def _others(manifest: SidecarManifestSettings, sidecar: PlannedSidecar) -> list[Volume]:
    files = [
        file
        for file in volumes.flag_files(sidecar.settings, without=_NOT_OF_THE_SECRET)
        if str(file.directory) != TRUST
    ]
    if files and not manifest.secret:
        raise ConfigError(f"{files[0].flag} needs --secret: the Secret with the file")
    found = volumes.secret_directory(files, secret=manifest.secret)
    return [replace(volume, name=f"{_NAME}-files") for volume in found]


def plan_warnings(plan: SidecarPlan) -> list[str]:
    """Warnings, one text each."""
    manifest, found = plan.manifest, []
    settings = [sidecar.settings for sidecar in plan.sidecars.values()]
    used = manifest.for_main == HANDED_ON or any(
        each.connect_directly_to_cloud_apis for each in settings
    )
    if manifest.management_proxy and not used:
        found.append(
            "the management cluster's proxy has no effect without --connect-directly-to-cloud-apis"
        )
    if not manifest.kubeconfig_secret:
        name = manifest.kubeconfig_volume or manifest.chosen.kubeconfig_volume
        found.append(
            f"the pod must have a volume {name} with the guest cluster's kubeconfig;"
            " --kubeconfig-secret adds one"
        )
    if any(each.username for each in settings) and main_variables(plan):
        found.append("the main container's variables have no password, which --username asks for")
    return found


#: The port of the HTTPS sidecar, if there are two.
DUAL_HTTPS_PORT = "8092"
_PORTS = ("serving_port", "health_port", "admin_port")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSidecar:
    """One sidecar: its flags as given, and their values."""

    kind: str
    settings: Any
    given: Given

    @property
    def args(self) -> list[str]:
        """Its arguments, beginning with the program. The environment has the kubeconfig."""
        given = {key: texts for key, texts in self.given.items() if key != "kubeconfig"}
        program = SIDECARS[self.kind]
        return [program.name, *arguments(options_of(program.settings_class), given)]

    @property
    def at(self) -> str:
        """Its address within the pod, as in a URL."""
        host = self.settings.serving_address
        host = host if is_loopback(host) else "127.0.0.1"
        return str(HostPort(host, self.settings.serving_port))


def plan_sidecars(manifest: SidecarManifestSettings, typed: Given) -> dict[str, PlannedSidecar]:
    """The sidecars by kind, the HTTPS one first, in HyperShift's order.

    ``typed`` has the flags of the sidecars, including those of --socks5-arg and --https-arg.

    Raises:
        ConfigError: a flag is unknown or invalid.
    """
    mode = manifest.chosen.mode
    kinds = [kind for kind in SIDECARS if mode in (kind, DUAL)]
    own = {
        kind: typed_flags(
            SIDECARS[kind].settings_class, typed.get(f"{kind}_arg", ()), where=f"--{kind}-arg"
        )
        for kind in SIDECARS
    }
    for kind in SIDECARS:
        if kind not in kinds and own[kind]:
            raise ConfigError(f"--{kind}-arg has no effect: mode {mode} has no such sidecar")
    flags = {key: texts for key, texts in typed.items() if not key.endswith("_arg")}
    _check_known(flags, kinds)
    found = {kind: _sidecar(kind, manifest, flags, own[kind]) for kind in kinds}
    _check_ports(found)
    return found


def _sidecar(
    kind: str, manifest: SidecarManifestSettings, typed: Given, own: Given
) -> PlannedSidecar:
    settings = SIDECARS[kind].settings_class
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
    return PlannedSidecar(kind=kind, settings=loaded, given=given)


def _check_known(flags: Given, kinds: list[str]) -> None:
    """Check that a flag of only one kind was not given for the other."""
    for kind, program in SIDECARS.items():
        for option in options_of(program.settings_class):
            if not flags.get(option.attribute):
                continue
            if not any(_has(each, option.attribute) for each in kinds):
                raise ConfigError(
                    f"--{option.flag} is a flag of {program.name}, and there is no"
                    f" {kind} sidecar here"
                )


def _has(kind: str, attribute: str) -> bool:
    return any(
        option.attribute == attribute for option in options_of(SIDECARS[kind].settings_class)
    )


def _check_ports(found: Mapping[str, PlannedSidecar]) -> None:
    taken: dict[int, str] = {}
    for sidecar in found.values():
        settings, values = sidecar.settings, values_of(sidecar.settings)
        for attribute in _PORTS:
            port, flag = values[attribute], attribute.replace("_", "-")
            if port == 0 and attribute != "admin_port":
                raise ConfigError(f"--{flag} must not be 0 in a manifest: others need a fixed port")
            who = f"--{flag} of {sidecar.kind}"
            other = taken.setdefault(port, who) if port else who
            if other != who:
                raise ConfigError(
                    f"{other} and {who} are both {port}: change one with --socks5-arg or"
                    " --https-arg"
                )
        host = settings.admin.health_bind_address
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
