"""No port beyond 65535 reaches a socket: a kernel would bind another one, modulo 65536."""

from __future__ import annotations

import dataclasses

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.programs import programs
from isthmus.settings.options import Kind, Option, options_of, port
from isthmus.settings.parsing import check_values, load, parse_value


def _declared() -> dict[str, Option]:
    """Every option with a port, of every program and of its manifest."""
    found: dict[str, Option] = {}
    for program in programs():
        command = program.found(program.manifest)
        assert isinstance(command, FlagCommand)
        for option in (*options_of(program.settings_class), *command.declared):
            if option.kind is Kind.INT and "port" in option.flag.split("-"):
                found[f"{program.name} --{option.flag}"] = option
    return found


PORTS = _declared()


def test_there_are_ports() -> None:
    assert {name.partition(" ")[0] for name in PORTS} == {it.name for it in programs()}


@pytest.mark.parametrize("name", PORTS)
def test_a_port_of_any_program_has_sixteen_bits(name: str) -> None:
    option = PORTS[name]
    assert option.takes == "PORT"
    assert parse_value(option, "65535") == 65535
    for text in ("65536", "65616", "-1"):
        with pytest.raises(ConfigError, match=f"^--{option.flag} must be from [01] to 65535, not"):
            parse_value(option, text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TwoPorts:
    listens: int = port(0, help="Port to listen on")
    dials: int | None = port(None, least=1, help="Port of the server")
    #: By attribute, where a file has it.
    places: tuple[str, ...] = ()

    def named(self, attribute: str) -> str:
        return f"file.yaml:3: {attribute}"


def test_a_port_that_is_dialed_is_not_0() -> None:
    with pytest.raises(ConfigError, match=r"^--dials must be from 1 to 65535, not 0$"):
        load(TwoPorts, {"dials": ["0"]}, {})
    assert load(TwoPorts, {"listens": ["0"]}, {}) == TwoPorts()


def test_a_value_from_elsewhere_is_checked_as_well() -> None:
    check_values(TwoPorts(dials=1))
    with pytest.raises(ConfigError, match=r"^file.yaml:3: listens must be from 0 to 65535, not 65"):
        check_values(TwoPorts(listens=65536))
