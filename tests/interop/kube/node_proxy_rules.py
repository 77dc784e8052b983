"""Rules listed by a kernel, made comparable: order is kept only where it matters.

Dropped: counters, the time of saving, the canary chains, which hold nothing, and from nftables the
rule without a map directly behind one that balances with a map of its own, which only ours have
(docs/how-to/node-proxy-nftables.md tells why). Sorted:

- chains, sets and maps by their names; elements of sets and maps;
- the Services in the iptables chains where a packet meets at most one of them (``ONE_EACH``);
  rules of the same Service keep their order, and the jumps to node ports, one or one for each
  address of the node, stay last, as their comment asks.

Kept: every other chain. In those of a Service the first rule that matches decides, endpoints are
counted from the first, and the chains of the kernel say who comes before whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

Rules = Mapping[str, tuple[str, ...]]

ONE_EACH = frozenset({
    "filter KUBE-SERVICES", "filter KUBE-EXTERNAL-SERVICES", "filter KUBE-NODEPORTS",
    "filter KUBE-PROXY-FIREWALL", "nat KUBE-SERVICES", "nat KUBE-NODEPORTS",
})  # fmt: skip
CANARY = "KUBE-PROXY-CANARY"
_LAST = "this must be the last rule"
_SERVICE = re.compile(r"--comment \S+|--dport \d+|-p \w+")
_ELEMENTS = "elements = "
_BALANCING = re.compile(
    r"(meta l4proto \w+ dnat ip6? (addr \. port )?to )?numgen random mod \d+ v?map \{"
)
_CERTAIN = re.compile(r"meta l4proto \w+ dnat to \S+:\d+")
# Those of one Service: kube-proxy empties a chain first and deletes it a second later.
_OF_SERVICES = re.compile(r"(chain|set) (service|local|external|firewall|endpoint|affinity)-")


def iptables_rules(saved: str) -> Rules:
    """Read iptables-save's text: ``table chain`` → its policy and rules.

    Raises:
        ValueError: there is a line of no kind that is known here.
    """
    found: dict[str, list[str]] = {}
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            name, policy, _counters = line[1:].split()
            found[f"{table} {name}"] = [f"policy {policy}"]
        elif line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            found[f"{table} {chain}"].append(rule)
        elif line != "COMMIT" and not line.startswith("#"):
            raise ValueError(f"not a line of iptables-save: {line}")
    return {
        chain: tuple(sorted(rules, key=_position) if chain in ONE_EACH else rules)
        for chain, rules in sorted(found.items())
        if not chain.endswith(CANARY)
    }


def _position(rule: str) -> tuple[bool, list[str]]:
    return (True, [rule]) if _LAST in rule else (False, _SERVICE.findall(rule))


def nftables_rules(listed: str) -> Rules:
    """Read ``nft -s list table``: ``chain NAME``, ``set NAME``, ``map NAME`` → what is in it."""
    found: dict[str, tuple[str, ...]] = {}
    about: list[str] = []
    name, inside = "", about
    for line in _whole_lines(listed):
        depth = len(line) - len(line.lstrip("\t"))
        text = line.strip()
        if depth == 1 and text.endswith("{"):
            name, inside = text.removesuffix(" {"), []
        elif depth == 1 and text == "}":
            found[name], inside = tuple(_without_certain(inside)), about
        elif text.startswith(_ELEMENTS):
            inside += sorted(text.removeprefix(_ELEMENTS).strip("{ }").split(", "))
        elif text:
            inside.append(text)
    words = (word for lines in found.values() for line in lines for word in line.split())
    names = {word.lstrip("@").rstrip(",") for word in words}
    found = {
        key: lines
        for key, lines in found.items()
        # Left to be deleted: it is empty but for what declares it, and nothing leads there.
        if key.split()[1] in names or not _OF_SERVICES.match(key) or (lines and "chain" in key)
    }
    return {"table": tuple(about), **dict(sorted(found.items()))}


def _without_certain(rules: list[str]) -> Iterator[str]:
    """Leave out what stands directly behind a rule that balances, if it has that very shape."""
    for before, rule in pairwise(["", *rules]):
        if not (_BALANCING.match(before) and _CERTAIN.fullmatch(rule)):
            yield rule


def _whole_lines(listed: str) -> Iterator[str]:
    """Put the elements of a set, one a line, into one line."""
    pending = ""
    for line in listed.splitlines():
        pending = f"{pending} {line.strip()}" if pending else line
        if pending.lstrip().startswith(_ELEMENTS) and not line.endswith("}"):
            continue
        yield pending
        pending = ""


def differences(ours: Rules, theirs: Rules) -> list[str]:
    """Every line that only one has, and chains with the same lines in another order."""
    said = []
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if mine is None or other is None:
            said.append(f"{name}: only {'theirs' if mine is None else 'ours'}")
        elif mine != other:
            more = [f"{name}: - {line}" for line in other if line not in mine]
            more += [f"{name}: + {line}" for line in mine if line not in other]
            said += more or [f"{name}: the order differs: ours {mine}, theirs {other}"]
    return said


def parse(mode: str, text: str) -> Rules:
    """Read what ``Proxy.rules`` has of a family."""
    return iptables_rules(text) if mode == "iptables" else nftables_rules(text)
