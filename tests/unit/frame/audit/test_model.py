"""Audit records as values and as lines."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from isthmus.frame.audit.model import (
    MAX_CHARS,
    Claimed,
    Record,
    Requester,
    Stage,
    claimed_by,
    cut,
    dropped,
    end_line,
    is_proven,
    requester_of,
    rfc3339,
    to_line,
)
from isthmus.tunnel.end import Ending
from isthmus.values import ANONYMOUS, NOTHING, Identity, RequestMetadata

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "audit-fields.md"


def whole() -> Record:
    """A record with everything in it."""
    return Record(
        time="2026-01-02T03:04:05.000006Z",
        stage=Stage.END,
        connection_id="0011aabb-1f",
        server_id="s-1",
        frontend="http-connect",
        client="10.0.0.9:4711",
        requester=Requester(name="kube-apiserver", kind="certificate", groups=("masters",)),
        claimed=Claimed(believed=True, user="alice", tenant="t"),
        network="cluster",
        destination="10.0.0.5:443",
        address="10.0.0.5:443",
        agent_id="node-1",
        link_id=3,
        decision="allow",
        rule="kubelets",
        start_time="2026-01-02T03:04:05.000001Z",
        end_time="2026-01-02T03:04:05.000006Z",
        duration_s=0.000005,
        bytes_to_target=0,
        bytes_to_client=20,
        ending="closed",
        ended_by="both",
    )


def test_a_record_is_one_line_of_json() -> None:
    line = to_line(whole())
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    read = json.loads(line)
    assert list(read) == [
        "time", "stage", "connectionId", "serverId", "frontend", "client", "requester", "claimed",
        "network", "destination", "address", "agentId", "linkId", "decision", "rule", "startTime",
        "endTime", "durationSeconds", "bytesToTarget", "bytesToClient", "ending", "endedBy",
    ]  # fmt: skip
    assert read["requester"] == {
        "name": "kube-apiserver",
        "kind": "certificate",
        "groups": ["masters"],
    }
    assert read["claimed"] == {"believed": True, "user": "alice", "tenant": "t"}
    assert read["stage"] == "End"
    assert read["bytesToTarget"] == 0


def test_every_key_is_in_the_document() -> None:
    document = DOCUMENT.read_text()
    keys = {field.encode_name for field in _fields(Record)} | {"claimed.believed"}
    assert {key for key in keys if f"`{key}`" not in document} == set()
    assert {stage.value for stage in Stage if f"`{stage.value}`" not in document} == set()


def _fields(kind: type[Record]) -> tuple[object, ...]:
    import msgspec

    return msgspec.structs.fields(kind)


def test_what_is_not_known_is_left_out() -> None:
    line = to_line(Record(time="t", stage=Stage.REFUSED, status=400, reason="no"))
    assert json.loads(line) == {"time": "t", "stage": "Refused", "status": 400, "reason": "no"}


@pytest.mark.parametrize("text", ['"}\n{"', "\r\n\x00\x1b[2J", "\u2028", "\ud800half", "ü"])
def test_nothing_that_a_peer_says_can_make_a_second_line(text: str) -> None:
    line = to_line(Record(time="t", stage=Stage.FAILED, reason=text))
    assert line.count(b"\n") == 1
    assert json.loads(line)["reason"] == text


@pytest.mark.parametrize("text", ["plain", '"}\n{"', "\ud800half", "ü"])
@pytest.mark.parametrize("ending", Ending)
def test_the_end_of_a_tunnel_is_its_begin_and_how_it_ended(text: str, ending: Ending) -> None:
    fields = {
        name: getattr(whole(), name)
        for name in ("connection_id", "requester", "claimed", "destination", "link_id")
    }
    begin = Record(
        time=rfc3339(1.0), stage=Stage.BEGIN, **fields, agent_id=text, start_time=rfc3339(0.5)
    )
    told = end_line(
        to_line(begin), now=1767323045.000006, duration_s=0.000015, bytes_to_target=0,
        bytes_to_client=2**40, ending=ending.value, ended_by="client",
    )  # fmt: skip
    at = rfc3339(1767323045.000006)
    expected = Record(
        time=at, stage=Stage.END, **fields, agent_id=text, start_time=rfc3339(0.5), end_time=at,
        duration_s=0.000015, bytes_to_target=0, bytes_to_client=2**40, ending=ending.value,
        ended_by="client",
    )  # fmt: skip
    assert told.count(b"\n") == 1 and told.endswith(b"\n")
    assert list(json.loads(told).items()) == list(json.loads(to_line(expected)).items())


def test_the_number_of_dropped_records_is_told() -> None:
    assert json.loads(to_line(dropped(7, now=0.5))) == {
        "time": "1970-01-01T00:00:00.500000Z",
        "stage": "Dropped",
        "dropped": 7,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1767323045.000006, "2026-01-02T03:04:05.000006Z"),
        (1767323045.9999999, "2026-01-02T03:04:06.000000Z"),
        (1767323045.25, "2026-01-02T03:04:05.250000Z"),
    ],
)
def test_times_have_six_digits_always(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
    assert abs(datetime.fromisoformat(text).timestamp() - seconds) < 1e-6


def test_who_asked_is_cut_to_size() -> None:
    identity = Identity("n" * 5000, tuple(f"g{number}" for number in range(200)))
    found = requester_of(identity)
    assert len(found.name) == MAX_CHARS + 1
    assert len(found.groups) == 64
    assert cut("x" * MAX_CHARS) == "x" * MAX_CHARS


def test_claims_say_whether_they_are_believed() -> None:
    assert claimed_by(NOTHING, believed=True) is None
    asking = RequestMetadata(user="u", groups=("g",), network="n", object="o", tenant="t")
    assert claimed_by(asking, believed=False) == Claimed(
        believed=False, user="u", groups=("g",), network="n", object="o", tenant="t"
    )
    assert claimed_by(RequestMetadata(traceparent="00-x"), believed=True) is None


@pytest.mark.parametrize(
    ("identity", "proven"),
    [
        (Identity("kube-apiserver"), True),
        (Identity("0", kind="uid"), True),
        (Identity("unknown", kind="uid"), False),
        (ANONYMOUS, False),
    ],
)
def test_who_has_proved_something(identity: Identity, proven: bool) -> None:
    assert is_proven(identity) is proven
