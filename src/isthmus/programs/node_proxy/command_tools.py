"""``isthmus node-proxy render``, ``explain`` and ``diff``: show rules without a node.

They take those flags of the program that shape rules. Imports happen when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import KubeError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import TEXT, filled, has_colours, output_parameter, print_data
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
# How these commands redeclare settings of the program.
_OTHERWISE: dict[str, dict[str, Any]] = {
    "manifests": {
        "help": "File or directory with Services, EndpointSlices and the Node, instead of asking "
        "the API once",
        "metavar": "DIR|FILE",
    },
}


class ToolCommand(FlagCommand):
    """A command with some of the program's flags, and arguments and options of its own."""

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


def _make_snapshot(given: dict[str, tuple[str, ...]]) -> Snapshot:
    """A snapshot made from the flags; its notes go to standard error."""
    from isthmus.programs.node_proxy.snapshot import look

    settings = _settings(given)
    return _with_notes(lambda: look(settings))


def _settings(given: dict[str, tuple[str, ...]]) -> NodeProxySettings:
    from isthmus.programs.node_proxy.config import read_settings

    settings = read_settings(given)
    _print_notes(settings.notes())
    return settings


def _with_notes(look: Callable[[], Snapshot]) -> Snapshot:
    try:
        found = look()
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    _print_notes(found.notes)
    return found


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"isthmus: {note}", err=True)


def _families(family_name: str | None, *snapshots: Snapshot) -> list[IpFamily]:
    from isthmus.programs.node_proxy.rules.model import IpFamily

    if family_name:
        return [IpFamily(family_name)]
    found = {family for each in snapshots for family in each.families}
    return [family for family in IpFamily if family in found]


def _render(family_name: str | None, **given: tuple[str, ...]) -> int:
    snapshot = _make_snapshot(given)
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

    The rules are those that the program would write into an empty kernel: input for
    iptables-restore --noflush, for nft -f, or for ipset restore, iptables-restore and ipvsadm. The
    node is known only from its Node object and the flags, and nothing is changed.
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
    snapshot = _make_snapshot(given)
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
    """Walk the packet, and note what the answer depends on."""
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
        src = destination.address  # the kernel's choice of source for an address of the node
    packet = packet_to(destination, src, place, **how)
    found = explain(rules, packet, place.view)
    notes = [*found.notes, *_on_localhost(snapshot, destination)]
    pod = packet.origin is Origin.POD
    if pod is not taken_for_local(packet, settings) and settings.detector.matches(family):
        taken = "does not count this packet as" if pod else "counts this packet as"
        notes.append(f"the detector {taken} traffic from a pod of this node")
    return found, notes


def _on_localhost(snapshot: Snapshot, destination: Any) -> list[str]:
    """Connections that the node proxy itself forwards, without rules."""
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
    return [f"the node proxy listens on this port for {port.key} and forwards to {ends}"]


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

    SRC is an IP address, or the word node. DST is an address and a port, optionally followed by
    /udp or /sctp. The rules are those that render prints; rules of other programs and routes are
    not known. A source counts as a pod if it is in the Node's podCIDRs or is an endpoint on this
    node; its packet arrives as the detector expects.
    """,
)


def _diff(
    old: str, new: str, family_name: str | None, output: str, **given: tuple[str, ...]
) -> int:
    from isthmus.programs.node_proxy.command_output import difference_json, show_difference
    from isthmus.programs.node_proxy.rules.rendering import line_changes, port_changes
    from isthmus.programs.node_proxy.snapshot import look_at

    settings = _settings(given)
    before, after = (_with_notes(partial(look_at, settings, Path(path))) for path in (old, new))
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
        show_difference(found, color=has_colours())
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
    short_help="Show how a change of manifests changes the rules",
    help="""Show how a change of manifests changes the rules

    OLD and NEW are files or directories of Services, EndpointSlices and Nodes. The output lists the
    changed ports in words, then the rule lines removed (-) and added (+). Exit code 0 means no
    change, 1 means changes, and 2 an error.
    """,
)

COMMANDS = (render, explain_command, diff)
