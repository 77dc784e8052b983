"""A temporary CA with a server and a client certificate, P-256, made by the openssl command.

Both topologies use the same files, and neither measured program takes part in making them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from processes import BenchError

_SECTIONS = """
[req]
distinguished_name = name
prompt = no
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[client]
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = DNS:agent
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certs:
    """The paths of the files. A .pem has certificate and key, as haproxy expects."""

    ca: Path
    server_cert: Path
    server_key: Path
    server_pem: Path
    client_cert: Path
    client_key: Path
    client_pem: Path


def make_certs(directory: Path) -> Certs:
    """Write a new CA and two leaf certificates into the directory, which is created."""
    directory.mkdir()
    config = directory / "openssl.cnf"
    config.write_text(_SECTIONS)
    _issue(directory, config, "ca")
    for name in ("server", "client"):
        _issue(directory, config, name, signer="ca")
        pem = (directory / f"{name}.crt").read_text() + (directory / f"{name}.key").read_text()
        (directory / f"{name}.pem").write_text(pem)
    return Certs(
        ca=directory / "ca.crt",
        server_cert=directory / "server.crt",
        server_key=directory / "server.key",
        server_pem=directory / "server.pem",
        client_cert=directory / "client.crt",
        client_key=directory / "client.key",
        client_pem=directory / "client.pem",
    )


def _issue(directory: Path, config: Path, name: str, *, signer: str | None = None) -> None:
    command = ["openssl", "req", "-x509", "-config", str(config), "-extensions", name]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN=bench {name}", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
    if signer is not None:
        command += ["-CA", f"{signer}.crt", "-CAkey", f"{signer}.key"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=30)
    except OSError as exc:
        raise BenchError(f"openssl is needed to make certificates: {exc}") from exc
    if done.returncode:
        raise BenchError(f"openssl failed to make the {name} certificate:\n{done.stderr}")
    (directory / f"{name}.key").chmod(0o600)
