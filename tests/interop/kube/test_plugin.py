"""``kubectl isthmus`` by a real kubectl, kube-apiserver and port-forward, for real programs."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import HOST, Api, write_kubeconfig
from kube.build import Binaries
from kube.cluster import plain_control_plane
from kube.controlplane import VISITOR_TOKEN
from kube.documents import make_namespace
from kube.programs import Program, environment, free_port
from programs import Programs

from isthmus.frame.finding import CheckId
from isthmus.manifests.pods import PROGRAM_LABEL
from isthmus.tools.pki.making import PkiFiles

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kubectl.md"
NAMESPACE = "isthmus-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LIMIT_S = 60.0
ADMIN_TOKEN = "pl4nted-admin-token"
ENV_SECRET = "pl4nted-in-a-variable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """An API, and who asks it with which kubeconfig, from a folder with the plugin in PATH."""

    api: Api
    path: Path
    server_port: int

    def run(self, *args: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``kubectl isthmus`` with these words."""
        return self.kubectl("isthmus", *args, kubeconfig=kubeconfig)

    def kubectl(
        self, *args: str, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, which finds the plugin."""
        chosen = kubeconfig or self.api.kubeconfig
        return subprocess.run(
            ["kubectl", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=self.path,
            env=environment(
                HOME=str(self.api.home),
                KUBECONFIG=str(chosen),
                PATH=f"{self.path}:{os.environ['PATH']}",
            ),
        )


def plugin_in(path: Path, binaries: Binaries) -> None:
    """kubectl and the two entry points of the package, as an installation puts them there."""
    path.mkdir()
    (path / "kubectl").symlink_to(binaries.kubectl)
    for name, function in (("kubectl-isthmus", "main"), ("kubectl_complete-isthmus", "complete")):
        script = path / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\nfrom isthmus.cli.plugin import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)


def create_pod(api: Api, name: str, *args: str, phase: str = "Running", **labels: str) -> None:
    """A pod on the fake node, with a container of this command line."""
    container = {
        "name": "main", "image": "none", "command": ["/isthmus"], "args": list(args),
        "env": [{"name": "PASSWORD", "value": ENV_SECRET}],
    }  # fmt: skip
    spec = {"nodeName": "node", "containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "labels": {PROGRAM_LABEL: args[0], **labels}}
    api.create(PODS, {"metadata": metadata, "spec": spec})
    api.call("PATCH", f"{PODS}/{name}/status", {"status": {"phase": phase}})


def create_node(api: Api, port: int) -> None:
    """The node whose kubelet is the fake one."""
    api.create("/api/v1/nodes", {"metadata": {"name": "node"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": HOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    api.call("PATCH", "/api/v1/nodes/node/status", {"status": status})


@pytest.fixture(scope="module")
def bed(
    kube_binaries: Binaries,
    certificates: PkiFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bed]:
    """A server and an agent in pods, one pod where nothing listens, and one that waits."""
    home = tmp_path_factory.mktemp("plugin")
    token = home / "admin-token"
    token.write_text(ADMIN_TOKEN)
    plugin_in(home / "bin", kube_binaries)
    (home / "bin" / "token").symlink_to(token)
    (home / "bin" / "ca.crt").symlink_to(certificates.ca_cert)
    with (
        plain_control_plane(kube_binaries) as (control_plane, files),
        control_plane.apiserver("--authorization-mode=RBAC") as api,
        Programs(certificates, home) as programs,
    ):
        port = free_port(None)
        argv = [
            str(kube_binaries.fakenode), f"-kubelet={HOST}:{port}", f"-cert={files.server_cert}",
            f"-key={files.server_key}", f"-client-ca={files.client_ca_cert}",
        ]  # fmt: skip
        with Program("fakenode", None, argv, home).up() as node:
            node.wait_for(lambda: bool(node.said), "it serves")
            make_namespace(api, NAMESPACE)
            create_node(api, port)
            server = programs.server(
                "--server-id=server-1",
                f"--admin-cert={certificates.server_cert}",
                f"--admin-key={certificates.server_key}",
                f"--admin-token-file={token}",
            )
            agent = programs.agent(server, "--agent-id=agent-1")
            server_port, agent_port = (it.port("admin_port") for it in (server, agent))
            create_pod(
                api, "server-a", "server", f"--admin-port={server_port}", "--admin-cert=/tls.crt"
            )
            create_pod(api, "agent-a", "agent", f"--admin-server-port={agent_port}")
            create_pod(api, "agent-dead", "agent", f"--admin-server-port={free_port(None)}")
            create_pod(api, "agent-waits", "agent", phase="Pending")
            yield Bed(api=api, path=home / "bin", server_port=server_port)


ALL = ("-n", NAMESPACE)
TLS = ("--cacert=ca.crt", "--token-file=token")
DEAD = ("agent-dead", "agent-waits")


def test_status_shows_all_and_says_who_cannot_be_reached(bed: Bed) -> None:
    done = bed.run("status", *ALL, *TLS, "-o", "json")
    found = json.loads(done.stdout)
    assert {(one["program"], one["id"]) for one in found["programs"]} == {
        ("server", "server-1"),
        ("agent", "agent-1"),
    }
    assert found["programs"][0]["address"] == f"server-a.{NAMESPACE}:{bed.server_port}"
    dead, waits = (one["error"] for one in found["errors"])
    assert "connection refused" in dead and "agent-dead" in dead
    assert "Pending" in waits and "agent-waits" in waits
    assert done.returncode == 1 and not found["ready"]


def test_one_line_for_each_that_cannot_be_reached(bed: Bed) -> None:
    done = bed.run("-n", NAMESPACE, "status", *TLS)  # flags before the command count too
    assert done.stdout.count("up  ") == 2, done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(DEAD) and all(line.startswith("error: http") for line in lines)


def test_a_healthy_choice_has_exit_code_0(bed: Bed) -> None:
    done = bed.run("status", *ALL, *TLS, "--pod=server-a", "--pod=agent-a")
    assert (done.returncode, done.stderr) == (0, "")


def test_agents_are_asked_of_servers_alone(bed: Bed) -> None:
    done = bed.run("agents", *ALL, *TLS, "-o", "yaml")
    (agent,) = yaml.safe_load(done.stdout)["items"]
    assert (agent["id"], agent["server"], done.stderr) == ("agent-1", "server-1", "")


def test_the_doctor_looks_at_each_pod(bed: Bed) -> None:
    done = bed.run("doctor", *ALL, *TLS, "-o", "json")
    report = json.loads(done.stdout)
    programs = {one["program"] for one in report["findings"]}
    assert f"server server-a.{NAMESPACE}:{bed.server_port}" in programs
    failed = [one for one in report["findings"] if one["state"] == "failed"]
    assert {one["check"] for one in failed} == {CheckId.RUNNING.value}, failed
    assert done.returncode == 1


def test_a_token_without_tls_is_for_one_namespace(bed: Bed) -> None:
    secret = bed.path / "token"
    assert bed.run("agents", "-A", *TLS).returncode == 0  # over TLS it is always sent
    missing = bed.run("agents", *ALL, "--cacert=ca.crt")
    assert missing.returncode == 1 and "--token-file" in missing.stderr
    assert secret.read_text() not in missing.stderr


def test_the_bundle_has_all_pods_and_no_secret(bed: Bed) -> None:
    done = bed.run("support-bundle", *ALL, *TLS, "-f", "secret-free.tar.gz")
    assert done.returncode == 0, done.stderr
    packed = (bed.path / "secret-free.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = [it.name.removeprefix("isthmus-support/") for it in archive.getmembers()]
        texts = [archive.extractfile(it).read() for it in archive.getmembers()]  # type: ignore[union-attr]
    everything = b"\n".join(texts)
    for secret in (ADMIN_TOKEN, ENV_SECRET, bed.api.token):
        assert secret.encode() not in everything
    assert f"pods/server-a.{NAMESPACE}-{bed.server_port}/snapshot.json" in names
    assert any(re.fullmatch(r"pods/agent-a\..*/metrics.txt", name) for name in names)
    assert not [name for name in names if name.startswith("machine/")]
    manifest = json.loads(texts[names.index("manifest.json")])
    missing = {it["name"].split("/")[1].split(".")[0] for it in manifest["missing"]}
    assert set(DEAD) <= missing


def documented_role() -> dict[str, Any]:
    """The Role of the page."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    role: dict[str, Any] = yaml.safe_load(text)
    return role


def test_the_documented_rights_suffice_and_are_needed(bed: Bed) -> None:
    visitor = write_kubeconfig(
        bed.api.home / "visitor", bed.api.url, bed.api.ca_cert, VISITOR_TOKEN
    )
    pods = ("--pod=server-a", "--pod=agent-a")
    denied = bed.run("status", *ALL, *TLS, kubeconfig=visitor)
    assert denied.returncode == 1 and denied.stdout == ""
    assert denied.stderr.startswith("error: ") and "Forbidden" in denied.stderr
    assert "docs/how-to/kubectl.md" in denied.stderr
    role = documented_role()
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    list_only = {**role, "rules": role["rules"][:1]}
    bed.api.create(f"{rights}/roles", list_only)
    name = role["metadata"]["name"]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "visitor"}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    bed.api.create(f"{rights}/rolebindings", binding)
    no_forward = bed.run("status", *ALL, *TLS, *pods, kubeconfig=visitor)
    assert no_forward.stderr.count("pods/portforward") == len(pods), no_forward.stderr
    bed.api.call("PUT", f"{rights}/roles/{name}", role)
    allowed = bed.run("status", *ALL, *TLS, *pods, kubeconfig=visitor)
    assert allowed.returncode == 0, allowed.stderr


def test_nothing_found_says_what_to_try(bed: Bed) -> None:
    done = bed.run("status")
    assert done.returncode == 1 and "-A" in done.stderr and PROGRAM_LABEL in done.stderr
    unknown = bed.run("status", "--context=nowhere")
    assert unknown.returncode == 1 and "nowhere" in unknown.stderr


def test_the_commands_of_the_page_run(bed: Bed) -> None:
    commands = re.findall(r"^\$ (kubectl isthmus .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        done = bed.kubectl(*shlex.split(command)[1:], *TLS)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        unreached = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert all("agent-dead" in it or "agent-waits" in it for it in unreached), done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sta",), "status"),
        (("tunnels", ""), "end"),
        (("status", "-o", "ya"), "yaml"),
        (("status", "--namespace", "isth"), NAMESPACE),
        (("status", "-n", NAMESPACE, "--pod", "server"), "server-a"),
        (("status", "--context", ""), "it"),
    ],
)
def test_kubectl_completes(bed: Bed, words: tuple[str, ...], expected: str) -> None:
    done = bed.kubectl("__complete", "isthmus", *words)
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert expected in offered and offered[-1] == ":4"


def test_kubectl_lists_the_plugin(bed: Bed) -> None:
    assert str(bed.path / "kubectl-isthmus") in bed.kubectl("plugin", "list").stdout
