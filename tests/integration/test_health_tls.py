"""HTTPS on the health port: every program that has one, its certificate renewed while it serves."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import ssl
import subprocess
from functools import partial
from pathlib import Path

import pytest
from clients import LIMIT_S, free_port
from programs import Programs
from stack import Stack, http_get, wait_until
from test_admin import https_get, trusting

from isthmus.frame import lifecycle
from isthmus.net.contexts import watch
from isthmus.programs import programs as declared
from isthmus.settings.options import options_of
from isthmus.tools.pki import making as pki


def health_flags(files: pki.PkiFiles) -> dict[str, str]:
    return {"health_cert": str(files.server_cert), "health_key": str(files.server_key)}


def test_every_program_can() -> None:
    for program in declared():
        flags = {option.flag for option in options_of(program.settings_class)}
        assert {"health-cert", "health-key"} <= flags, program.name


def test_probes_and_metrics_by_https(fresh: Stack) -> None:
    files = fresh.files
    server = fresh.add_server(**health_flags(files))
    agent = fresh.add_agent(**health_flags(files))
    for program in (server, agent):
        port = program.health_port
        assert https_get(port, "/readyz", trusting(files))[0] == 200
        asked = subprocess.run(
            ["curl", "--silent", "--show-error", "--noproxy", "*", "--cacert", str(files.ca_cert),
             f"https://localhost:{port}/metrics"],
            capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        assert str(files.server_cert) in asked.stdout  # its own expiry is a metric as others' are
        with pytest.raises((http.client.HTTPException, OSError)):
            http_get(port, "/livez")
    # The admin port speaks plain HTTP, and leads there.
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", agent.admin_port, timeout=LIMIT_S)
    ) as plain:
        plain.request("GET", "/metrics?x=1")
        answer = plain.getresponse()
        assert answer.status == 301
        at = f"https://127.0.0.1:{agent.health_port}/metrics?x=1"
        assert answer.getheader("Location") == at


def test_its_certificate_is_replaced_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "watch", partial(watch, interval_s=0.02))
    files = pki.init(tmp_path / "pki", server_names=("localhost", "127.0.0.1"))
    later = pki.init(tmp_path / "later", server_names=("localhost", "127.0.0.1"))
    mine = tmp_path / "health"
    mine.mkdir()
    for name in ("server.crt", "server.key"):
        shutil.copy(files.directory / name, mine / name)
    flags = {"health_cert": str(mine / "server.crt"), "health_key": str(mine / "server.key")}
    with Stack(files) as stack:
        port = stack.add_server(**flags).health_port
        assert https_get(port, "/livez", trusting(files))[0] == 200
        for name in ("server.crt", "server.key"):
            shutil.copy(later.directory / name, mine / f"{name}.new")
            (mine / f"{name}.new").replace(mine / name)

        def renewed() -> bool:
            with contextlib.suppress(ssl.SSLError):
                return https_get(port, "/livez", trusting(later))[0] == 200
            return False

        wait_until(renewed, "it shows the new certificate")


def test_workers_and_waiting_files(programs: Programs, tmp_path: Path) -> None:
    files, health = programs.files, free_port()
    ca = tmp_path / "ca.crt"
    sidecar = programs.start(
        "socks5-proxy", "--disable-resolver", f"--ca-cert-path={ca}", "--workers=2",
        f"--tls-cert-path={files.client_cert}", f"--tls-key-path={files.client_key}",
        "--serving-port=0", f"--health-port={health}", "--admin-port=0",
        f"--health-cert={files.server_cert}", f"--health-key={files.server_key}",
    )  # fmt: skip
    sidecar.wait_log("waiting for missing files")
    assert https_get(health, "/readyz", trusting(files))[0] == 500
    shutil.copy(files.ca_cert, ca)
    sidecar.wait_log("serving ")
    assert https_get(health, "/readyz", trusting(files))[0] == 200


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--health-cert=/none.crt"], "--health-cert needs --health-key as well"),
        (["--health-cert=/none.crt", "--health-key=/k"], "--health-cert /none.crt: no such file"),
    ],
)
def test_wrong_files_are_one_sentence(programs: Programs, flags: list[str], sentence: str) -> None:
    program = programs.start("server", *programs.server_flags(), *flags)
    assert program.wait_exit() == 2
    assert sentence in program.log.splitlines()[-1]
