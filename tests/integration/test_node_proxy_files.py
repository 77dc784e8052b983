"""``isthmus node-proxy --manifests`` as a program, without a cluster, in a network of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_proxy_bed import NODE, SERVICE, metric, page
from own_network import needs_root, own_network
from programs import COMMAND, ENVIRONMENT, Program
from stack import wait_until

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("iptables-save", "nft"))), reason="needs iptables and nft"
    ),
]
LIMIT_S = 20.0
CHECKED = """\
apiVersion: v1
kind: Service
metadata: {name: checked}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 31234
  clusterIP: 10.96.0.11
  ports: [{port: 80, nodePort: 30080}]
"""


@contextlib.contextmanager
def running(tmp_path: Path, *flags: str, mode: str = "iptables") -> Iterator[Program]:
    """Run it on a directory "manifests" of the test's; it looks often."""
    program = Program(
        [
            "node-proxy", f"--manifests={tmp_path / 'manifests'}", f"--proxy-mode={mode}",
            f"--{mode}-sync-period=1s", f"--{mode}-min-sync-period=10ms",
            "--conntrack-max-per-core=0", "--oom-score-adj=0", *flags,
        ],
        tmp_path / "log",
    )  # fmt: skip
    try:
        yield program
    finally:
        program.end()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """The directory, with a Node and a Service, and a network to program."""
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "node.yaml").write_text(NODE)
    (directory / "web.yaml").write_text(SERVICE)
    with own_network():
        yield directory


def output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout


def wait_rules(program: Program, *texts: str, without: str = "KUBE-NOTHING") -> None:
    def there() -> bool:
        found = output("iptables-save")
        return all(text in found for text in texts) and without not in found

    wait_until(lambda: there() or program.process.poll() is not None, f"rules with {texts}")
    assert program.process.poll() is None, program.log


def test_files_are_programmed_and_followed(files: Path, tmp_path: Path) -> None:
    with running(tmp_path, "--detect-local=node-cidr") as program:
        # The only Node is us: the range of local pods is its own.
        wait_rules(
            program, "-d 10.96.0.10/32", "! -s 10.1.0.0/24", "--to-destination 10.1.0.7:8080"
        )
        assert 'node="here"' in program.log
        (files / "web.yaml").write_text(SERVICE.replace("10.1.0.7", "10.1.0.8"))
        wait_rules(program, "--to-destination 10.1.0.8:8080", without="10.1.0.7")
        (files / "more.json").write_text(
            '{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "more"},'
            ' "spec": {"clusterIP": "10.96.0.12", "ports": [{"port": 81}]}}]}'
        )
        wait_rules(program, "-d 10.96.0.12/32")  # refused: it has no endpoints
        (files / "more.json").unlink()
        wait_rules(program, "--to-destination 10.1.0.8:8080", without="10.96.0.12")


@pytest.mark.parametrize("flag", ["--detect-local=node-cidr", "--detect-local-mode=NodeCIDR"])
def test_a_node_without_ranges_is_waited_for_and_says_so(
    files: Path, tmp_path: Path, flag: str
) -> None:
    ranges = "podCIDRs: [10.1.0.0/24]"
    (files / "node.yaml").write_text(NODE.replace(ranges, ""))
    with running(tmp_path, flag) as program:
        program.wait_log("waiting for podCIDRs of the Node before writing rules")
        waiting = "waiting for podCIDRs of the Node here"
        assert page("/readyz", 10256) == (503, f"[+]ping ok\n[-]rules failed: {waiting}\n")
        found = json.loads(page("/snapshot")[1])
        assert (found["ready"], f"waiting for {found['waitingFor']}") == (False, waiting)
        assert "10.96.0.10" not in output("iptables-save")
        (files / "node.yaml").write_text(NODE)
        wait_rules(program, "-d 10.96.0.10/32", "! -s 10.1.0.0/24")
        wait_until(lambda: page("/readyz", 10256)[0] == 200, "ready")
        assert json.loads(page("/snapshot")[1])["families"][0]["ports"] == 1


def test_a_wrong_file_is_one_line_and_changes_nothing(files: Path, tmp_path: Path) -> None:
    with running(tmp_path) as program:
        wait_rules(program, "--to-destination 10.1.0.7:8080")
        (files / "web.yaml").write_text("kind: Service\nmetadata: {")
        program.wait_log("cannot use the manifests")
        (files / "web.yaml").write_text("")
        program.wait_log("empty file")
        (files / "twice.yaml").write_text(SERVICE)
        program.wait_log("Service default/web is already defined")
        (files / "other.yaml").write_text(SERVICE.replace("web", "other").replace(".10,", ".13,"))
        (files / "twice.yaml").unlink()
        wait_rules(program, "--to-destination 10.1.0.7:8080", "-d 10.96.0.13/32")
        assert program.log.count("invalid YAML") == 1
        shutil.move(files, tmp_path / "away")
        program.wait_log("no such file")
        assert "10.96.0.10" in output("iptables-save")
        shutil.move(tmp_path / "away", files)
        (files / "web.yaml").write_text(SERVICE.replace("10.1.0.7", "10.1.0.9"))
        wait_rules(program, "--to-destination 10.1.0.9:8080")


def test_a_directory_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        assert program.wait_exit() == 2
        where = tmp_path / "manifests"
        assert program.log == f"isthmus: cannot read {where}: no such file\n"


def test_without_a_node_flags_say_which(files: Path, tmp_path: Path) -> None:
    (files / "node.yaml").unlink()
    flags = ("--hostname-override=there", "--bind-address=192.0.2.9", "--cluster-cidr=10.1.0.0/16")
    with running(tmp_path, *flags) as program:
        wait_rules(program, "--to-destination 10.1.0.7:8080", "! -s 10.1.0.0/16")
        assert "192.0.2.9" in program.log
        assert page("/healthz", 10256)[0] == 200


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("web.yaml", "kind: Service\nmetadata: {", "web.yaml:3:1: "),
        ("web.json", '{"kind": "Service"}', "web.json: no apiVersion"),
        ("again.yaml", SERVICE, "web.yaml:1: Service default/web is already defined"),
    ],
)
def test_a_wrong_file_at_the_start_is_a_sentence(
    files: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (files / name).write_text(text)
    with running(tmp_path) as program:
        assert program.wait_exit() == 2
        assert said in program.log
        assert "Traceback" not in program.log


@pytest.mark.parametrize(
    ("mode", "table", "counter"),
    [
        ("iptables", "nat", "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{"),
        ("nftables", "kube-proxy", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{"),
    ],
)
def test_a_failed_sync_is_counted_and_tried_again(
    files: Path, tmp_path: Path, mode: str, table: str, counter: str
) -> None:
    if mode == "iptables" and "nf_tables" not in output("iptables", "--version"):
        pytest.skip("iptables of the old kind has no tables that belong to somebody")
    with someone_elses(table) as owner, running(tmp_path, mode=mode) as program:
        program.wait_log("sync failed")
        wait_until(lambda: metric(counter) >= 2, "it fails again")
        owner.stdin.close()  # type: ignore[union-attr]
        owner.wait(LIMIT_S)
        program.wait_log("sync recovered")
        rules = output("nft", "list", "ruleset")
        assert "10.1.0.7" in rules
        assert page("/healthz", 10256)[0] == 200


@contextlib.contextmanager
def someone_elses(table: str) -> Iterator[subprocess.Popen[str]]:
    """A table that only the program may change that made it, while it runs."""
    with subprocess.Popen(
        ["nft", "-i"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as owner:
        try:
            assert owner.stdin is not None
            owner.stdin.write(f"add table ip {table} {{ flags owner; }}\n")
            owner.stdin.flush()
            wait_until(lambda: "flags owner" in output("nft", "list", "ruleset"), "it is there")
            yield owner
        finally:
            owner.kill()


def test_a_busy_health_check_port_is_tried_again(files: Path, tmp_path: Path) -> None:
    (files / "checked.yaml").write_text(CHECKED)
    with running(tmp_path) as program:
        with socket.create_server(("0.0.0.0", 31234)):
            program.wait_log("cannot open health check node port")
        # Nothing changes any more, and yet:
        program.wait_log("health check node port opened")
        assert page("/healthz", 31234)[0] == 503  # no endpoint is here


def test_another_node_proxy_is_not_started_beside(files: Path, tmp_path: Path) -> None:
    with running(tmp_path) as program:
        wait_rules(program, "10.96.0.10")
        done = subprocess.run(
            [*COMMAND, "node-proxy", f"--manifests={files}", "--metrics-bind-address=", "--v=0",
             "--healthz-bind-address="],
            capture_output=True, text=True, timeout=LIMIT_S, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 2
        assert "(http://127.0.0.1:10249/proxyMode answers like kube-proxy)" in done.stderr


def test_a_file_of_settings_that_changes_ends_it(files: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.conf"
    text = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
hostnameOverride: here
clusterCIDR: 10.9.0.0/16
"""
    config.write_text(text)
    with running(tmp_path, f"--config={config}") as program:
        wait_rules(program, "! -s 10.9.0.0/16")
        config.write_text(f"# the same\n{text}")
        config.write_text(text.replace("clusterCIDR", "clustrCIDR"))
        program.wait_log("keeping the current settings")
        config.write_text(text.replace("10.9", "10.8"))
        assert program.wait_exit() == 1
        assert "ending, to be restarted" in program.log
        assert "Traceback" not in program.log
        assert "10.9.0.0/16" in output("iptables-save")


def test_an_iptables_restore_that_crashes_is_named_and_tried_again(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules that were there stay, and the change comes with the next one that works."""
    real, crashes = shutil.which("iptables-restore"), tmp_path / "crashes"
    wrapper = tmp_path / "bin" / "iptables-restore"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n[ -e {crashes} ] && kill -SEGV $$\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setitem(ENVIRONMENT, "PATH", f"{wrapper.parent}:{ENVIRONMENT['PATH']}")
    with running(tmp_path, "--cluster-cidr=10.0.0.0/8") as program:
        wait_rules(program, "--to-destination 10.1.0.7:8080")
        crashes.touch()
        (files / "web.yaml").write_text(SERVICE.replace("10.1.0.7", "10.1.0.8"))
        program.wait_log("iptables-restore failed: killed by SIGSEGV")
        assert "--to-destination 10.1.0.7:8080" in output("iptables-save")
        crashes.unlink()
        wait_rules(program, "--to-destination 10.1.0.8:8080", without="10.1.0.7")
