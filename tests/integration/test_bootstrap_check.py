"""``isthmus bootstrap check`` against real programs, with one step broken after the other."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, Target, echo_target, free_port
from own_network import needs_root, own_network
from stack import Agent, Stack

from isthmus.cli.main import main
from isthmus.frame.finding import CheckState
from isthmus.programs.agent import node_traffic
from isthmus.tools.bootstrap.kubeconfig import KubeconfigInput, make_kubeconfig
from isthmus.tools.bootstrap.rules import StepName
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort

pytestmark = needs_root

GATE = ("EnableClusterToMasterTraffic=true",)
ADDRESS = "10.96.7.1"
PORT = 6443
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """The control plane's own, with the agent's address among kube-apiserver's names."""
    names = ("kubernetes", ADDRESS)
    return pki.init(tmp_path_factory.mktemp("control-plane"), server_names=names)


class Api(ThreadingHTTPServer):
    """What kube-apiserver answers to those who have no token, and to those who have one."""

    daemon_threads = True

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # The handshake is for the thread of the connection, as the listener's is for everybody.
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.version_status = 200
        self.endpoint = HostPort(ADDRESS, PORT)

    def handle_error(self, *_: object) -> None:
        """A client that leaves is none."""

    @property
    def name(self) -> str:
        """Where it is."""
        return f"127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        at = self.server.endpoint
        if self.path == SLICE:
            self._say(
                200,
                {
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [at.host]}],
                    "ports": [{"name": "https", "port": at.port}],
                },
            )
        elif self.server.version_status == 200:
            self._say(200, {"gitVersion": "v1.99.0"})
        else:
            self._say(self.server.version_status, {"kind": "Status"})

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(files: pki.PkiFiles) -> Iterator[Api]:
    with Api(files.server_cert, files.server_key) as api:
        thread = threading.Thread(target=api.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join(LIMIT_S)


@pytest.fixture
def api(authority: pki.PkiFiles) -> Iterator[Api]:
    with serving(authority) as started:
        yield started


def start(stack: Stack, destination: str, **agent: Any) -> Agent:
    """A server that permits one destination, and an agent that leads there."""
    stack.add_server(feature_gates=GATE, allowed_destination=(destination,))
    return add_agent(stack, destination, **agent)


def add_agent(stack: Stack, destination: str, **settings: Any) -> Agent:
    given = {
        "feature_gates": GATE,
        "bind_address": (ADDRESS,),
        "target": (f"{PORT}:{destination}",),
    }
    agent = stack.add_agent(**(given | settings))
    if agent.node is not None:
        stack.wait(lambda: agent.node is not None and len(agent.node.listeners()) > 0, "it listens")
    return agent


class Checked:
    """A report, as the command printed it."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.report = json.loads(text)
        self.steps = {step["step"]: step for step in self.report["steps"]}

    def state(self, name: StepName) -> CheckState:
        return CheckState(self.steps[name.value]["state"])

    def said(self, name: StepName) -> str:
        return f"{self.steps[name.value]['found']} → {self.steps[name.value]['advice']}"

    def breaks_at(self, name: StepName) -> str:
        """The first step that failed is this one; what is said of it."""
        assert (self.code, self.report["failed"]) == (1, name.value), self.report
        return self.said(name)


@pytest.fixture
def check(authority: pki.PkiFiles, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command for an agent."""

    def run(agent: Agent | None, *more: str) -> Checked:
        port = agent.admin_port if agent is not None else free_port()
        flags = {
            "--bind-address": ADDRESS,
            "--agent-admin": f"127.0.0.1:{port}",
            "--ca-cert": str(authority.ca_cert),
        }
        # None of these may come twice.
        flags |= dict(flag.split("=", 1) for flag in more)
        words = (f"{flag}={value}" for flag, value in flags.items())
        code = main(["bootstrap", "check", "-o", "json", *words])
        return Checked(code, capsys.readouterr().out)

    return run


def write_kubeconfig(directory: Path, authority: pki.PkiFiles, **more: Any) -> Path:
    token = directory / "token"
    token.write_text("abcdef.0123456789abcdef\n")
    at = HostPort(ADDRESS, PORT)
    asked = KubeconfigInput(at=at, ca_cert=str(authority.ca_cert), token_file=str(token), **more)
    path = directory / "kubeconfig"
    path.write_text(make_kubeconfig(asked)[0])
    return path


def test_all_is_well(
    fresh: Stack, api: Api, check: Any, tmp_path: Path, authority: pki.PkiFiles
) -> None:
    agent = start(fresh, api.name)
    found = check(agent, f"--kubeconfig={write_kubeconfig(tmp_path, authority)}")
    assert found.code == 0, found.report
    assert {step["state"] for step in found.report["steps"]} == {"ok"}, found.report
    assert found.report["ok"] and found.report["failed"] is None
    assert "v1.99.0" in found.said(StepName.API)
    assert api.name in found.said(StepName.TARGET)


def test_everything_can_come_from_the_kubeconfig(
    fresh: Stack, api: Api, tmp_path: Path, authority: pki.PkiFiles,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    agent = start(fresh, api.name)
    path = write_kubeconfig(tmp_path, authority)
    code = main([
        "bootstrap", "check", f"--kubeconfig={path}", f"--agent-admin=127.0.0.1:{agent.admin_port}",

    ])  # fmt: skip
    text = capsys.readouterr().out
    assert code == 0, text
    assert f"{ADDRESS}:{PORT} accepts" in text


def test_no_agent(check: Any) -> None:
    found = check(None)
    assert "connection refused" in found.breaks_at(StepName.AGENT)
    assert found.state(StepName.LINK) is CheckState.SKIPPED
    assert found.state(StepName.ADDRESS) is CheckState.FAILED


def test_the_gate_is_off_at_the_agent(fresh: Stack, api: Api, check: Any) -> None:
    agent = start(fresh, api.name, feature_gates=())
    said = check(agent).breaks_at(StepName.GATE)
    assert "--feature-gates=EnableClusterToMasterTraffic=true" in said


@pytest.mark.parametrize("more", [{"target": ()}, {"bind_address": ()}])
def test_the_agent_takes_no_connections(
    fresh: Stack, api: Api, check: Any, more: dict[str, Any]
) -> None:
    assert "takes no connections" in check(start(fresh, api.name, **more)).breaks_at(
        StepName.TARGET
    )


def test_another_port(fresh: Stack, api: Api, check: Any) -> None:
    agent = start(fresh, api.name)
    said = check(agent, "--local-port=6444").breaks_at(StepName.TARGET)
    assert "forwards 6443, not 6444" in said


def looked_after(stack: Stack, agent: Agent) -> str:
    """Wait until the agent has looked after its address, as it does once at its start; where."""
    node = agent.node
    assert node is not None
    stack.wait(lambda: node._refreshing is not None and node._refreshing.done(), "it looked")
    return node.view().interface


def test_the_address_is_gone(
    fresh: Stack, api: Api, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_traffic, "REFRESH_S", 3600.0)  # it would put it back
    agent = start(fresh, api.name)
    where = looked_after(fresh, agent)
    ip("address", "del", f"{ADDRESS}/32", "dev", where)
    said = check(agent).breaks_at(StepName.ADDRESS)
    assert f"isthmus agent setup-interface --bind-address={ADDRESS}" in said


def test_the_rule_is_gone(
    fresh: Stack, api: Api, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_traffic, "REFRESH_S", 3600.0)
    agent = start(fresh, api.name)
    looked_after(fresh, agent)
    subprocess.run(["nft", "flush", "ruleset"], check=True, timeout=LIMIT_S)
    assert "is gone" in check(agent).breaks_at(StepName.RULE)


def test_no_rule_was_wanted(fresh: Stack, api: Api, check: Any) -> None:
    found = check(start(fresh, api.name, uplink_interface=("none",)))
    assert found.code == 0
    assert found.state(StepName.RULE) is CheckState.WARNING


def test_no_server(fresh: Stack, api: Api, check: Any) -> None:
    agent = add_agent_alone(fresh, api.name)
    found = check(agent)
    assert "linked to no server" in found.breaks_at(StepName.LINK)
    assert found.state(StepName.LISTENER) is CheckState.FAILED


def add_agent_alone(stack: Stack, destination: str) -> Agent:
    return stack.add_agent(
        linked=False,
        proxy_server_port=free_port(),
        feature_gates=GATE,
        bind_address=(ADDRESS,),
        target=(f"{PORT}:{destination}",),
    )


def test_the_gate_is_off_at_the_server(fresh: Stack, api: Api, check: Any) -> None:
    fresh.add_server()
    agent = fresh.add_agent(
        feature_gates=GATE, bind_address=(ADDRESS,), target=(f"{PORT}:{api.name}",)
    )
    found = check(agent)
    assert "EnableClusterToMasterTraffic is off at" in found.breaks_at(StepName.FEATURE)
    assert "waits for a server with the feature gate" in found.said(StepName.LISTENER)


def test_the_destination_is_denied(fresh: Stack, api: Api, check: Any) -> None:
    fresh.add_server(feature_gates=GATE, allowed_destination=("127.0.0.1:1",))
    said = check(add_agent(fresh, api.name)).breaks_at(StepName.DESTINATION)
    assert "denied by policy" in said
    assert f"--allowed-destination={api.name}" in said


def test_the_destination_is_denied_by_ipv6(fresh: Stack, api: Api, check: Any) -> None:
    fresh.add_server(feature_gates=GATE, allowed_destination=("127.0.0.1:1",))
    agent = add_agent(fresh, api.name, bind_address=("fd96::7:1",))
    found = check(agent, "--bind-address=fd96::7:1")
    assert "denied by policy" in found.breaks_at(StepName.DESTINATION)
    assert f"[fd96::7:1]:{PORT} accepts" in found.said(StepName.LISTENER)


class Nonsense(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"kind": "AgentSnapshot", "featureGates": 7}')

    def log_message(self, *_: object) -> None:
        pass


def test_something_else_answers_at_the_admin_port(check: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            found = check(None, f"--agent-admin=127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join(LIMIT_S)
    assert "cannot decode the answer" in found.breaks_at(StepName.AGENT)


def test_the_destination_is_refused(fresh: Stack, check: Any) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    said = check(start(fresh, nobody)).breaks_at(StepName.DESTINATION)
    assert "connection refused" in said
    assert "is kube-apiserver running there" in said


def test_the_destination_says_nothing(fresh: Stack, check: Any) -> None:
    with Target() as target:
        said = check(start(fresh, target.name), "--timeout=300ms").breaks_at(StepName.DESTINATION)
        assert "no answer within 0.3 seconds" in said


def test_it_is_not_tls(fresh: Stack, check: Any) -> None:
    with echo_target() as target:
        found = check(start(fresh, target.name))
        assert "secure port of kube-apiserver" in found.breaks_at(StepName.CERTIFICATE)
        assert found.state(StepName.DESTINATION) is CheckState.OK


def test_the_certificate_is_of_another_authority(
    fresh: Stack, check: Any, certificates: pki.PkiFiles
) -> None:
    with serving(certificates) as other:
        found = check(start(fresh, other.name))
        assert "is not trusted" in found.breaks_at(StepName.CERTIFICATE)
        assert found.state(StepName.NAME) is CheckState.SKIPPED


def test_the_certificate_has_other_names(
    fresh: Stack, check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = pki.init(tmp_path / "pki", server_names=("kubernetes", "10.0.0.2"))
    trusted = f"--ca-cert={files.ca_cert}"
    with serving(files) as api:
        agent = start(fresh, api.name)
        said = check(agent, trusted).breaks_at(StepName.NAME)
        assert f"has kubernetes, 10.0.0.2, and not {ADDRESS}" in said
        assert check(agent, trusted, "--tls-server-name=kubernetes").code == 0
        said = check(agent, trusted, "--tls-server-name=apiserver").breaks_at(StepName.NAME)
        assert "and not apiserver" in said


def test_the_certificate_expired(fresh: Stack, check: Any, tmp_path: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=10)
    files = pki.init(tmp_path / "pki", server_names=(ADDRESS,), days=5, now=then)
    with serving(files) as api:
        found = check(start(fresh, api.name), f"--ca-cert={files.ca_cert}")
        assert "expired on" in found.breaks_at(StepName.EXPIRY)
        assert found.state(StepName.CERTIFICATE) is CheckState.OK
        assert found.state(StepName.NAME) is CheckState.OK


def test_the_certificate_expires_soon(fresh: Stack, check: Any, tmp_path: Path) -> None:
    files = pki.init(tmp_path / "pki", server_names=(ADDRESS,), days=5)
    with serving(files) as api:
        found = check(start(fresh, api.name), f"--ca-cert={files.ca_cert}")
        assert (found.code, found.state(StepName.EXPIRY)) == (0, CheckState.WARNING)


@pytest.mark.parametrize(("status", "fine"), [(401, True), (403, True), (404, False), (500, False)])
def test_not_to_be_let_in_is_fine(
    fresh: Stack, api: Api, check: Any, status: int, fine: bool
) -> None:
    api.version_status = status
    found = check(start(fresh, api.name))
    if fine:
        assert found.code == 0
    else:
        assert str(status) in found.breaks_at(StepName.API)


def test_pods_are_led_elsewhere(
    fresh: Stack, api: Api, check: Any, tmp_path: Path, authority: pki.PkiFiles
) -> None:
    api.endpoint = HostPort("192.0.2.1", 443)
    agent = start(fresh, api.name)
    found = check(agent, f"--kubeconfig={write_kubeconfig(tmp_path, authority)}")
    said = found.breaks_at(StepName.ENDPOINTS)
    assert "leads to 192.0.2.1:443, not to" in said
    assert f"--advertise-address={ADDRESS} and --secure-port={PORT}" in said


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, timeout=LIMIT_S)
