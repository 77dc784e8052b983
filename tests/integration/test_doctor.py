"""``isthmus doctor`` against real programs: well, then with one thing broken after another."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, echo_target, free_port
from forked import run
from programs import COMMAND, ENVIRONMENT, Program, Programs
from stack import http_get, wait_until

from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles


@pytest.fixture
def programs(certificates: PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    with Programs(certificates, tmp_path, forked=False) as started:
        yield started


def doctor(
    *args: str, code: int = 0, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = run("doctor", *args, environ=environ, timeout_s=3 * LIMIT_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def findings(*args: str, code: int = 0, **more: Any) -> dict[str, list[dict[str, str]]]:
    report = json.loads(doctor("-o", "json", *args, code=code, **more).stdout)
    assert report["ok"] == (code == 0)
    found: dict[str, list[dict[str, str]]] = {}
    for one in report["findings"]:
        found.setdefault(one["check"], []).append(one)
    return found


#: They judge how long something took, and this machine may be busy.
TIMED = {"event-loop", "names"}


def worst(found: Mapping[str, list[dict[str, str]]]) -> dict[str, str]:
    """The checks that are not well, and what was seen."""
    return {
        name: one["seen"]
        for name, each in found.items()
        for one in each
        if one["state"] in ("failed", "warning") and name not in TIMED
    }


def admin(program: Program) -> str:
    return f"--admin=http://127.0.0.1:{program.port('admin_port')}"


@pytest.fixture
def server(programs: Programs) -> Program:
    return programs.server()


@pytest.fixture
def agent(programs: Programs, server: Program) -> Program:
    made = programs.agent(server)
    programs.wait_ready(server)
    return made


def test_programs_that_are_well(server: Program, agent: Program) -> None:
    with echo_target() as target:
        found = findings(admin(server), admin(agent), f"--target=127.0.0.1:{target.port}")
    assert worst(found) == {}
    assert [one["program"].split()[0] for one in found["links"]] == ["server", "agent"]
    assert len(found["target"]) == 2
    done = {one["about"]: one for one in found["target"] if "server" in one["program"]}
    assert "through the server's socket" in next(iter(done.values()))["done"]
    (answer,) = found["answer"]
    assert answer["seen"] == "it answers, and accepted the certificate"
    # Being examined is no failure: the next doctor finds nothing of the one before.
    assert worst(findings(admin(server), admin(agent))) == {}


def test_text_in_a_pipe_has_no_colours(server: Program, agent: Program) -> None:
    brief = doctor(admin(agent)).stdout.splitlines()
    assert brief[0] == "✓        programs: 1 ok"
    assert any(line.startswith("✓        health: ") for line in brief)
    done = doctor("-v", admin(agent))
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "0 warn, 0 FAIL" in brief[-1]
    assert lines[0].startswith("ok       running: http://127.0.0.1:")
    assert re.fullmatch(r"[0-9]+ ok, [0-9]+ warn, 0 FAIL, [0-9]+ skipped", lines[-1])
    assert any(line.startswith("ok       links: ") for line in lines)


def test_a_terminal_gets_colours_and_progress(certificates: PkiFiles) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "doctor", "--timeout=1s", *agent_flags(certificates, free_port())]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        said = bytearray()
        with contextlib.suppress(OSError):  # EIO: nobody has its other end any more
            while data := os.read(ours, 65536):
                said += data
        assert process.wait(LIMIT_S) == 1
    os.close(ours)
    text = said.decode()
    assert "\x1b[32m✓" in text
    assert "\x1b[31mFAIL" in text
    assert " checks done; waiting for " in text


def test_a_target_that_refuses_is_named_with_its_step(server: Program, agent: Program) -> None:
    found = findings(admin(server), f"--target=127.0.0.1:{free_port()}", code=1)
    (target,) = found["target"]
    assert target["state"] == "failed"
    assert target["seen"].startswith("the agent reached the target, which refused")
    assert "listens on that port" in target["todo"]
    later = findings(admin(server))  # it was counted, and is told with advice
    assert "refused" in later["dial-failures"][0]["about"]


def test_a_server_without_agents(server: Program) -> None:
    found = findings(admin(server), "--target=127.0.0.1:1", code=1)
    assert found["target"][0]["seen"].startswith("the server found no agent")
    assert found["links"][0]["state"] == "failed"
    assert found["readiness"][0]["state"] == "failed"


def test_an_agent_that_lost_its_server(server: Program, agent: Program) -> None:
    server.end()
    # Its metrics are at the health port; a link that could not be made is counted at once.
    pattern = re.compile(r'^isthmus_agent_link_failures_total{reason="connect"} [1-9]', re.M)
    port = agent.port("health_port")
    wait_until(lambda: bool(pattern.search(http_get(port, "/metrics")[1])), "a link has failed")
    found = findings(admin(agent), code=1)
    assert found["links"][0]["state"] == "failed"
    assert found["connect"][0]["seen"] == "connection refused"
    failed = next(one for one in found["link-failures"] if one["about"].startswith("connect"))
    assert "agent port" in failed["todo"]


def test_nobody_answers_at_an_admin_port() -> None:
    found = findings(f"--admin=http://127.0.0.1:{free_port()}", code=1)
    assert found["running"][0]["state"] == "failed"


def test_wrong_usage(certificates: PkiFiles) -> None:
    assert "--target" in doctor("--target=nonsense", code=2).stderr
    assert "unknown flag --agnt-port" in doctor("server", "--agnt-port=1", code=2).stderr
    assert "--timeout" in doctor("--timeout=1h", code=2).stderr
    assert "--proxy-server-port" in doctor("agent", "--proxy-server-port=x", code=2).stderr


# Before a program runs.


def agent_flags(files: PkiFiles, port: int, *more: str) -> list[str]:
    return [
        "agent", f"--proxy-server-port={port}", f"--ca-cert={files.ca_cert}",
        f"--agent-cert={files.agent_cert}", f"--agent-key={files.agent_key}",
        "--health-server-port=0", "--admin-server-port=0", *more,
    ]  # fmt: skip


def test_the_flags_of_an_agent_that_would_work(server: Program, certificates: PkiFiles) -> None:
    found = findings(*agent_flags(certificates, server.port("agent_port")))
    assert worst(found) == {}
    assert found["alpn"][0]["seen"] == "isthmus/1: a server of isthmus"


def test_an_agent_of_another_authority(
    server: Program, certificates: PkiFiles, tmp_path: Path
) -> None:
    """It does not trust the server; if it did, the server would not trust it."""
    foreign = pki.init(tmp_path / "foreign")
    port = server.port("agent_port")
    found = findings(*agent_flags(foreign, port), code=1)
    assert "not trusted" in found["peer-certificate"][0]["seen"]
    trusting = agent_flags(foreign, port, f"--ca-cert={certificates.ca_cert}")
    found = findings(*trusting, code=1)
    assert found["peer-certificate"][0]["state"] == "ok"
    assert found["answer"][0]["state"] == "failed"
    assert "--cluster-ca-cert" in found["answer"][0]["todo"]
    assert "certificate-chain" in worst(found)


def test_an_agent_that_speaks_grpc(server: Program, certificates: PkiFiles) -> None:
    found = findings(*agent_flags(certificates, server.port("agent_port"), "--link=grpc"))
    assert worst(found) == {}
    assert found["alpn"][0]["seen"].startswith("h2")
    assert found["answer"][0]["state"] == "ok"


def test_a_server_whose_port_is_taken(server: Program, programs: Programs, tmp_path: Path) -> None:
    flags = [*programs.server_flags(), f"--agent-port={server.port('agent_port')}"]
    found = findings("server", *flags, code=0)
    taken = next(one for one in found["ports"] if one["about"].startswith("--agent-port"))
    assert taken["state"] == "warning"  # by the same program, which runs already
    assert f"process {server.process.pid}" in taken["seen"]


def test_flags_that_make_no_sense_are_a_finding(certificates: PkiFiles) -> None:
    found = findings("server", f"--cluster-cert={certificates.server_cert}", code=1)
    assert found["configuration"][0]["state"] == "failed"


def test_files_that_are_wrong(certificates: PkiFiles, tmp_path: Path) -> None:
    key = tmp_path / "agent.key"
    shutil.copy(certificates.server_key, key)
    key.chmod(0o600)
    flags = agent_flags(certificates, free_port(), f"--agent-key={key}", "--timeout=1s")
    with pytest.raises(AssertionError, match="unknown flag --timeout"):
        findings(*flags, code=1)  # the doctor's own flags stand before the program's name
    found = findings("--timeout=1s", *flags[:-1], code=1)
    assert "does not match the certificate" in found["key-pair"][0]["seen"]


def test_a_sidecar_and_an_apiserver_proxy(certificates: PkiFiles) -> None:
    port = free_port()
    sidecar = [
        "socks5-proxy", "run", "--konnectivity-hostname=127.0.0.1", f"--konnectivity-port={port}",
        f"--ca-cert-path={certificates.ca_cert}", f"--tls-cert-path={certificates.client_cert}",
        f"--tls-key-path={certificates.client_key}", "--disable-resolver", "--serving-port=0",
        "--health-port=0", "--admin-port=0",
    ]  # fmt: skip
    found = findings(*sidecar, code=1)
    assert list(worst(found)) == ["connect"]
    proxy = [
        "apiserver-proxy", f"--upstream=127.0.0.1:{port}", f"--ca-cert={certificates.ca_cert}",
        "--listen=127.0.0.1:0", "--health-port=0", "--admin-port=0",
    ]  # fmt: skip
    found = findings(*proxy, code=1)
    assert "connect" in worst(found)


def test_secrets_are_in_no_output(certificates: PkiFiles) -> None:
    environ = {"HTTPS_PROXY": f"http://user:hunter22x@127.0.0.1:{free_port()}"}
    flags = agent_flags(certificates, 1, "--proxy-server-host=192.0.2.1")
    done = doctor("-v", "--timeout=1s", *flags, code=1, environ=environ)
    assert "by http://127.0.0.1:" in done.stdout
    assert "hunter22x" not in done.stdout + done.stderr
