"""Which egress files a real kube-apiserver accepts, against what our own tests say of them.

It reads the file before it needs etcd, with only its own port open. The file that it reads next,
the tracing configuration, is bad on purpose: what is said of that one means that this one was
accepted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kube.build import Binaries
from kube.programs import free_port

from isthmus.tools.pki.making import PkiFiles

sys.path.append(str(Path(__file__).parents[2] / "unit" / "dial"))
from connectivity_cases import CASES, Verdict

pytestmark = pytest.mark.interop

ACCEPTED = "failed to read tracing config"
REFUSED = ("failed to read egress", "failed to validate egress", "failed to setup egress")
CRASHED = "panic: "
ACCEPTING = (Verdict.ACCEPTED, Verdict.NEVER_DIALED, Verdict.NOT_HERE)
LIMIT_S = 60


@pytest.fixture(scope="module")
def place(certificates: PkiFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("egress")
    for file in (certificates.ca_cert, certificates.client_cert, certificates.client_key):
        shutil.copy(file, directory)
    (directory / "tracing.yaml").write_text("[")
    return directory


def said_of(place: Path, program: Path) -> str:
    """What kube-apiserver says about the egress.yaml that is there."""
    while True:
        said = subprocess.run(
            [
                str(program), "--egress-selector-config-file=egress.yaml",
                "--tracing-config-file=tracing.yaml", "--cert-dir=certs",
                "--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://localhost",
                "--service-account-key-file=client.key",
                "--service-account-signing-key-file=client.key",
                "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1",  # no route is needed
                f"--secure-port={free_port(None)}",
            ],
            cwd=place, capture_output=True, text=True, timeout=LIMIT_S,
        ).stderr  # fmt: skip
        if "address already in use" not in said:  # somebody was faster
            return said


@pytest.mark.parametrize("name", CASES)
def test_kube_apiserver_does_as_we_say(name: str, place: Path, kube_binaries: Binaries) -> None:
    verdict, text = CASES[name]
    (place / "egress.yaml").write_text(text, encoding="utf-8")
    said = said_of(place, kube_binaries.kube_apiserver)
    accepted, crashed = ACCEPTED in said, CRASHED in said
    assert accepted or crashed or any(one in said for one in REFUSED), said[-500:]
    assert crashed is (verdict is Verdict.CRASHES), said[-500:]
    assert accepted is (verdict in ACCEPTING), said[-500:]
