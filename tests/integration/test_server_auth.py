"""A TCP frontend that asks clients for no certificate, because an operator said so."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from clients import LIMIT_S
from forked import COMMAND, ENVIRONMENT
from programs import Programs
from proxies_bed import curl, origin_server
from stack import Stack

NOBODY_PROVES = {"server_auth": "none-on-loopback", "server_ca_cert": ""}
#: What KEP-1281 shows: an authority, and no certificate of the client.
SAMPLE = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: cluster
  connection:
    type: {type}
    url: {scheme}://127.0.0.1:{port}
    caBundle: {ca}
"""


def s_client(port: int, ca: Path) -> str:
    """What openssl says about a TLS port, as a client that ends at once."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(ca),
         "-verify_return_error"],
        input="", capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_curl_and_openssl_without_a_certificate(fresh: Stack) -> None:
    files = fresh.files
    open_one = fresh.add_server(**NOBODY_PROVES)
    fresh.add_agent()
    port = open_one.doors.ports["http-connect"]
    said = s_client(port, files.ca_cert)
    assert "Verify return code: 0 (ok)" in said and "No client certificate CA names sent" in said
    ca = str(files.ca_cert)
    with origin_server() as origin:
        url = f"http://127.0.0.1:{origin.port}/x"
        way = ["--proxy-cacert", ca, "-p", "-x", f"https://localhost:{port}"]
        code, out, err = curl(*way, url)
        assert (code, '"/x"' in out) == (0, True), err
        # By mutual TLS, as by default, the same client does not get in.
        closed = fresh.add_server()
        way[-1] = f"https://localhost:{closed.doors.ports['http-connect']}"
        assert curl(*way, url)[0] != 0
    assert open_one.settings.roles.warnings() and not closed.settings.roles.warnings()


@pytest.mark.parametrize(("mode", "type_"), [("grpc", "grpc"), ("http-connect", "http-connect")])
def test_the_proposals_own_sample_is_served(
    fresh: Stack, tmp_path: Path, mode: str, type_: str
) -> None:
    server = fresh.add_server(mode=(mode,), **NOBODY_PROVES)
    fresh.add_agent()
    scheme = "grpc" if mode == "grpc" else "https"
    config = tmp_path / "sample.yaml"
    port = server.doors.ports[mode]
    text = SAMPLE.format(type=type_, scheme=scheme, port=port, ca=fresh.files.ca_cert)
    config.write_text(text)
    with origin_server() as origin:
        done = subprocess.run(
            [*COMMAND, "dial", f"127.0.0.1:{origin.port}", "--config", str(config)],
            input="GET /sample HTTP/1.0\r\n\r\n", env=ENVIRONMENT,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0 and '"/sample"' in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "needs a --server-bind-address on loopback, such as 127.0.0.1, not every address"),
        (["--server-bind-address=0.0.0.0"], "not 0.0.0.0: anyone who reaches the frontend"),
        (["--server-bind-address=::"], "not ::: anyone who reaches the frontend"),
        (["--server-bind-address=10.0.0.1"], "not 10.0.0.1: anyone"),
        (["--server-bind-address=::ffff:10.0.0.1"], "not ::ffff:10.0.0.1: anyone"),
        (["--server-bind-address=127.0.0.1", "--server-ca-cert=x"], "exclude each other"),
        (["--server-bind-address=127.0.0.1", "--client-names=a"], "needs --server-ca-cert"),
    ],
)
def test_it_does_not_start_anywhere_else(
    programs: Programs, flags: list[str], sentence: str
) -> None:
    files = programs.files
    program = programs.start(
        "server", "--mode=http-connect", "--server-port=0", "--server-auth=none-on-loopback",
        f"--server-cert={files.server_cert}", f"--server-key={files.server_key}",
        f"--cluster-cert={files.server_cert}", f"--cluster-key={files.server_key}",
        f"--cluster-ca-cert={files.ca_cert}", "--agent-port=0", "--health-port=0",
        "--admin-port=0", *flags,
    )  # fmt: skip
    assert program.wait_exit() == 2
    assert sentence in program.log and "serving" not in program.log


def test_a_loopback_frontend_is_not_reached_from_elsewhere(fresh: Stack) -> None:
    server = fresh.add_server(**NOBODY_PROVES)
    port = server.doors.ports["http-connect"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address")
        mine = probe.getsockname()[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((mine, port), LIMIT_S).close()
