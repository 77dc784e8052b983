"""The Kubernetes API as the doctor asks it, against a server with one fault after the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from doctor_bed import LIMIT_S, agent, by_check, patient, running, server

from isthmus.frame.finding import CheckId, CheckState
from isthmus.tools.doctor.alive import see_server_count
from isthmus.tools.doctor.layout import layout_of
from isthmus.tools.doctor.peers import see_api
from isthmus.tools.pki.making import PkiFiles

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Api(ThreadingHTTPServer):
    """Answers versions, reviews and Leases."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.skew = timedelta(0)
        self.denied: set[tuple[str, str]] = set()
        self.status = 200
        self.leases = 0
        self.asked: list[dict[str, Any]] = []


class Answers(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        if "/leases" in self.path:
            self._say(200, _leases(self.server.leases))
        else:
            self._say(self.server.status, {"gitVersion": "v1.36.0"})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        wanted = json.loads(self.rfile.read(length))["spec"]["resourceAttributes"]
        self.server.asked.append(wanted)
        if self.server.status == 401:
            self._say(401, {"kind": "Status", "status": "Failure", "message": "Unauthorized"})
            return
        allowed = (wanted["verb"], wanted["resource"]) not in self.server.denied
        self._say(201, {"spec": {"resourceAttributes": wanted}, "status": {"allowed": allowed}})

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(datetime.now(UTC) + self.server.skew, usegmt=True)

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _leases(count: int) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "s", "renewTime": now, "leaseDurationSeconds": 60}
    items = [{"metadata": {"name": f"s{number}"}, "spec": spec} for number in range(count)]
    return {"kind": "LeaseList", "metadata": {"resourceVersion": "1"}, "items": items}


@contextmanager
def serving() -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        api.shutdown()
        thread.join(LIMIT_S)
        api.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as started:
        yield started


@pytest.fixture
def kubeconfig(tmp_path: Path, api: Api) -> str:
    return _kubeconfig(tmp_path, f"http://127.0.0.1:{api.server_address[1]}")


def _kubeconfig(directory: Path, url: str) -> str:
    path = directory / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "abcdef-a-token"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def tokens(certificates: PkiFiles, kubeconfig: str) -> Any:
    return server(
        certificates,
        kubeconfig=kubeconfig,
        enable_lease_controller=True,
        agent_namespace="kube-system",
        agent_service_account="agent",
        authentication_audience="a",
    )


def test_a_good_api_is_well(api: Api, kubeconfig: str, certificates: PkiFiles) -> None:
    findings = list(see_api(patient("server", tokens(certificates, kubeconfig))))
    assert {one.state for one in findings} == {CheckState.OK}, findings
    asked = {(one["verb"], one["resource"]) for one in api.asked}
    assert ("create", "tokenreviews") in asked
    assert {("list", "leases"), ("create", "leases"), ("update", "leases")} <= asked
    assert "abcdef-a-token" not in str(findings)


def test_a_permission_that_is_missing_is_found(
    api: Api, kubeconfig: str, certificates: PkiFiles
) -> None:
    api.denied = {("create", "tokenreviews")}
    findings = list(see_api(patient("server", tokens(certificates, kubeconfig))))
    failed = [one for one in findings if one.state is CheckState.FAILED]
    assert [one.check for one in failed] == [CheckId.PERMISSIONS]
    assert "create tokenreviews.authentication.k8s.io" in failed[0].about


def test_a_token_that_the_api_does_not_know_is_found(
    api: Api, kubeconfig: str, certificates: PkiFiles
) -> None:
    api.status = 401
    found = by_check(see_api(patient("server", tokens(certificates, kubeconfig))))
    (finding,) = found[CheckId.PERMISSIONS]
    assert finding.state is CheckState.FAILED
    assert "credentials" in finding.todo


@pytest.mark.parametrize(
    ("skew_s", "state"), [(0, CheckState.OK), (30, CheckState.WARNING), (-7200, CheckState.FAILED)]
)
def test_the_time_of_the_api_is_compared(
    api: Api, kubeconfig: str, certificates: PkiFiles, skew_s: int, state: CheckState
) -> None:
    api.skew = timedelta(seconds=skew_s)
    found = by_check(see_api(patient("server", tokens(certificates, kubeconfig))))
    assert [one.state for one in found[CheckId.CLOCK]] == [state]


def test_an_api_that_is_ill_is_found(api: Api, kubeconfig: str, certificates: PkiFiles) -> None:
    api.status = 503
    found = by_check(see_api(patient("server", tokens(certificates, kubeconfig))))
    assert found[CheckId.KUBE_API][0].state is CheckState.FAILED


def test_an_api_that_does_not_answer_is_found(tmp_path: Path, certificates: PkiFiles) -> None:
    with serving() as gone:
        kubeconfig = _kubeconfig(tmp_path, f"http://127.0.0.1:{gone.server_address[1]}")
    (finding,) = see_api(patient("server", tokens(certificates, kubeconfig)))
    assert (finding.check, finding.state) == (CheckId.KUBE_API, CheckState.FAILED)


def test_a_kubeconfig_that_cannot_be_used_is_found(tmp_path: Path, certificates: PkiFiles) -> None:
    (tmp_path / "k").write_text("- not\n- one\n")
    (finding,) = see_api(patient("server", tokens(certificates, str(tmp_path / "k"))))
    assert (finding.check, finding.state) == (CheckId.KUBE_API, CheckState.FAILED)
    assert "--kubeconfig" in finding.about and finding.seen == "not a kubeconfig"


def test_who_needs_no_api_is_not_asked_about_it(certificates: PkiFiles) -> None:
    assert layout_of(agent(certificates)).kube() is None
    assert list(see_api(patient("agent", agent(certificates)))) == []


@pytest.mark.parametrize(("leases", "state"), [(2, CheckState.OK), (3, CheckState.WARNING)])
def test_leases_are_counted(
    api: Api, kubeconfig: str, certificates: PkiFiles, leases: int, state: CheckState
) -> None:
    api.leases = leases
    settings = agent(certificates, count_server_leases=True, kubeconfig=kubeconfig)
    links = [{"peerId": "a"}, {"peerId": "b"}]
    who = running("agent", settings, snapshot={"knownServers": 2, "links": links})
    (finding,) = see_server_count(who)
    assert finding.state is state
    assert f"{leases} Leases" in finding.seen
