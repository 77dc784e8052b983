"""``isthmus node-proxy render``, ``explain`` and ``diff``: what rules do, without a node.

They take the flags of the program that shape rules. What they need is imported when they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import KubeError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import TEXT, filled, output_parameter, print_data
from isthmus.programs.node_proxy.settings import NFTABLES, NodeProxySettings
from isthmus.settings.options import Option, options_of
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.programs.node_proxy.rules.explaining import PacketExplanation
    from isthmus.programs.node_proxy.rules.model import IpFamily
    from isthmus.programs.node_proxy.snapshot import Snapshot

#: diff(1)'s exit codes.
SAME, DIFFERENT = 0, 1
_SHAPING = (
    "config", "hostname_override", "bind_address", "proxy_mode", "nodeport_addresses",
    "masquerade_all", "iptables_masquerade_bit", "nftables_masquerade_bit",
    "iptables_localhost_nodeports", "ipvs_scheduler", "detect_local", "cluster_cidr", "node_cidr",
    "pod_interface_prefix", "detect_local_mode", "pod_bridge_interface",
    "pod_interface_name_prefix",
)  # fmt: skip
_LOCALHOST = "nftables_localhost_nodeports"
_SOURCES = ("manifests", "kubeconfig", "master")
# What is declared of a setting for the program, and is otherwise here.
_OTHERWISE: dict[str, dict[str, Any]] = {
    "manifests": {
        "help": "File or directory with Services, EndpointSlices and the Node, instead of asking "
        "the API once",
        "metavar": "DIR|FILE",
    },
}


class ToolCommand(FlagCommand):
    """A command with some flags of the program, and arguments and options of its own."""

    def __init__(self, name: str, declared: Sequence[Option], own: list[click.Parameter],
                 examples: str, **rest: Any) -> None:  # fmt: skip
        super().__init__(name, declared, examples, **rest)
        self.own = own
        self.params += own

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.own if isinstance(each, click.Option)]
        rows = [each.get_help_record(ctx) for each in options]
        with formatter.section("Options"):
            formatter.write_dl([row for row in rows if row is not None])
        super().format_options(ctx, formatter)


def _declared(*names: str) -> tuple[Option, ...]:
    known = {each.attribute: each for each in options_of(NodeProxySettings)}
    chosen = [known[name] for name in names]
    return tuple(replace(each, **_OTHERWISE.get(each.attribute, {})) for each in chosen)


def _family(help: str) -> click.Option:
    return click.Option(["--family", "family_name"], type=click.Choice(["IPv4", "IPv6"]), help=help)


def _argument(name: str) -> click.Argument:
    return click.Argument([name.lower()], metavar=name, callback=filled)


def _look(given: dict[str, tuple[str, ...]]) -> Snapshot:
    """What the flags lead to; what is to be said about it is on standard error."""
    from isthmus.programs.node_proxy.snapshot import look

    settings = _settings(given)
    return _said(lambda: look(settings))


def _settings(given: dict[str, tuple[str, ...]]) -> NodeProxySettings:
    from isthmus.programs.node_proxy.config import read_settings

    settings = read_settings(given)
    _say(settings.notes())
    return settings


def _said(look: Callable[[], Snapshot]) -> Snapshot:
    try:
        found = look()
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    _say(found.notes)
    return found


def _say(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        click.echo(f"isthmus: {sentence}", err=True)


def _families(family_name: str | None, *snapshots: Snapshot) -> list[IpFamily]:
    from isthmus.programs.node_proxy.rules.model import IpFamily

    if family_name:
        return [IpFamily(family_name)]
    found = {family for each in snapshots for family in each.families}
    return [family for family in IpFamily if family in found]


def _render(family_name: str | None, **given: tuple[str, ...]) -> int:
    snapshot = _look(given)
    families = _families(family_name, snapshot)
    for family in families:
        if len(families) > 1:
            click.echo(f"# {family.value}")
        click.echo(snapshot.rendered(family).text, nl=False)
    return 0


render = ToolCommand(
    "render",
    _declared(*_SOURCES, *_SHAPING),
    [_family("Print the rules of this family only [default: those that Services have]")],
    """\
isthmus node-proxy render --manifests=services/ --detect-local=node-cidr
isthmus node-proxy render --manifests=services.yaml --proxy-mode=nftables --family=IPv4""",
    callback=_render,
    short_help="Print the rules for given manifests",
    help="""Print the rules for given manifests

    They are printed as the program would write them into a kernel that has none: for
    iptables-restore --noflush, for nft -f, or for ipset restore, iptables-restore and ipvsadm. Of
    the node only what its Node object and the flags say is known, and nothing is changed.
    """,
)


def _explain(
    src: str,
    dst: str,
    from_pod: bool,
    in_interface: str | None,
    bridge_port: str | None,
    output: str,
    **given: tuple[str, ...],
) -> int:
    from isthmus.programs.node_proxy.rules.explaining import PacketTarget

    destination = PacketTarget.parse(dst)
    snapshot = _look(given)
    found, notes = _explained(
        snapshot, src, destination,
        from_pod=from_pod, interface=in_interface or "", bridge_port=bridge_port or "",
    )  # fmt: skip
    from isthmus.programs.node_proxy.command_output import explanation_json, show_explanation

    if output == TEXT:
        show_explanation(found, snapshot.settings.mode, notes)
    else:
        print_data(explanation_json(found, snapshot.settings.mode, notes), output)
    return 0


def _explained(
    snapshot: Snapshot, src: str, destination: Any, **how: Any
) -> tuple[PacketExplanation, list[str]]:
    """Walk, and say what the answer rests on."""
    from isthmus.programs.node_proxy.rules.explaining import (
        NODE,
        ExplainedNode,
        explain,
        packet_to,
        taken_for_local,
    )
    from isthmus.programs.node_proxy.rules.explaining_flow import Origin
    from isthmus.programs.node_proxy.rules.model import family_of
    from isthmus.programs.node_proxy.snapshot import rules_of

    family = family_of(destination.address)
    settings = snapshot.rules[family]
    rules = rules_of(snapshot, family)
    place = ExplainedNode(
        view=snapshot.views[family],
        settings=settings,
        here=snapshot.here | rules.addresses,
        pod_cidrs=snapshot.node.pod_cidrs,
    )
    if src == NODE and destination.address in rules.addresses:
        src = destination.address  # the kernel's choice for an address of its own
    packet = packet_to(destination, src, place, **how)
    found = explain(rules, packet, place.view)
    notes = [*found.notes, *_on_localhost(snapshot, destination)]
    pod = packet.origin is Origin.POD
    if pod is not taken_for_local(packet, settings) and settings.detector.matches(family):
        taken = "does not take it for" if pod else "takes it for"
        notes.append(f"the detector {taken} a packet of a pod of this node")
    return found, notes


def _on_localhost(snapshot: Snapshot, destination: Any) -> list[str]:
    """What no rule does: connections that the node proxy itself carries."""
    from isthmus.programs.node_proxy.rules.localhost import localhost_ports
    from isthmus.programs.node_proxy.rules.model import PortProtocol, family_of

    settings = snapshot.settings
    if not settings.nftables_localhost_nodeports or settings.mode != NFTABLES:
        return []
    if destination.protocol is not PortProtocol.TCP:
        return []
    found = localhost_ports(snapshot.views[family_of(destination.address)])
    port = found.get(HostPort(destination.address, destination.port))
    if port is None:
        return []
    ends = ", ".join(map(str, port.endpoints))
    return [f"the node proxy listens there for {port.key}, and carries connections to {ends}"]


explain_command = ToolCommand(
    "explain",
    _declared(*_SOURCES, *_SHAPING, _LOCALHOST),
    [
        _argument("SRC"),
        _argument("DST"),
        click.Option(["--from-pod"], is_flag=True, help="Treat SRC as a pod of this node"),
        click.Option(
            ["--in-interface"],
            metavar="NAME",
            callback=filled,
            help="Interface that the packet comes in by",
        ),
        click.Option(
            ["--bridge-port"],
            metavar="NAME",
            callback=filled,
            help="Port of a bridge that the packet comes in by",
        ),
        output_parameter(),
    ],
    """\
isthmus node-proxy explain 10.180.0.5 10.96.0.10:53/udp --manifests=dns.yaml --detect-local=bridge
isthmus node-proxy explain node 192.0.2.10:30080 --manifests=services/ --proxy-mode=nftables""",
    callback=_explain,
    short_help="Trace a packet through the rules, and explain where it goes",
    help="""Trace a packet through the rules, and explain where it goes

    SRC is an address, or the word node. DST is an address and a port, and /udp or /sctp. The rules
    are those that render prints; rules of others and routes are not known. A source in the Node's
    podCIDRs, or that is an endpoint on this node, is taken for a pod, and its packet comes in the
    way that the detector expects.
    """,
)


def _diff(
    old: str, new: str, family_name: str | None, output: str, **given: tuple[str, ...]
) -> int:
    from isthmus.programs.node_proxy.command_output import difference_json, show_difference
    from isthmus.programs.node_proxy.rules.rendering import line_changes, port_changes
    from isthmus.programs.node_proxy.snapshot import look_at

    settings = _settings(given)
    before, after = (_said(partial(look_at, settings, Path(path))) for path in (old, new))
    found = {
        family: (
            port_changes(before.views[family], after.views[family]),
            line_changes(before.rendered(family).places, after.rendered(family).places),
        )
        for family in _families(family_name, before, after)
    }
    if output != TEXT:
        print_data(difference_json(found), output)
    else:
        show_difference(found, color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    return DIFFERENT if any(ports or lines for ports, lines in found.values()) else SAME


diff = ToolCommand(
    "diff",
    _declared(*_SHAPING),
    [
        _argument("OLD"),
        _argument("NEW"),
        _family("Family to compare [default: those that Services have]"),
        output_parameter(),
    ],
    """\
isthmus node-proxy diff before/ after/ --cluster-cidr=10.180.0.0/16
isthmus node-proxy diff old.yaml new.yaml --proxy-mode=nftables --detect-local=node-cidr""",
    callback=_diff,
    short_help="Show what a change of manifests does to the rules",
    help="""Show what a change of manifests does to the rules

    OLD and NEW are files or directories of Services, EndpointSlices and Nodes. First it is said in
    words, port by port, then as the lines of rules that go (-) and come (+). The exit code is 0 if
    nothing changes, 1 if something does, and 2 if something is wrong.
    """,
)

COMMANDS = (render, explain_command, diff)
