"""Accepted and refused as by kube-apiserver: its own cases, and what was measured."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from isthmus.dial.connectivity_files import load
from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.dial.settings_connectivity import read
from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort

sys.path.insert(0, str(Path(__file__).parent))
from connectivity_cases import CASES, Verdict, tcp, uds

ACCEPTED = (Verdict.ACCEPTED, Verdict.OURS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    made = pki.init(tmp_path_factory.mktemp("pki"))
    for file in (made.ca_cert, made.client_cert, made.client_key):
        shutil.copy(file, directory)
    return directory


@pytest.mark.parametrize("name", CASES)
def test_as_kube_apiserver(name: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, text = CASES[name]
    monkeypatch.chdir(files)
    Path("egress.yaml").write_text(text, encoding="utf-8")
    if verdict in ACCEPTED:
        load(["egress.yaml"])
        return
    with pytest.raises(ConfigError) as caught:
        load(["egress.yaml"])
    for line in str(caught.value).splitlines():
        assert line.startswith("egress.yaml:")


def test_absent() -> None:
    with pytest.raises(ConfigError, match=r"^cannot read nowhere\.yaml: no such file$"):
        load(["nowhere.yaml"])


def test_what_is_read_is_what_is_said() -> None:
    config = read(tcp("https://u@h:1/x", "clientCert: c, clientKey: k, tlsServerName: s"), name="x")
    assert config.networks["cluster"].connection == NetworkConnection(
        protocol=NetworkProtocol.HTTP_CONNECT,
        tcp=HostPort("h", 1),
        tls=ClientTls(client_cert="c", client_key="k", server_name="s"),
    )
    assert config.networks["cluster"].where == "x:4"
    config = read(uds("/run/x.sock"), name="x")
    connection = NetworkConnection(protocol=NetworkProtocol.PACKET, uds="/run/x.sock")
    assert config.networks["cluster"].connection == connection


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_master_is_the_control_plane(version: str) -> None:
    config = read(CASES[f"{version} master"][1], name="x")
    assert [*config.networks] == ["controlplane"]
    assert config.network("Master") is config.networks["controlplane"]


def test_json_keeps_its_places() -> None:
    text = '{\n\t"apiVersion": "apiserver.k8s.io/v1beta1",\n\t"kind": "EgressSelectorConfig"}'
    with pytest.raises(ConfigError, match=r"^x:3:10: kind: must be .* did you mean Egress"):
        read(text, name="x")


def test_merges_that_never_end() -> None:
    deep = "".join(f", a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9))
    head = CASES["no selections"][1].replace("\n", ", ").removesuffix(", ")
    with pytest.raises(ConfigError, match="merges too many fields"):
        read(f"{{{head}, a0: &a0 {{x: 1, y: 2}}{deep}}}", name="x")
