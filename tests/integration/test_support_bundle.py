"""``isthmus support-bundle`` of real programs, with secrets planted wherever one could be."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import pty
import re
import stat
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from clients import LIMIT_S
from forked import run_bytes
from own_network import needs_root, own_network
from programs import COMMAND, ENVIRONMENT, Program, Programs

from isthmus.tools.pki.making import PkiFiles

pytestmark = needs_root

#: Each in another place; none looks like the others.
TOKEN_FILE = "pl4nted-service-account-token"
KUBE_TOKEN = "pl4nted-kubeconfig-token"
KUBE_PASSWORD = "pl4nted kubeconfig, password"
ENV_TOKEN = "pl4nted-variable-of-environment"
PROXY_PASSWORD = "pl4nted:proxy/password"
PROXY_URL = "http://me:pl4nted%3Aproxy%2Fpassword@127.0.0.1:9"
ADMIN_TOKEN = "pl4nted-admin-token"
POLICY_PASSWORD = "pl4nted-in-a-policy"
POLICY = f"""\
# of the old proxy: password={POLICY_PASSWORD}
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: allow
rules: []
"""
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJwbDRudGVkIjoiand0In0.cGw0bnRlZHNpZ25hdHVyZQ"


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    """Of its own: firewall rules are read here, and there are none."""
    with own_network():
        yield


@pytest.fixture
def planted(tmp_path: Path, certificates: PkiFiles) -> dict[str, str]:
    """Every secret by where it was put."""
    (tmp_path / "token").write_text(f"{TOKEN_FILE}\n")
    (tmp_path / "admin-token").write_text(ADMIN_TOKEN)
    (tmp_path / "policy").write_text(POLICY)
    user = {"token": KUBE_TOKEN, "password": KUBE_PASSWORD}
    config = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    lines = certificates.agent_key.read_text().splitlines()
    return {
        "token file": TOKEN_FILE,
        "kubeconfig token": KUBE_TOKEN,
        "kubeconfig password": KUBE_PASSWORD,
        "environment": ENV_TOKEN,
        "proxy password": PROXY_PASSWORD,
        "proxy password, encoded": "pl4nted%3Aproxy%2Fpassword",
        "admin token": ADMIN_TOKEN,
        "policy": POLICY_PASSWORD,
        "web token": JWT,
        "agent key": lines[1],
        "server key": certificates.server_key.read_text().splitlines()[1],
    }


def bundle(
    *args: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return run_bytes("support-bundle", *args, environ=environ, timeout_s=6 * LIMIT_S)


def unpacked(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {
            name.removeprefix("isthmus-support/"): file.read()
            for name, file in files.items()
            if file is not None
        }


def hidden(secret: str) -> Iterator[bytes]:
    """A secret plain, quoted, in hexadecimal, and in base64 wherever it begins."""
    raw = secret.encode()
    yield from (raw, json.dumps(secret)[1:-1].encode(), raw.hex().encode())
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + raw).rstrip(b"=")
        yield whole[(4 if offset else 0) : len(whole) - 2]


def leaks(content: bytes, planted: Mapping[str, str]) -> list[str]:
    inside = content + b"".join(_decoded(run) for run in re.findall(rb"[\w+/-]{16,}", content))
    return [
        where for where, secret in planted.items() if any(form in inside for form in hidden(secret))
    ]


def _decoded(run: bytes) -> bytes:
    plain = run.translate(bytes.maketrans(b"-_", b"+/"))
    return base64.b64decode(plain[: len(plain) // 4 * 4])


def start(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """A server and an agent with all of that, who have talked about it."""
    from programs import ENVIRONMENT as environment

    monkeypatch.setitem(environment, "SOME_TOKEN_OF_MINE", ENV_TOKEN)
    server = programs.server(
        "--v=5", f"--admin-token-file={tmp_path / 'admin-token'}",
        f"--audit-log-path={tmp_path / 'audit.log'}", f"--policy-file={tmp_path / 'policy'}",
    )  # fmt: skip
    monkeypatch.setitem(environment, "HTTPS_PROXY", PROXY_URL)
    agent = programs.agent(
        server, "--v=5", f"--agent-id={JWT}", f"--kubeconfig={tmp_path / 'kubeconfig'}",
        f"--service-account-token-path={tmp_path / 'token'}",
        f"--tracing-endpoint={PROXY_URL}",
    )  # fmt: skip
    # A request that fails: its target is in logs, endings and the audit log.
    with programs.connect_uds() as client:
        target = f"{TOKEN_FILE}.invalid:80"
        client.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert b" 400 " not in client.recv()
    return [server, agent]


def test_no_secret_is_in_a_bundle_of_programs_that_have_many(
    programs: Programs,
    planted: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, agent = start(programs, tmp_path, monkeypatch)
    path = tmp_path / "out" / "b.tar.gz"
    path.parent.mkdir()
    done = bundle(
        "-f", str(path), "--include-audit", f"--token-file={tmp_path / 'admin-token'}",
        *(f"--admin=http://127.0.0.1:{one.port('admin_port')}" for one in (server, agent)),
        environ={"MY_PASSWORD": ENV_TOKEN, "HTTPS_PROXY": PROXY_URL},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["b.tar.gz"]  # nothing half-written is left
    data = path.read_bytes()
    files = unpacked(data)
    for name, content in files.items():
        assert leaks(content, planted) == [], name
    assert leaks(gzip.decompress(data), planted) == []
    assert leaks(done.stdout + done.stderr, planted) == []
    assert leaks(data, planted) == []
    _check_contents(files, done.stderr.decode(), path)


def _check_contents(files: Mapping[str, bytes], said: str, path: Path) -> None:
    """What is needed is there all the same, and is listed."""
    wanted = {
        "configz.json", "snapshot.json", "history.json", "metrics.txt", "logs.json",
        "readyz.txt", "audit.json", "files.json", "proc-limits.txt",
    }  # fmt: skip
    for program in ("server", "agent"):
        assert {f"programs/{program}/{name}" for name in wanted} <= files.keys()
    assert {"versions.json", "doctor.json", "doctor.txt", "machine/addresses.json"} <= files.keys()
    manifest = json.loads(files["manifest.json"])
    assert [one["name"] for one in manifest["members"]] == sorted(files.keys() - {"manifest.json"})
    assert manifest["secretsRemoved"] > 0
    config = json.loads(files["programs/agent/configz.json"])
    assert config["flags"]["agent-key"]["value"].endswith("agent.key")
    described = json.loads(files["programs/server/files.json"])
    key = next(one for one in described if one["flag"] == "--cluster-key")
    assert key["mode"] == "0600"
    assert "certificates" not in key
    assert b"kind: ConnectivityPolicy" in files["programs/server/document-policy-file.txt"]
    records = json.loads(files["programs/server/audit.json"])
    assert records["enabled"]
    assert records["records"]
    assert json.loads(files["programs/server/logs.json"])["lines"]
    assert json.loads(files["doctor.json"])["findings"]
    assert said.startswith(f"{path}: {len(files) - 1} files")
    assert "programs/server/: " in said


class Talkative(BaseHTTPRequestHandler):
    """An admin port whose every answer has secrets in it that nobody told us of."""

    secrets: ClassVar[dict[str, str]] = {
        "bearer": "pl4ntedBearerToken01",
        "web token": JWT,
        "bootstrap": "pl4nte.0123456789abcdef",
        "url": "pl4nted-url-password",
        "variable": "pl4nted-variable",
        "key": "MHcCAQEEIPl4ntedKeyPl4ntedKeyPl4ntedKeyoAoG",
        "basic": base64.b64encode(b"user:pl4nted-basic").decode(),
    }

    def do_GET(self) -> None:
        it = self.secrets
        pem = f"-----BEGIN EC PRIVATE KEY-----\n{it['key']}\n-----END EC PRIVATE KEY-----\n"
        said = [
            f"Authorization: Bearer {it['bearer']}",
            it["web token"],
            f"token id {it['bootstrap']}",
            f"by https://user:{it['url']}@proxy.example.com:3128",
            f"ONE_SECRET_VALUE={it['variable']}",
            f"Proxy-Authorization: Basic {it['basic']}",
            pem,
            base64.b64encode(pem.encode()).decode(),
            base64.b64encode(f"x {it['web token']}".encode()).decode(),
            json.dumps({"users": [{"user": {"token": it["variable"]}}]}),
        ]
        data = json.dumps({"kind": "ServerSnapshot", "said": said, "at": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def test_every_answer_of_an_admin_port_is_cleaned(tmp_path: Path) -> None:
    """Each path becomes a file; what is not secret in it stays."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Talkative)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"--admin=http://127.0.0.1:{server.server_address[1]}"
        done = bundle("--file", "-", "--include-audit", url)
    finally:
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()
    assert done.returncode == 0, done.stderr.decode()
    files = unpacked(done.stdout)
    asked = {name for name in files if name.startswith("programs/")}
    wanted = {"configz", "snapshot", "history", "logs", "metrics", "readyz", "livez", "audit"}
    assert {name.split("/")[-1].split(".")[0] for name in asked} == wanted
    for name in asked:
        assert b'"at": "/' in files[name], name
        assert b"proxy.example.com:3128" in files[name]
    for name, content in files.items():
        assert leaks(content, Talkative.secrets) == [], name


def test_audit_records_only_where_asked_for(programs: Programs, tmp_path: Path) -> None:
    server = programs.server(f"--audit-log-path={tmp_path / 'audit.log'}")
    done = bundle("--file", "-", f"--admin=127.0.0.1:{server.port('admin_port')}")
    assert done.returncode == 0, done.stderr.decode()
    files = unpacked(done.stdout)
    assert "programs/server/snapshot.json" in files
    assert "programs/server/audit.json" not in files
    assert "standard output" in done.stderr.decode()


def test_a_program_that_does_not_answer_is_in_the_list_of_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    done = bundle("-f", str(path), "--admin=http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr.decode()
    manifest = json.loads(unpacked(path.read_bytes())["manifest.json"])
    missing = {one["name"]: one["why"] for one in manifest["missing"]}
    assert "refused" in missing["programs/unknown/snapshot.json"]
    assert "missing programs/unknown/snapshot.json" in done.stderr.decode()


def test_a_machine_without_programs_has_a_bundle_too(tmp_path: Path) -> None:
    """Its name says where and when it was made."""
    done = subprocess.run(
        [*COMMAND, "support-bundle"], capture_output=True, text=True, timeout=6 * LIMIT_S,
        check=True, env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip
    assert "of the machine alone" in done.stderr
    (path,) = tmp_path.iterdir()
    host = re.escape(os.uname().nodename)
    assert re.fullmatch(rf"isthmus-support-{host}-[0-9]{{8}}T[0-9]{{6}}Z\.tar\.gz", path.name)
    assert "machine/routes.json" in unpacked(path.read_bytes())


def test_a_file_that_exists_is_not_replaced_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")
    done = bundle("-f", str(path))
    assert done.returncode == 2
    assert b"already exists" in done.stderr
    assert path.read_text() == "mine"
    assert bundle("-f", str(path), "--force").returncode == 0
    assert "versions.json" in unpacked(path.read_bytes())


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    done = bundle("-f", str(tmp_path / "none" / "b.tar.gz"))
    assert done.returncode == 2
    assert b"no such file or directory" in done.stderr


def test_a_terminal_gets_no_archive() -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "support-bundle", "--file", "-"], stdout=theirs, stderr=subprocess.PIPE,
            timeout=3 * LIMIT_S, check=False, env=ENVIRONMENT,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert b"not for a terminal" in done.stderr
