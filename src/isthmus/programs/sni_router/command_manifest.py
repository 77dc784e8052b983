"""``isthmus manifest sni-router``: a manifest that runs the router in a cluster."""

from __future__ import annotations

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import MOST_BYTES, read_file, show, split
from isthmus.programs.sni_router import PROGRAM
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.settings_manifest import SniRouterManifestSettings
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load


def _sni_router(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.programs.sni_router.render_manifest import (
        RouterPlan,
        plan_warnings,
        sni_router_manifest,
        with_usual,
    )

    typed, flags = split(given, SniRouterManifestSettings)
    manifest = load(SniRouterManifestSettings, typed, {})
    manifest.validate()
    usual = with_usual(flags)
    settings = load(SniRouterSettings, with_examples(usual), {})
    settings.validate()
    routes = _routes(manifest.routes) if manifest.routes else None
    plan = RouterPlan(manifest=manifest, settings=settings, given=usual, routes=routes)
    text = sni_router_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return show(text, said, given_in_vain(SniRouterSettings, flags))


def _routes(path: str) -> str:
    from isthmus.programs.sni_router.settings_routes import parse

    contents = read_file("--routes", path)
    if len(contents) > MOST_BYTES:
        raise ConfigError(f"--routes: {path} is larger than {MOST_BYTES} bytes")
    try:
        text = contents.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"--routes: {path} is not UTF-8 text") from None
    parse(text, path)
    return text


command = FlagCommand(
    PROGRAM.name,
    (*options_of(SniRouterManifestSettings), *options_of(SniRouterSettings)),
    """\
isthmus manifest sni-router --routes=routes.yaml --image=registry.example.com/isthmus:1.0
isthmus manifest sni-router --routes=routes.yaml --listen-proxy=:6443 --replicas=3
isthmus manifest sni-router --config-map=all-routes --service-type=ClusterIP \\
    --accept-proxy --proxy-from=10.0.0.0/24""",
    callback=_sni_router,
    help="Write a manifest that runs an SNI router with the given flags",
    short_help="Write a manifest that runs an SNI router",
)
