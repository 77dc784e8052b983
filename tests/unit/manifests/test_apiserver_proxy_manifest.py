"""The proxy of a node as static pod, unit and Ignition: files read by a person, and promises.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.programs.apiserver_proxy.render_manifest import data_url
from isthmus.programs.apiserver_proxy.settings_file import parse

GOLDEN = Path(__file__).parents[2] / "golden" / "hosted_manifests"
IMAGE = "--image=registry.example.com/isthmus:1.0"
UP = ("--upstream=api.example.com:6443", "--ca-cert=/etc/isthmus/ca.crt")
CONFIG = "/etc/kubernetes/apiserver-proxy-config/apiserver-proxy.yaml"
CASES: dict[str, tuple[str, ...]] = {
    "apiserver-proxy-static-pod.yaml": ("--as=static-pod", IMAGE, *UP),
    "apiserver-proxy-static-pod-bare.yaml": (
        "--as=static-pod", IMAGE, *UP, "--manage-address=false", "--run-as=1001",
        "--client-cert=/etc/isthmus/client.crt", "--client-key=/etc/isthmus/client.key",
        "--health-port=9102", "--health-bind-address=", "--graceful-shutdown-timeout=1m",
    ),
    "apiserver-proxy-static-pod-low-port.yaml": (
        "--as=static-pod", IMAGE, *UP, "--listen=172.20.0.1:443", "--listen=[fd00::1]:443",
        "--name=proxy-b", "--namespace=isthmus",
    ),
    "apiserver-proxy-static-pod-config.yaml": (
        "--as=static-pod", IMAGE, "--config=/etc/isthmus/proxy/apiserver-proxy.yaml", "--v=2",
    ),
    "apiserver-proxy-systemd.service": (
        "--as=systemd", *UP, "--listen=[fd00::1]:6443", "--max-connections=100000",
        "--uplink-interface=eth0,eth1",
    ),
    "apiserver-proxy-systemd-bare.service": (
        "--as=systemd", *UP, "--listen=127.0.0.1:6443", "--unit-group=proxy",
        "--executable=/opt/isthmus/bin/isthmus",
    ),
    "apiserver-proxy-systemd.ign": (
        "--as=ignition", *UP, "--http-proxy=http://me:pass%40word@proxy.example.com:3128",
        "--no-proxy=.example.org", "--send-proxy-v2", "--proxy-v2-tlv=0x20=cluster-ü", "--v=2",
    ),
    "apiserver-proxy-static-pod.ign": (
        "--as=ignition", "--ignition-with=static-pod", IMAGE, *UP,
    ),
}  # fmt: skip
STATIC = [name for name in CASES if name.endswith(".yaml")]
UNITS = [name for name in CASES if name.endswith(".service")]


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "apiserver-proxy", *args]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "apiserver-proxy", *args]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1, found.err
    return found.err.removeprefix("isthmus: ").rstrip()


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_somebody_has_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, *CASES[name])
    if os.environ.get("ISTHMUS_REGENERATE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_every_file_is_used() -> None:
    assert {path.name for path in GOLDEN.glob("apiserver-proxy-*")} == CASES.keys()


@pytest.mark.parametrize("name", STATIC)
def test_no_probe_asks_the_apiserver(name: str) -> None:
    """HyperShift's goes through to it, and an outage there starts every proxy again."""
    spec = yaml.safe_load((GOLDEN / name).read_text())["spec"]
    (container,) = spec["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] == "/livez"
        assert asked["port"] != 6443 and "scheme" not in asked
    assert spec["hostNetwork"] and spec["priorityClassName"] == "system-node-critical"
    assert {key for volume in spec["volumes"] for key in volume} == {"name", "hostPath"}


ADDED = {
    "apiserver-proxy-static-pod.yaml": ["NET_ADMIN"],
    "apiserver-proxy-static-pod-bare.yaml": None,
    "apiserver-proxy-static-pod-low-port.yaml": ["NET_ADMIN", "NET_BIND_SERVICE"],
    "apiserver-proxy-static-pod-config.yaml": ["NET_ADMIN"],
}


@pytest.mark.parametrize("name", STATIC)
def test_it_has_the_capabilities_that_it_needs(name: str) -> None:
    spec = yaml.safe_load((GOLDEN / name).read_text())["spec"]
    context = spec["containers"][0]["securityContext"]
    assert context["capabilities"].get("add") == ADDED[name]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert context["runAsNonRoot"] is (ADDED[name] is None)
    assert "initContainers" not in spec


def test_a_low_port_without_the_address_is_root_without_net_admin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = written(
        capsys, "--as=static-pod", *UP, "--manage-address=false", "--listen=172.20.0.1:443"
    )
    context = yaml.safe_load(text)["spec"]["containers"][0]["securityContext"]
    assert context["capabilities"]["add"] == ["NET_BIND_SERVICE"]


def contents(url: str) -> bytes:
    """As RFC 2397 has it."""
    kind, _, data = url.removeprefix("data:").partition(",")
    return base64.b64decode(data) if kind.endswith(";base64") else unquote_to_bytes(data)


def ignition_files(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["path"]: each for each in document["storage"]["files"]}


def test_ignition_has_the_configuration_and_the_unit() -> None:
    document = json.loads((GOLDEN / "apiserver-proxy-systemd.ign").read_text())
    assert document["ignition"] == {"version": "3.2.0"}
    (file,) = document["storage"]["files"]
    # The password is for the group of the unit alone.
    assert (file["path"], file["mode"], file["group"]) == (CONFIG, 0o640, {"name": "isthmus"})
    plan = parse(contents(file["contents"]["source"]).decode(), CONFIG)
    assert plan.through is not None and plan.through.proxy.password == "pass@word"
    assert plan.proxy_protocol is not None and plan.proxy_protocol[0].value == "cluster-ü".encode()
    (unit,) = document["systemd"]["units"]
    assert (unit["name"], unit["enabled"]) == ("kube-apiserver-proxy.service", True)
    assert f"--config={CONFIG}" in unit["contents"] and "--v=2" in unit["contents"]
    assert "--upstream" not in unit["contents"] and "pass" not in unit["contents"]
    assert document["passwd"]["groups"] == [{"name": "isthmus", "system": True}]


def test_ignition_may_have_the_static_pod() -> None:
    document = json.loads((GOLDEN / "apiserver-proxy-static-pod.ign").read_text())
    assert "systemd" not in document and "passwd" not in document
    files = ignition_files(document)
    config = files[CONFIG]
    assert (config["mode"], "group" in config) == (0o600, False)
    manifest = files["/etc/kubernetes/manifests/kube-apiserver-proxy.yaml"]
    assert manifest["mode"] == 0o644
    pod = yaml.safe_load(contents(manifest["contents"]["source"]))
    assert pod["spec"]["containers"][0]["args"] == ["apiserver-proxy", f"--config={CONFIG}"]
    mounted = {each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {str(Path(CONFIG).parent), "/etc/isthmus"}


def test_ignition_brings_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "ca.crt"
    source.write_bytes(b"-----\x00\xff, 100% #?\n")
    args = ("--as=ignition", *UP, f"--file=/etc/isthmus/ca.crt={source}")
    assert main(["manifest", "apiserver-proxy", *args]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    file = ignition_files(json.loads(found.out))["/etc/isthmus/ca.crt"]
    assert contents(file["contents"]["source"]) == source.read_bytes()


@pytest.mark.parametrize("text", [b"", b"a b\n%,#?&\"'\\", bytes(range(256)), "ü".encode()])
def test_a_data_url_has_the_contents(text: bytes) -> None:
    assert contents(data_url(text)) == text
    assert data_url(text).isascii() and not set(data_url(text)) & set(" \n#?\"'")


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_the_unit_and_finds_it_safe(name: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "kube-apiserver-proxy.service"
    text = (GOLDEN / name).read_text()
    for program in ("/usr/bin/isthmus", "/opt/isthmus/bin/isthmus"):  # it looks whether it is there
        text = text.replace(program, "/usr/bin/env")
    unit.write_text(text)
    run = ["systemd-analyze", "--no-pager"]
    done = subprocess.run(
        [*run, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [*run, "security", "--offline=yes", "--threshold=30", str(unit)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("apiserver-proxy-systemd.service", "CAP_NET_ADMIN"),
        ("apiserver-proxy-systemd-bare.service", ""),
    ],
)
def test_a_unit_has_the_capabilities_that_it_needs(name: str, capabilities: str) -> None:
    lines = (GOLDEN / name).read_text().splitlines()
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert [line for line in lines if line.startswith(key)] == [f"{key}={capabilities}"]
    assert "DynamicUser=yes" in lines


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (UP, "--as"),
        (("--as=daemonset", *UP), "--as must be static-pod or systemd or ignition"),
        (("--as=static-pod",), "--upstream is missing"),
        (("--as=static-pod", "--upstream=x"), "--upstream: 'x' is not HOST:PORT"),
        (("--as=systemd", *UP, "--health-port=0"), "--health-port must not be 0 in a manifest"),
        (("--as=systemd", *UP[:1], "--ca-cert=/tmp/a/ca"), "--ca-cert /tmp/a/ca: a unit has a"),
        (("--as=static-pod", *UP[:1], "--ca-cert=/etc/ca"), "--ca-cert /etc/ca: /etc would be"),
        (
            (
                "--as=static-pod",
                *UP[:1],
                "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
            ),
            "--ca-cert /var/run/secrets/kubernetes.io/serviceaccount/ca.crt: a static pod has no",
        ),
        (
            ("--as=systemd", *UP, "--health-check-server-name=$(NODE_NAME)"),
            "$(NODE_NAME)",
        ),
        (
            ("--as=ignition", *UP, "--ignition-with=static-pod", "--v=$(NODE_NAME)"),
            "--v: 'node' is not a whole number",
        ),
        (("--as=ignition", *UP, "--file=/etc/a"), "--file takes PATH=FILE, such as"),
        (("--as=ignition", *UP, "--file=a=b"), "--file a: a manifest needs an absolute path"),
        (("--as=ignition", *UP, "--file=/etc/a=/nowhere/b"), "cannot read --file /nowhere/b: no"),
        (("--as=ignition", *UP, "--file=/etc/a=/dev/zero"), "--file: /dev/zero is larger than"),
        (
            ("--as=ignition", *UP, f"--file={CONFIG}=/dev/null"),
            "--file /etc/kubernetes/apiserver-proxy-config/apiserver-proxy.yaml",
        ),
        (
            ("--as=systemd", *UP, "--config=/etc/isthmus/c.yaml"),
            "--upstream",
        ),
        (("--as=static-pod", *UP, "--run-as=0"), "--run-as must be from 1"),
        (("--as=static-pod", *UP, "--name=A"), "--name takes a name of at most 48"),
        (("--as=static-pod", *UP, "--image=a b"), "--image takes an image such as"),
        (("--as=systemd", *UP, "--executable=x"), "--executable takes an absolute path"),
        (("--as=systemd", *UP, "--unit-group=a;b"), "--unit-group takes the name of a group"),
        (("--as=systemd", *UP, "--upstreem=x"), "unknown flag --upstreem, did you mean"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *args).startswith(sentence)


def test_what_may_not_be_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    proxy = "--http-proxy=http://me:secret@proxy:3128"
    assert main(["manifest", "apiserver-proxy", "--as=systemd", *UP, proxy, "--image=x"]) == 0
    said = capsys.readouterr().err
    assert "password of --http-proxy" in said and "secret" not in said
    assert "--image has no effect with --as=systemd" in said
    assert main(["manifest", "apiserver-proxy", "--as=ignition", *UP]) == 0
    assert "these files must exist" in capsys.readouterr().err
