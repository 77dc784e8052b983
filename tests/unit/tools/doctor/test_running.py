"""Programs that run, as their admin ports show them: new ones, older ones, and what is none."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from doctor_bed import LIMIT_S, agent

from isthmus.client.admin import AdminClient
from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import shown_flags
from isthmus.tools.doctor.examine import lines, summary, to_json
from isthmus.tools.doctor.running import Asking, local_pid, patients_of, settings_of
from isthmus.tools.pki.making import PkiFiles

ASKING = Asking(environ={}, timeout_s=LIMIT_S)


def configz(program: str, settings: object) -> dict[str, Any]:
    return {"program": program, "pid": 1, "flags": shown_flags(settings)}


def test_flags_come_back_as_they_were(certificates: PkiFiles) -> None:
    settings = agent(
        certificates,
        proxy_server_host=("a.example.com", "10.0.0.1"),
        host_alias=("db=10.0.0.5", "x=10.0.0.6"),
        keepalive_time_s=90.0,
        sync_interval_s=0.05,
        agent_identifiers="host=a&host=b",
    )
    assert settings_of(configz("agent", settings)) == settings
    server = ServerSettings(mode=("http-connect",), uds_name="/s", server_port=None)
    assert settings_of(configz("server", server)) == server


def test_flags_with_something_blanked_can_be_read() -> None:
    settings = ApiserverProxySettings(
        upstream=("a:6443",), http_proxy="http://me:secret@proxy.example.com:3128"
    )
    found = settings_of(json.loads(json.dumps(configz("apiserver-proxy", settings))))
    plan = found.plan()
    assert str(plan.through.proxy.at) == "proxy.example.com:3128"


@pytest.mark.parametrize("wrong", [{}, {"program": "server"}, {"program": "x", "flags": {}}])
def test_what_is_no_configuration_is_said(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="/configz"):
        settings_of(wrong)


@contextmanager
def admin(answers: Mapping[str, object]) -> Iterator[AdminClient]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            data = json.dumps(answers.get(path, {})).encode()
            self.send_response(200 if path in answers else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield AdminClient(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=LIMIT_S)
    finally:
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()


def test_an_older_program_is_a_warning(certificates: PkiFiles) -> None:
    """It has a snapshot, and neither flags nor a history."""
    with admin({"/snapshot": {"kind": "AgentSnapshot", "version": "0.0.1"}}) as client:
        patients, (finding,) = patients_of([client], ASKING)
    assert patients == []
    assert finding.state is CheckState.WARNING
    assert "0.0.1" in finding.seen
    assert "isthmus doctor agent" in finding.todo


def test_paths_that_are_missing_are_a_warning(certificates: PkiFiles) -> None:
    answers = {
        "/snapshot": {"kind": "AgentSnapshot", "version": "0.0.1"},
        "/configz": configz("agent", agent(certificates)),
        "/metrics": "",
    }
    with admin(answers) as client:
        (patient,), (finding,) = patients_of([client], ASKING)
    assert finding.state is CheckState.WARNING
    assert "/history" in finding.seen
    assert patient.program == "agent"
    assert re.fullmatch(r"agent 127\.0\.0\.1:[0-9]+", patient.name)


def test_a_process_is_counted_as_this_machine_counts() -> None:
    """In a container the program says that it is process 1."""
    with admin({}) as client:
        assert local_pid(client.url, 1) == os.getpid()
        assert local_pid(client.url, os.getpid()) == os.getpid()
    assert local_pid("https://10.0.0.7:8095", os.getpid()) == 0
    assert local_pid(client.url, 1) == 0  # nobody listens there, and process 1 is none of ours


@pytest.mark.parametrize("nonsense", [None, [], "x", {"pid": "x", "program": 7, "flags": 1}])
def test_a_port_that_talks_nonsense_is_said(nonsense: object) -> None:
    with admin(
        dict.fromkeys(("/snapshot", "/configz", "/history", "/metrics"), nonsense)
    ) as client:
        patients, (finding,) = patients_of([client], ASKING)
    assert patients == []
    assert finding.state in (CheckState.FAILED, CheckState.WARNING)


def test_a_port_that_is_somebody_elses_is_a_failure() -> None:
    with admin({}) as client:
        patients, (finding,) = patients_of([client], ASKING)
    assert (patients, finding.state) == ([], CheckState.FAILED)


def test_a_report_says_where_to_begin() -> None:
    asked = Asked(CheckId.PORTS, "--agent-port 8091", "tried")
    found = [
        asked.ok("free"),
        asked.warn("w", "do"),
        asked.fail("taken", "end it"),
        asked.skip("s"),
    ]
    texts = [(word.strip(), rest) for word, _, rest in lines(found)]
    assert texts[0] == ("ok", "ports: --agent-port 8091: tried: free")
    assert texts[2] == ("FAIL", "ports: --agent-port 8091: tried: taken → end it")
    assert [word for word, _ in texts] == ["ok", "warn", "FAIL", "skipped"]
    said = summary(found)
    assert said == "1 ok, 1 warn, 1 FAIL, 1 skipped; begin with ports: --agent-port 8091"
    # A program that is not ready may be so for what is wrong with the next one.
    ready = Asked(CheckId.READINESS, "/readyz", "asked").fail("no", "see")
    assert summary([ready, *found]).endswith("begin with ports: --agent-port 8091")
    assert to_json([ready, *found])["failed"] == ["ports", "readiness"]
    report = to_json(found)
    assert (report["ok"], report["failed"]) == (False, ["ports"])
    assert report["counts"] == {"ok": 1, "warning": 1, "failed": 1, "skipped": 1}
