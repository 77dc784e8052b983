"""Writing either kind from the model, and the table of fields that explains both."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from isthmus.dial import settings_connectivity_fields as fields
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity import read
from isthmus.dial.settings_connectivity_writing import to_connectivity_service, to_egress_selector
from isthmus.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = DOCS / "reference" / "connectivity-configuration.md"
V1ALPHA1 = """\
apiVersion: apiserver.k8s.io/v1alpha1
kind: EgressSelectorConfiguration
egressSelections:
- name: master
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: https://proxy:8131
        tlsConfig:
          caBundle: ca.crt
          clientCert: c.crt
          clientKey: c.key
          tlsServerName: proxy.example
- name: cluster
  connection:
    proxyProtocol: GRPC
    transport:
      uds:
        udsName: /run/konnectivity.sock
- name: etcd
  connection:
    proxyProtocol: Direct
"""
V1BETA1 = V1ALPHA1.replace("v1alpha1", "v1beta1").replace("master", "controlplane")
SERVICE = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: controlplane
  connection:
    type: http-connect
    url: https://proxy:8131
    caBundle: ca.crt
    clientCert: c.crt
    clientKey: c.key
    tlsServerName: proxy.example
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: cluster
  connection:
    type: konnectivity
    url: unix:///run/konnectivity.sock
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: etcd
  connection:
    type: direct
"""


def test_v1alpha1_to_v1beta1_and_back() -> None:
    config = read(V1ALPHA1, name="x")
    assert to_egress_selector(config) == V1BETA1
    older = to_egress_selector(read(V1BETA1, name="x"), version="v1alpha1")
    assert older == V1ALPHA1.replace("master", "controlplane")


def test_one_kind_to_the_other_and_back() -> None:
    assert to_connectivity_service(read(V1BETA1, name="x")) == SERVICE
    assert to_egress_selector(read(SERVICE, name="x")) == V1BETA1


def test_master_is_the_control_plane_in_the_other_kind() -> None:
    config = read(SERVICE.replace("controlplane", "Master"), name="x")
    assert "name: master" in to_connectivity_service(config)
    assert to_egress_selector(config) == V1BETA1


@pytest.mark.parametrize("word", ["y", "N", "0o7", "1e3", "yes", "5", "1:20", "2001-01-01", "="])
def test_words_that_go_takes_for_something_else_are_quoted(word: str) -> None:
    connection = NetworkConnection(protocol=NetworkProtocol.PACKET, uds=word)
    network = NetworkConfig(name="cluster", connection=connection)
    text = to_egress_selector(ConnectivityConfig(networks={"cluster": network}))
    assert f"udsName: '{word}'" in text
    assert read(text, name="x").networks["cluster"].connection == connection


def test_every_field_is_explained() -> None:
    for kind in fields.KINDS:
        for field in kind.fields:
            page = fields.explain(f"{kind.name}.{field.path}")
            assert f"FIELD:    {field.path} <{field.type}>" in page
            assert field.about.split()[0] in page
            assert not field.parent or field.parent in [one.path for one in kind.fields]


def test_indices_are_as_good_as_none() -> None:
    page = fields.explain("egressSelections[0].connection")
    assert page == fields.explain("egressSelections.connection")
    for child in ("proxyProtocol <string>, required\n", "transport <object>, required with HTTP"):
        assert f"    {child}" in page


def test_a_field_of_both_kinds_has_two_pages() -> None:
    assert fields.explain("kind").count("KIND: ") == 2
    assert fields.explain("EgressSelectorConfiguration.kind").count("KIND: ") == 1
    assert "connectionService <object>" in fields.explain("ConnectivityServiceConfiguration")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("egressSelection.name", "'egressSelection.name', did you mean egressSelections.name?"),
        ("udsName", "'udsName', did you mean egressSelections.connection.transport.uds.udsName?"),
        ("EgressSelectorConfiguration.nam", "'nam'"),
        ("zzz", "'zzz'"),
    ],
)
def test_the_nearest_field_is_suggested(asked: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fields.explain(asked)
    assert str(caught.value) == f"there is no field {sentence}"


def test_what_is_asked_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="no field with a path of 1000 characters"):
        fields.explain("a" * 1000)


@pytest.mark.parametrize("kind", fields.KINDS, ids=lambda kind: kind.name)
def test_the_reference_page_is_current(kind: fields.DocumentKind) -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    begin, end = f"<!-- begin {kind.name} -->\n", f"<!-- end {kind.name} -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    current = f"{before}{begin}\n{fields.table(kind)}\n{end}{after}"
    if os.environ.get("ISTHMUS_REGENERATE"):
        REFERENCE.write_text(current, encoding="utf-8")
    assert REFERENCE.read_text(encoding="utf-8") == current


def examples() -> Iterator[tuple[str, str]]:
    for page in (REFERENCE, DOCS / "how-to" / "egress-configuration.md"):
        for found in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            yield page.name, found


def test_examples_of_the_documents_are_good() -> None:
    found = list(examples())
    assert len(found) >= 4
    for name, text in found:
        assert read(text, name=name).networks
        assert all(document for document in yaml.safe_load_all(text))
