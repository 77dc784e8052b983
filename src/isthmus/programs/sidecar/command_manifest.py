"""``isthmus manifest sidecar``: the sidecars of a hosted control plane's component."""

from __future__ import annotations

from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import show, split
from isthmus.programs.sidecar.settings_manifest import SIDECARS, SidecarManifestSettings
from isthmus.programs.sidecar.settings_presets import SOCKS5
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load

_ARGS = ("socks5_arg", "https_arg")
#: The flags of either sidecar, each once.
_OPTIONS = tuple(
    {
        option.attribute: option
        for program in reversed(list(SIDECARS.values()))
        for option in options_of(program.settings_class)
    }.values()
)


def _sidecar(**given: tuple[str, ...]) -> int:
    from isthmus.programs.sidecar.render_manifest import (
        SidecarPlan,
        plan_sidecars,
        plan_warnings,
        sidecar_manifest,
    )

    typed, flags = split(given, SidecarManifestSettings)
    manifest = load(SidecarManifestSettings, typed, {})
    manifest.validate()
    flags |= {each: typed[each] for each in _ARGS if each in typed}
    plan = SidecarPlan(manifest=manifest, sidecars=plan_sidecars(manifest, flags))
    text = sidecar_manifest(plan)
    return show(text, plan_warnings(plan), given_in_vain(SIDECARS[SOCKS5].settings_class, flags))


command = FlagCommand(
    "sidecar",
    (*options_of(SidecarManifestSettings), *_OPTIONS),
    """\
isthmus manifest sidecar --preset=openshift-apiserver --namespace=clusters-a > patch.yaml
kubectl patch deployment openshift-apiserver --patch-file=patch.yaml
isthmus manifest sidecar --mode=socks5 --workload=my-operator \\
    --kubeconfig-secret=admin-kubeconfig --resolve-from-guest-cluster-dns --part=pod-spec""",
    callback=_sidecar,
    help="Write the sidecars of a hosted control plane's component with the given flags",
    short_help="Write the sidecars of a hosted control plane's component",
)
