"""The scenarios of ``make hold`` with small numbers: counts have to be right on any machine.

How long something takes is never looked at here; that is what the whole run is for (docs/hold.md).
Most are for ``make nightly``. What needs namespaces is tests/lab/test_hold_short.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 110.0


def hold(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hold.run", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def play(letter: str, path: Path, **numbers: object) -> dict[str, Any]:
    """Run one scenario as ``make hold`` does; what it found."""
    settings = [f"--set={name}={value!r}" for name, value in numbers.items()]
    done = hold(f"--only={letter}", "--quick", f"--json={path}", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(path.read_text())["scenarios"]
    wrong = [each for each in found["figures"] if each["held"] is False and not each["timed"]]
    assert not wrong, (wrong, found["notes"])
    assert found["scenario"] == letter
    result: dict[str, Any] = {each["name"]: each["value"] for each in found["figures"]}
    return result


@pytest.mark.nightly
def test_others_go_on_beside_readers_that_stopped(tmp_path: Path) -> None:
    found = play("A", tmp_path / "a", rounds=1, seconds=0.5, tunnels=10, many=4)
    assert found["connect, mux link: other tunnels or dials that stood still"] == 0
    assert found["grpc, grpc link: tunnels that stalled"] == 2 * (1 + 4)
    assert len(found) == 4 * 14  # both frontends over both links


@pytest.mark.nightly
def test_dials_go_elsewhere_when_an_agent_ends_or_freezes(tmp_path: Path) -> None:
    found = play("B", tmp_path / "b", cases=("closed", "frozen"), settle_s=0.5)
    for link in ("mux", "grpc"):
        assert found[f"closed, {link} link: dials since it happened"] > 0
        assert found[f"frozen, {link} link: dials since it happened"] > 0


def test_dials_that_are_given_up_leave_nothing(tmp_path: Path) -> None:
    found = play("C", tmp_path / "c", dials=200, rounds=2)
    assert found["dials that were answered"] + found["dials that were given up"] == 400
    assert found["dials that were given up"] > 0


@pytest.mark.nightly
def test_nothing_is_lost_when_programs_are_told_to_stop(tmp_path: Path) -> None:
    numbers = {"requests_per_s": 50, "streams": 8, "grace_s": 1, "lead_s": 0.5}
    found = play("D", tmp_path / "d", **numbers)
    for program in ("agent", "server"):
        for link in ("mux", "grpc"):
            assert found[f"{program} stops, {link} link: requests answered"] > 0
            assert found[f"{program} stops, {link} link: streams that came whole"] > 0
    assert sum(value for name, value in found.items() if "seen as resets" in name) > 0


@pytest.mark.nightly
def test_a_mesh_behind_one_address_heals(tmp_path: Path) -> None:
    found = play("E", tmp_path / "e", agents=1, sizes=(2, 3, 2), leases=False, grace_s=2)
    assert found["dials on the way"] > 0
    assert found["one is replaced by another: dials that failed"] == 0
    assert found["3 → 2 servers: dials that failed"] == 0


@pytest.mark.nightly
def test_a_starved_agent_fails_no_dial(tmp_path: Path) -> None:
    found = play("F", tmp_path / "f", agents=3, seconds=2.0, tunnels=8)
    assert found["mux link: dials in all"] > 0


@pytest.mark.nightly
def test_new_certificates_and_authorities_drop_nothing(tmp_path: Path) -> None:
    found = play("G", tmp_path / "g", seconds=1.0, tunnels=8)
    assert found["authorities replaced"] == 1
    assert found["requests on open tunnels"] > 0


@pytest.mark.nightly
def test_every_byte_before_a_half_close_or_a_close_arrives(tmp_path: Path) -> None:
    found = play("H", tmp_path / "h", times=64)
    assert sum(value for name, value in found.items() if "answered" in name) == 4 * 32


@pytest.mark.nightly
def test_churn_leaves_nothing_and_every_sum_is_right(tmp_path: Path) -> None:
    assert play("J", tmp_path / "j", tunnels=400)["tunnels"] == 400


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only=X"], "choose from A,B,C"),
        (["--set=rounds=3"], "--set goes with one scenario"),
        (["--only=C", "--set=rabbits=3"], "choose from dials"),
        (["--only=C", "--set=rounds=__import__('os')"], "not NAME=VALUE"),
    ],
)
def test_a_wrong_command_line_is_said(arguments: list[str], why: str) -> None:
    done = hold(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
