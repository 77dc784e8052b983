"""Manifests out of files: what is found, what is left out, and what is wrong with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel import manifests
from isthmus.programs.node_proxy.kernel.manifests import read_manifests

SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web, creationTimestamp: 2026-01-02T03:04:05Z}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"""
SLICE = """\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.7]}]
"""
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: NAME}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
"""
CIDR = """\
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
"""


def written(tmp_path: Path, text: str, name: str = "a.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def wrong(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_manifests([path])
    return str(error.value)


def test_documents_of_all_kinds(tmp_path: Path) -> None:
    written(tmp_path, "---\n".join((SERVICE, "# nothing\n", SLICE, NODE, CIDR)))
    found = read_manifests([tmp_path])
    assert [str(each.name) for each in found.services] == ["default/web"]
    assert [each.key for each in found.slices] == [("default", "web-1")]
    assert found.node is not None
    assert (found.node.name, found.node.pod_cidrs) == ("NAME", ("10.1.0.0/24",))
    assert found.service_cidrs == ("10.96.0.0/12",)
    assert found.notes == ()


def test_lists_are_taken_apart_in_json_and_yaml(tmp_path: Path) -> None:
    item = {
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    }
    typed = {"apiVersion": "v1", "kind": "ServiceList", "items": [item]}
    plain = {"apiVersion": "v1", "kind": "List",
             "items": [{"apiVersion": "v1", "kind": "Service", **item}]}  # fmt: skip
    same = []
    for given in (typed, plain):
        for name in ("a.json", "a.yml"):  # JSON is YAML
            path = written(tmp_path, json.dumps(given), name)
            same.append(read_manifests([path]))
    assert all(each.services and each.services == same[0].services for each in same)
    assert str(same[0].services[0].name) == "ns/web"


def test_the_node_is_the_one_of_the_name_or_the_only_one(tmp_path: Path) -> None:
    first, second = (NODE.replace("NAME", name) for name in ("one", "two"))
    alone = written(tmp_path, first, "one.yaml")
    both = [alone, written(tmp_path, second, "two.yaml")]
    assert read_manifests([alone]).node == read_manifests(both, node_name="one").node
    assert read_manifests(both).node is None
    assert read_manifests([alone], node_name="two").node is None
    assert [node.name for node in read_manifests(both).nodes] == ["one", "two"]


def test_which_files_of_a_directory_count(tmp_path: Path) -> None:
    for name in (".hidden.yaml", "a.yaml~", "README.md"):
        written(tmp_path, "not: [one", name)
    (tmp_path / "below.yaml").mkdir()
    os.symlink(written(tmp_path, SERVICE, "..data"), tmp_path / "web.yaml")
    assert len(read_manifests([tmp_path]).services) == 1
    assert len(read_manifests([tmp_path, tmp_path / "web.yaml"]).services) == 1


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    knative = SERVICE.replace("apiVersion: v1", "apiVersion: serving.knative.dev/v1")
    nameless = SLICE.replace("labels: {kubernetes.io/service-name: web}", "labels: {}")
    allotted = SERVICE.replace("clusterIP: 10.96.0.1, ", "")
    half = SERVICE.replace("web", "half").replace("{port: 80}", "{port: 80}, {port: 99999}")
    path = written(tmp_path, "---\n".join((knative, knative, nameless, allotted, half)))
    found = read_manifests([path])
    assert [len(each.ports) for each in found.services] == [0, 1]
    assert [": ".join(each.split(": ")[:3]) for each in found.notes] == [
        f"{path}:11: EndpointSlice default/web-1: no label kubernetes.io/service-name",
        f"{path}:18: Service default/web: no clusterIP",
        f"{path}:23: Service default/half: invalid port",
        f"{path}: serving.knative.dev/v1 Service ignored, 2 times",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Service\n\tmetadata: x", ":2:1: "),
        (f"kind: Node\n{NODE}", ":3:1: invalid YAML: duplicate key 'kind'"),
        (SERVICE + "---\n" + SLICE.replace("8080", "'8080'"),
         ":6: EndpointSlice web-1: Expected `int | null`, got `str` - at `$.ports[0].port`"),
        (SERVICE.replace("name: web", "name: 7"), ":1: Service (no name): Expected `str"),
        (SERVICE.replace("name: web", "name: Web_"), ":1: Service: invalid namespace or name"),
        (NODE.replace("name: NAME", ""), ":1: Node has no name"),
        ("- 1", ":1: invalid Kubernetes object"),
        ("metadata: {}\nkind: Service", ":1: no apiVersion"),
        ("apiVersion: v1", ":1: no kind"),
        ("apiVersion: [v1]\nkind: Service", ":1: apiVersion and kind "),
        ("apiVersion: v1\nkind: List\nitems: 3", ":1: items must be a list"),
        ("apiVersion: v1\nkind: List\nitems: [3]", ":1: items[0]: "),
        ("a: &a [*a]\n", ": aliases expand to more than 2000000 values"),
        (" \n", ": empty file"),
        ("\x00", ": invalid YAML: "),
        ("a: " + "[" * 100_000 + "]" * 100_000, ":1:1003: nested too deeply"),
        ("- " * 100_000, ":1:2001: nested too deeply"),
        ("? " * 100_000, ":1:2001: nested too deeply"),
    ],
)  # fmt: skip
def test_wrong_yaml_has_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    assert wrong(path).startswith(f"{path}{said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind":\n "Service",', ":2:12: "),
        ("[]", ": invalid Kubernetes object: Expected `object`, got `array`"),
        ('{"kind": "Service"}', ": no apiVersion"),
        ('{"kind": "List", "apiVersion": "v1", "items": [{"kind": "Node", "apiVersion": "v1"}]}',
         ": items[0]: Node (no name)"),
        ("[" * 100_000, ": "),
    ],
)  # fmt: skip
def test_wrong_json_has_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text, "a.json")
    assert wrong(path).startswith(f"{path}{said}")


def test_an_object_that_is_there_twice(tmp_path: Path) -> None:
    first = written(tmp_path, SERVICE)
    second = written(tmp_path, f"{SLICE}---\n{SERVICE}", "b.yml")
    assert wrong(tmp_path) == f"{second}:8: Service default/web is already defined at {first}:1"


def test_aliases_are_written_out(tmp_path: Path) -> None:
    text = SLICE.replace("endpoints: [{addresses: [10.1.0.7]}]",
                         "endpoints: [&one {addresses: [10.1.0.7]}, *one]")  # fmt: skip
    assert len(read_manifests([written(tmp_path, text)]).slices[0].endpoints) == 2


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, pipe = tmp_path / "missing.yaml", tmp_path / "pipe.yaml"
    assert wrong(missing) == f"cannot read {missing}: no such file"
    os.mkfifo(pipe)
    assert wrong(pipe) == f"cannot read {pipe}: not a regular file"
    monkeypatch.setattr(manifests, "MAX_FILE_BYTES", 20)
    long = written(tmp_path, SERVICE)
    assert wrong(long) == f"cannot read {long}: longer than 20 bytes"
    monkeypatch.setattr(manifests, "MAX_FILES", 1)
    assert wrong(tmp_path) == f"{tmp_path}: more than 1 files"
