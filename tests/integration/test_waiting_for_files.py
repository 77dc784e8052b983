"""A sidecar whose certificates and kubeconfig come into its pod after it."""

from __future__ import annotations

import contextlib
import http.client
import signal
import ssl
from pathlib import Path

import pytest
from clients import LIMIT_S, free_port
from programs import Programs
from stack import http_get, wait_until

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""


def flags(directory: Path, *more: str) -> list[str]:
    return [
        f"--ca-cert-path={directory}/ca.crt", f"--tls-cert-path={directory}/tls.crt",
        f"--tls-key-path={directory}/tls.key", f"--kubeconfig={directory}/kubeconfig",
        "--serving-port=0", "--health-bind-address=127.0.0.1", "--admin-port=0", *more,
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "workers"), [("socks5-proxy", 1), ("https-proxy", 2)])
def test_it_waits_alive_and_not_ready(
    programs: Programs, kind: str, workers: int, tmp_path: Path
) -> None:
    health = free_port()
    mounted = tmp_path / "mounted"
    program = programs.start(
        kind, "run", *flags(mounted, f"--health-port={health}", f"--workers={workers}")
    )
    program.wait_log("waiting for missing files")
    assert http_get(health, "/livez") == (200, "ok")
    status, said = http_get(health, "/readyz")
    assert (status, said.startswith("waiting for --ca-cert-path")) == (500, True)
    assert all(f"{mounted}/{name}" in said for name in ("ca.crt", "tls.key", "kubeconfig"))
    assert http_get(health, "/metrics")[0] == 200
    mounted.mkdir()
    files = programs.files
    for name, source in (
        ("ca.crt", files.ca_cert), ("tls.crt", files.client_cert), ("tls.key", files.client_key)
    ):  # fmt: skip
        (mounted / name).write_bytes(source.read_bytes())
    (mounted / "kubeconfig").touch()  # one that is still to be filled
    wait_until(lambda: str(mounted / "ca.crt") not in http_get(health, "/readyz")[1], "three came")
    assert http_get(health, "/readyz")[1] == f"waiting for --kubeconfig {mounted}/kubeconfig"
    (mounted / "kubeconfig").write_text(KUBECONFIG)
    program.wait_log("serving ")
    wait_until(lambda: http_get(health, "/readyz") == (200, "ok"), "it is ready")
    assert program.log.count("waiting for") == 1
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0


def test_the_health_port_opens_when_its_certificate_is_there(
    programs: Programs, tmp_path: Path
) -> None:
    health, cert, key = free_port(), tmp_path / "health.crt", tmp_path / "health.key"
    more = (f"--health-port={health}", f"--health-cert={cert}", f"--health-key={key}")
    program = programs.start("socks5-proxy", *flags(tmp_path / "never", *more))
    program.wait_log("waiting for missing files")
    for to, source in ((cert, programs.files.server_cert), (key, programs.files.server_key)):
        (tmp_path / "part").write_bytes(source.read_bytes())
        (tmp_path / "part").rename(to)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def is_alive() -> bool:
        asked = http.client.HTTPSConnection("127.0.0.1", health, timeout=LIMIT_S, context=context)
        with contextlib.suppress(OSError), contextlib.closing(asked):
            asked.request("GET", "/livez")
            return asked.getresponse().status == 200
        return False

    wait_until(is_alive, "it is alive by HTTPS")
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0


def test_the_usual_error_after_the_time(programs: Programs, tmp_path: Path) -> None:
    directory = tmp_path / "never"
    waited = programs.start(
        "socks5-proxy", *flags(directory, "--health-port=0", "--wait-for-files=300ms")
    )
    at_once = programs.start(
        "socks5-proxy", *flags(directory, "--health-port=0", "--wait-for-files=0")
    )
    said = []
    for program in (waited, at_once):
        assert program.wait_exit() == 2
        said.append(program.log.splitlines()[-1])
    assert said[0] == said[1] and f"{directory}/kubeconfig" in said[0]
    assert ("waiting for" in waited.log, "waiting for" in at_once.log) == (True, False)


def test_a_file_that_is_wrong_is_no_reason_to_wait(programs: Programs, tmp_path: Path) -> None:
    for name in ("ca.crt", "tls.crt", "tls.key", "kubeconfig"):
        (tmp_path / name).write_text("nothing\n")
    program = programs.start("socks5-proxy", *flags(tmp_path, "--health-port=0"))
    assert program.wait_exit() == 2
    assert "waiting" not in program.log


def test_it_can_be_ended_while_it_waits(programs: Programs, tmp_path: Path) -> None:
    program = programs.start("https-proxy", *flags(tmp_path, "--health-port=0"))
    program.wait_log("waiting for missing files")
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0
    assert "Traceback" not in program.log
