"""``isthmus manifest agent``: what runs an agent on a node or in a pod."""

from __future__ import annotations

from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import show, split
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.settings_manifest import AgentManifestSettings
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load


def _agent(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.programs.agent.render_manifest import (
        AgentPlan,
        agent_manifest,
        identifiers,
        plan_warnings,
    )

    typed, flags = split(given, AgentManifestSettings)
    manifest = load(AgentManifestSettings, typed, {})
    manifest.validate()
    if manifest.stand_for:
        before = flags.get("agent_identifiers", ("",))[-1]
        flags["agent_identifiers"] = (identifiers(manifest.stand_for, before),)
    settings = load(AgentSettings, with_examples(flags), {})
    settings.validate()
    plan = AgentPlan(manifest=manifest, settings=settings, given=flags)
    text = agent_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return show(text, said, given_in_vain(AgentSettings, flags))


command = FlagCommand(
    "agent",
    (*options_of(AgentManifestSettings), *options_of(AgentSettings)),
    """\
isthmus manifest agent --as=static-pod --image=registry.example.com/isthmus:0.1.0 \\
    --proxy-server-host=server.example.com --ca-cert=/etc/isthmus/ca.crt \\
    --agent-cert=/etc/isthmus/agent.crt --agent-key=/etc/isthmus/agent.key \\
    --feature-gates=EnableClusterToMasterTraffic=true \\
    --bind-address=10.0.0.1 --target=6443:localhost:6443
isthmus manifest agent --as=systemd --proxy-server-host=server.example.com \\
    --ca-cert=/etc/isthmus/ca.crt > /etc/systemd/system/isthmus-agent.service
isthmus manifest agent --as=deployment --proxy-server-host=konnectivity-server \\
    --ca-cert=/etc/isthmus/ca.crt --stand-for=172.30.1.2 --stand-for=fd00::1:2""",
    callback=_agent,
    help="Write a manifest or unit that runs an agent with the given flags",
    short_help="Write a manifest or unit that runs an agent",
)
