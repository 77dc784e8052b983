"""What iptables-restore is given, and what is read from its complaints."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel.commands import (
    IptablesCommands,
    IptablesPrograms,
    rule_meant,
)
from isthmus.programs.node_proxy.kernel.iptables import restore_input
from isthmus.programs.node_proxy.rules.iptables.ruleset import SavedTable, TableWrite
from isthmus.programs.node_proxy.rules.model import IpFamily

INPUT = """\
*nat
:BAR - [0:0]
-A BAR -p tcp --dport 99999 -j RETURN
-A BAR -j NOSUCH
COMMIT
"""


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        # As iptables 1.8.9 says it, on nf_tables and legacy.
        (
            "iptables-restore v1.8.9 (nf_tables): invalid port/service `99999' specified\n"
            "Error occurred at line: 3\nTry `iptables-restore -h' or ...",
            "-A BAR -p tcp --dport 99999 -j RETURN",
        ),
        ("iptables-restore: line 4 failed", "-A BAR -j NOSUCH"),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): \n"
            "line 4: RULE_APPEND failed (No such file or directory): rule in chain BAR",
            "-A BAR -j NOSUCH",
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Chain 'NOSUCH' does not exist\n"
            "Error occurred at line: 5",
            "-A BAR -j NOSUCH",
        ),
        ("iptables-restore: line 5 failed", ""),
        ("iptables-restore: line 77 failed", ""),
        ("Another app is currently holding the xtables lock.", ""),
    ],
)
def test_the_rule_that_is_meant(error: str, rule: str) -> None:
    assert rule_meant(error, INPUT) == rule


def test_names_of_programs() -> None:
    four = IptablesPrograms(family=IpFamily.IPV4, prefix=("ip", "netns", "exec", "x"))
    assert four.command("restore") == ("ip", "netns", "exec", "x", "iptables-restore")
    six = IptablesPrograms(family=IpFamily.IPV6, variant="legacy")
    assert (six.command(), six.command("save")) == (
        ("ip6tables-legacy",),
        ("ip6tables-legacy-save",),
    )


def test_without_the_program() -> None:
    commands = IptablesCommands(
        programs=IptablesPrograms(family=IpFamily.IPV4, variant="of-nobody")
    )
    with pytest.raises(ConfigError, match="cannot run iptables-of-nobody"):
        commands.check()


def write(chains: int, *, inserted: tuple[str, ...] = ()) -> TableWrite:
    names = tuple(f"C{number}" for number in range(chains))
    rules = tuple(f"-A {name} -j RETURN\n" for name in names)
    return TableWrite(table="nat", chains=names, rules=rules, count=chains, inserted=inserted)


def test_a_large_table_is_listed_first() -> None:
    large = write(3000)
    assert restore_input([large], there=SavedTable(), may_list=True).startswith("*nat\n-S\n:C0")
    assert "-S" not in restore_input([large], there=SavedTable(), may_list=False)
    # Where listing would take longer than what it is for.
    assert "-S" not in restore_input([large], there=SavedTable(count=20_000), may_list=True)
    assert "-S" not in restore_input([write(30)], there=SavedTable(), may_list=True)


def test_jumps_come_before_a_listing() -> None:
    text = restore_input(
        [write(3000, inserted=("-I OUTPUT -j C1", "-I PREROUTING -j C2"))],
        there=SavedTable(chains=frozenset({"C2"})),
        may_list=True,
    )
    assert text.startswith(
        "*nat\n:C1 - [0:0]\n-I OUTPUT -j C1\n-I PREROUTING -j C2\nCOMMIT\n*nat\n-S\n"
    )
    assert text.count("-I ") == 2


def test_nothing_is_nothing() -> None:
    assert restore_input([TableWrite(table="nat")], there=SavedTable(), may_list=True) == ""
