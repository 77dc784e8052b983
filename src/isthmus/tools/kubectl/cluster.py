"""The programs of a cluster, for commands that use admin ports: which there are, and the way there.

Queries the API with kubectl itself, which exists, since this is its plugin: the credentials and
flags that work for ``kubectl get pods`` work here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import complain
from isthmus.manifests.pods import PROGRAM_LABEL
from isthmus.tools.kubectl.forwarding import Forwards
from isthmus.tools.kubectl.rules_pods import PodPort, admin_ports, described
from isthmus.tools.watching.admin_flags import AdminFlags

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient
    from isthmus.tools.doctor.bundle_parts import BundlePart

#: Flags that are passed to kubectl unchanged.
HANDED_ON = {
    "kubeconfig": "Path to the kubeconfig file",
    "context": "Name of the kubeconfig context",
    "cluster": "Name of the kubeconfig cluster",
    "user": "Name of the kubeconfig user",
    "as": "User to impersonate",
    "as_group": "Group to impersonate, repeatable",
    "server": "Address and port of the Kubernetes API server",
    "request_timeout": "Time to wait for one answer of the API server, such as 5s",
}
ALL = "all_namespaces"
MOST_PODS = 100
#: The name in the certificates of programs for their own machine.
_OWN_NAME = "localhost"
_LIST_S = 60.0
_RIGHTS = "the rights that the plugin needs are in docs/how-to/kubectl.md"


class KubectlError(ConfigError):
    """kubectl failed; the text is its message, and what to do next."""

    exit_code = 1


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The pods that flags select; ``chosen`` has the flags, by name."""

    chosen: dict[str, Any] = field(default_factory=dict)
    programs: Collection[str] = ()
    most: int = MOST_PODS
    _pods: list[dict[str, Any]] | None = None
    _forwards: Forwards | None = None

    def close(self) -> None:
        """End all port-forwards."""
        if self._forwards is not None:
            self._forwards.close()

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The selected pods, listed once.

        Raises:
            KubectlError: they cannot be listed.
        """
        if self._pods is None:
            names = self.chosen.get("pod") or ()
            argv = ["get", "pods", "--output=json", f"--selector={self.selector}"]
            if self.chosen.get(ALL):
                argv.append("--all-namespaces")
            elif self.chosen.get("namespace"):
                argv.append(f"--namespace={self.chosen['namespace']}")
            found = json.loads(run_kubectl([*self.kubectl, *argv]))["items"]
            self._pods = [pod for pod in found if not names or pod["metadata"]["name"] in names]
        return self._pods

    @property
    def kubectl(self) -> list[str]:
        """The kubectl command with its global flags."""
        return kubectl_with(self.chosen)

    @property
    def selector(self) -> str:
        """The label selector: that of the flags, or every pod with the Isthmus label."""
        return self.chosen.get("selector") or PROGRAM_LABEL

    @property
    def ports(self) -> list[PodPort]:
        """The admin ports to query.

        Raises:
            KubectlError: pods cannot be listed, or none runs a requested program.
        """
        found = [
            port
            for port in admin_ports(self.pods)
            if not self.programs or port.program in self.programs
        ]
        if not found:
            raise KubectlError(self._nothing())
        if len(found) > self.most:
            complain(f"{len(found) - self.most} more pods were left out; choose with -l or --pod")
        return found[: self.most]

    def _nothing(self) -> str:
        where = "in any namespace"
        if not self.chosen.get(ALL):
            named = self.chosen.get("namespace")
            where = f"in namespace {named}" if named else "in the current namespace"
        what = " or ".join(self.programs) if self.programs else "an Isthmus program"
        todo = "choose others with -l" if self.chosen.get(ALL) else "search with -A, or give -n"
        return f"found no admin port of {what} {where} (selector {self.selector}); {todo}"

    def forwards(self) -> Forwards:
        """The port-forwards to its pods."""
        if self._forwards is None:
            self._forwards = Forwards(self.kubectl)
        return self._forwards


def kubectl_with(chosen: Mapping[str, Any]) -> list[str]:
    """The kubectl command with the flags that are passed on.

    Raises:
        ConfigError: kubectl is not in PATH.
    """
    path = shutil.which("kubectl")
    if path is None:
        raise ConfigError("no kubectl in PATH; install it, this plugin reaches pods through it")
    words = [path]
    for name in HANDED_ON:
        value = chosen.get(name) or ()
        texts: Sequence[str] = (value,) if isinstance(value, str) else value
        words += [f"--{name.replace('_', '-')}={text}" for text in texts]
    return words


def run_kubectl(argv: Sequence[str]) -> str:
    """Run kubectl until it exits; returns its output.

    Raises:
        KubectlError: it failed, or did not exit in time.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KubectlError(
            f"kubectl did not list the pods within {_LIST_S:g} s; see --request-timeout"
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"kubectl ended with {done.returncode}"]
        text = lines[-1].removeprefix("error: ")
        raise KubectlError(f"{text}; {_RIGHTS}" if "(Forbidden)" in text else text)
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags(AdminFlags):
    """The same files and tokens, for the programs of a cluster."""

    cluster: Cluster

    @property
    def named(self) -> bool:
        """A selector names programs."""
        return True

    @property
    def chosen_by(self) -> str:
        """The flag that chooses one program."""
        return "--pod"

    def clients(self, *, timeout_s: float = 5.0) -> list[AdminClient]:
        """A client for each program, servers first; an unreachable program is an error on use.

        Raises:
            ConfigError: a file cannot be used, or there are no programs.
        """
        return [
            self.client(
                f"{'https' if port.https else 'http'}://{_OWN_NAME}:{port.port}",
                timeout_s=timeout_s,
                # The label proves nothing. A user who creates pods in a namespace can read its
                # Secrets anyway; in other namespaces only a certificate proves whose pod it is.
                token=port.https or not self.cluster.chosen.get(ALL),
                reach=self.cluster.forwards().reach(port),
            )
            for port in self.cluster.ports
        ]

    def surroundings(self) -> Iterator[BundlePart]:
        """The pods, and our versions; nothing of the machine that the plugin runs on."""
        from isthmus.tools.doctor.bundle_parts import BundlePart, versions

        yield BundlePart("versions.json", versions)
        yield BundlePart("pods.json", partial(_as_json, described(self.cluster.pods)))


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
