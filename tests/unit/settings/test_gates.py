"""Feature gates: Kubernetes' syntax, and what is wrong with a text."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER, GATES, GateSettings, parse_gates
from isthmus.settings.options import compose, options_of
from isthmus.settings.parsing import load


def enabled(*texts: str) -> bool:
    return load(GateSettings, {"feature_gates": texts}, {}).enabled(CLUSTER_TO_MASTER)


def test_the_gate_is_alpha_and_off() -> None:
    gate = GATES[CLUSTER_TO_MASTER]
    assert (gate.name, gate.stage, gate.default) == (CLUSTER_TO_MASTER, "ALPHA", False)
    assert not GateSettings().enabled(CLUSTER_TO_MASTER)
    assert GateSettings().features == ()


@pytest.mark.parametrize("value", ["1", "t", "T", "TRUE", "true", "True"])
def test_every_spelling_of_true_in_go(value: str) -> None:
    assert enabled(f"{CLUSTER_TO_MASTER}={value}")


@pytest.mark.parametrize("value", ["0", "f", "F", "FALSE", "false", "False"])
def test_every_spelling_of_false_in_go(value: str) -> None:
    assert not enabled("AllAlpha=true", f"{CLUSTER_TO_MASTER}={value}")


@pytest.mark.parametrize(
    ("texts", "on"),
    [
        ([f"{CLUSTER_TO_MASTER}=true", f"{CLUSTER_TO_MASTER}=false"], False),
        ([f"{CLUSTER_TO_MASTER}=false,{CLUSTER_TO_MASTER}=true"], True),
        ([f" {CLUSTER_TO_MASTER} = true , AllBeta=false,"], True),
        (["AllAlpha=true"], True),
        (["AllBeta=true"], False),
        ([f"AllAlpha=true,{CLUSTER_TO_MASTER}=false"], False),
        ([f"{CLUSTER_TO_MASTER}=false,AllAlpha=true"], False),
        ([f"{CLUSTER_TO_MASTER}=true", "AllAlpha=false"], True),
        ([""], False),
    ],
)
def test_later_words_win_and_a_name_wins_over_its_stage(texts: list[str], on: bool) -> None:
    assert enabled(*texts) is on


def test_features_are_the_names_of_what_is_on() -> None:
    settings = GateSettings(feature_gates=("AllAlpha=true",))
    assert settings.features == (CLUSTER_TO_MASTER,)
    assert settings.states() == {CLUSTER_TO_MASTER: True}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "EnableClusterToMastrTraffic=true",
            "--feature-gates: no feature gate is called 'EnableClusterToMastrTraffic', did you"
            " mean EnableClusterToMasterTraffic?",
        ),
        (
            "Nothing=true",
            "--feature-gates: no feature gate is called 'Nothing', there are"
            " EnableClusterToMasterTraffic, AllAlpha, AllBeta",
        ),
        (
            CLUSTER_TO_MASTER,
            "--feature-gates: EnableClusterToMasterTraffic needs a value, such as"
            " EnableClusterToMasterTraffic=true",
        ),
        (
            f"{CLUSTER_TO_MASTER}=yes",
            "--feature-gates: EnableClusterToMasterTraffic: 'yes' is neither true nor false",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gates([text])
    assert str(caught.value) == sentence


@pytest.mark.parametrize("settings", [ServerSettings, AgentSettings])
def test_both_programs_have_the_flag_and_their_help_lists_the_gates(
    settings: type[ServerSettings] | type[AgentSettings],
) -> None:
    [flag] = [it for it in options_of(settings) if it.flag == "feature-gates"]
    assert f"{CLUSTER_TO_MASTER}=true|false (ALPHA - default=false)" in flag.help


@pytest.mark.parametrize(
    "settings",
    [
        compose(ServerSettings, feature_gates=("X=true",)),
        compose(AgentSettings, feature_gates=("X=true",), ca_cert="ca.crt"),
    ],
)
def test_both_programs_check_it(settings: ServerSettings | AgentSettings) -> None:
    with pytest.raises(ConfigError, match="no feature gate is called 'X'"):
        settings.validate()
