"""``isthmus manifest apiserver-proxy``: a manifest or unit that runs the proxy on a node."""

from __future__ import annotations

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import MOST_BYTES, read_file, show, split
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.apiserver_proxy.settings_manifest import ApiserverProxyManifestSettings
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load


def _apiserver_proxy(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.programs.apiserver_proxy.render_manifest import (
        ProxyManifestPlan,
        apiserver_proxy_manifest,
        plan_warnings,
    )

    typed, flags = split(given, ApiserverProxyManifestSettings)
    manifest = load(ApiserverProxyManifestSettings, typed, {})
    manifest.validate()
    settings = load(ApiserverProxySettings, with_examples(flags), {})
    settings.validate()
    plan = ProxyManifestPlan(
        manifest=manifest,
        settings=settings,
        given=flags,
        carried=dict(map(_carried, typed.get("file", ()))),
    )
    text = apiserver_proxy_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return show(text, said, given_in_vain(ApiserverProxySettings, flags))


def _carried(text: str) -> tuple[str, bytes]:
    from isthmus.manifests.volumes import FlagFile

    path, equals, source = text.partition("=")
    if not (path and equals and source):
        raise ConfigError(f"--file takes PATH=FILE, such as /etc/isthmus/ca.crt=ca.crt, not {text}")
    FlagFile.named("--file", path)
    contents = read_file("--file", source)
    if len(contents) > MOST_BYTES:
        raise ConfigError(f"--file: {source} is larger than {MOST_BYTES} bytes")
    return path, contents


command = FlagCommand(
    "apiserver-proxy",
    (*options_of(ApiserverProxyManifestSettings), *options_of(ApiserverProxySettings)),
    """\
isthmus manifest apiserver-proxy --as=static-pod --upstream=api.example.com:6443 \\
    --ca-cert=/etc/isthmus/ca.crt > /etc/kubernetes/manifests/kube-apiserver-proxy.yaml
isthmus manifest apiserver-proxy --as=ignition --upstream=api.example.com:6443 \\
    --ca-cert=/etc/isthmus/ca.crt --file=/etc/isthmus/ca.crt=ca.crt > node.ign""",
    callback=_apiserver_proxy,
    help="Write a manifest or unit that runs an apiserver proxy with the given flags",
    short_help="Write a manifest or unit that runs an apiserver proxy",
)
