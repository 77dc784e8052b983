"""Flags as Go reads them, in front of real settings."""

from __future__ import annotations

from importlib import import_module

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand, go_style, grouped, settings_command
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import options_of

OPTIONS = options_of(ServerSettings)
AGENT_SIDE = ["--cluster-cert=c", "--cluster-key=k", "--cluster-ca-cert=ca"]


def run(*args: str) -> ServerSettings:
    """The settings that a command is run with."""
    seen: list[ServerSettings] = []

    def keep(settings: ServerSettings) -> int:
        seen.append(settings)
        return 7

    command = settings_command("server", ServerSettings, keep, help="Run it", examples="x")
    code = command.main([*args], prog_name="isthmus", standalone_mode=False)
    assert code == 7
    return seen[0]


def good(*args: str) -> ServerSettings:
    return run("--uds-name=/run/x.sock", *AGENT_SIDE, *args)


def test_both_spellings_of_a_value() -> None:
    assert good("--agent-port=9000") == good("--agent-port", "9000")
    assert good("--agent-port", "9000").agent_port == 9000


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ([], True),
        (["--delete-existing-uds-file"], True),
        (["--delete-existing-uds-file=false"], False),
        (["--delete-existing-uds-file=0"], False),
        (["--delete-existing-uds-file=false", "--delete-existing-uds-file"], True),
    ],
)
def test_booleans_as_in_go(args: list[str], value: bool) -> None:
    assert good(*args).delete_existing_uds_file is value


@pytest.mark.parametrize("args", [["-v", "4"], ["-v=4"], ["-v4"], ["--v", "4"], ["--v=4"]])
def test_the_log_level_has_a_short_name(args: list[str]) -> None:
    assert good(*args).log.v == 4


@pytest.mark.parametrize("args", [["-v=debug"], ["-v", "debug"], ["--v=debug"]])
def test_a_log_level_that_is_none_is_named(args: list[str]) -> None:
    with pytest.raises(ConfigError, match="--v: 'debug' is not a whole number"):
        good(*args)


def test_a_boolean_does_not_take_the_next_word() -> None:
    spelled = go_style(["--insecure-agents", "--agent-port", "1"], OPTIONS)
    assert spelled == ["--insecure-agents=true", "--agent-port", "1"]


def test_a_value_may_look_like_a_flag() -> None:
    args = ["--uds-name", "--insecure-agents", "--", "--insecure-agents"]
    assert go_style(args, OPTIONS) == args


def test_other_servers_are_listed_once_or_named_one_by_one() -> None:
    one, two = "a=10.0.0.1:8091", "b=10.0.0.2:8091"
    listed = good("--server-id=a", f"--peer-servers={one},{two}")
    assert listed.peer_server == (one, two)
    assert listed == good("--server-id=a", f"--peer-server={one}", "--peer-server", two)


def test_repeated_flags_add_up_and_others_are_replaced() -> None:
    first, second = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"
    settings = good(
        f"--cipher-suites={first}",
        f"--cipher-suites={second}",
        "--proxy-strategies=destHost",
        "--proxy-strategies=defaultRoute,default",
    )
    assert settings.cipher_suites == (first, second)
    assert settings.proxy_strategies == ("defaultRoute", "default")


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_SERVER_ID", "from-env")
    assert good().server_id == "from-env"
    assert good("--server-id=from-flag").server_id == "from-flag"


def test_settings_are_validated_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"^--agent-port must be from 0 to 65535"):
        good("--agent-port=99999")


def test_flags_without_effect_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    good(
        "--xfr-channel-size=1", "--enable-profiling", "--enable-contention-profiling",
        "--log-dir=/x", "--logtostderr=true",
    )  # fmt: skip
    assert capsys.readouterr().err == (
        "isthmus: these flags have no effect here:"
        " --enable-contention-profiling, --xfr-channel-size, --logtostderr, --log-dir\n"
    )
    good("--v=4", "--backend-dial-timeout=3s")
    assert capsys.readouterr().err == ""


def test_groups_hold_every_flag_once_and_logging_comes_last() -> None:
    groups = grouped(OPTIONS)
    assert sorted(each.flag for _, group in groups for each in group) == sorted(
        each.flag for each in OPTIONS
    )
    assert len(groups) == len({name for name, _ in groups})
    assert groups[-1][0] == "Logging"


def test_help_keeps_flags_whole() -> None:
    import_module("isthmus.cli.main")  # which has click wrap between words only
    command = FlagCommand("server", OPTIONS, "isthmus server --x", help="Run it")
    text = command.get_help(command.make_context("server", [], resilient_parsing=True))
    for each in OPTIONS:
        assert f"--{each.flag}" in text
    assert not [line for line in text.splitlines() if line.endswith("-")]
    assert "\n\nExample:\n  isthmus server --x\n\n" in text
