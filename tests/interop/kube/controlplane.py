"""etcd and kube-apiservers as processes, in a namespace or in none."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kube.api import ADMIN_TOKEN, HOST, Api
from kube.build import Binaries
from kube.ground import CONTROL_PLANE
from kube.programs import Program, connect, free_port

from isthmus.tools.pki.making import PkiFiles

VISITOR_TOKEN = "visitor-secret"
_AUTHORIZATION = "--authorization-mode="
_ADMISSION_OFF = "ServiceAccount,PodSecurity,Priority,LimitRanger,ResourceQuota,RuntimeClass"


class ControlPlane:
    """One etcd, and as many kube-apiservers on it as are asked for, each with data of its own."""

    def __init__(
        self, binaries: Binaries, files: PkiFiles, directory: Path, namespace: str | None
    ) -> None:
        self._binaries = binaries
        self._files = files
        self._directory = directory
        self._namespace = namespace
        self._count = itertools.count(1)
        self.etcd_port = 0

    @contextlib.contextmanager
    def etcd(self) -> Iterator[Program]:
        """Run etcd for the time of the block; it has to be there before any apiserver."""
        self.etcd_port = free_port(self._namespace)
        client, peer = (
            f"http://{HOST}:{port}" for port in (self.etcd_port, free_port(self._namespace))
        )
        argv = [
            str(self._binaries.etcd), f"--data-dir={self._directory / 'etcd'}",
            "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]  # fmt: skip
        with Program("etcd", self._namespace, argv, self._directory).up() as etcd:
            etcd.wait_for(lambda: _listens(self._namespace, self.etcd_port), "it listens")
            yield etcd

    @contextlib.contextmanager
    def apiserver(
        self, *more: str, selector: object = None, prefix: str = "", ready: bool = True
    ) -> Iterator[Api]:
        """Run a kube-apiserver for the time of the block and wait until it is ready.

        ``selector`` is the egressSelections list; ``prefix`` is where in etcd its data is, which
        two may share; ``more`` are flags, and one given again wins (lists grow).
        """
        name = f"kube-apiserver-{next(self._count)}"
        home = self._directory / name
        home.mkdir()
        flags = self._flags(home, prefix or name)
        if not any(flag.startswith(_AUTHORIZATION) for flag in more):
            flags.append(f"{_AUTHORIZATION}AlwaysAllow")  # said twice it would be a list
        if selector is not None:
            flags.append(f"--egress-selector-config-file={_selector(home, selector)}")
        api = Api(
            namespace=self._namespace,
            port=free_port(self._namespace),
            ca_cert=self._files.ca_cert,
            kubectl_path=self._binaries.kubectl,
            home=home,
        )
        argv = [str(self._binaries.kube_apiserver), *flags, f"--secure-port={api.port}", *more]
        with Program(name, self._namespace, argv, self._directory).up() as program:
            if ready:
                program.wait_for(api.is_ready, "it is ready")
            yield replace(api, program=program)

    def _flags(self, home: Path, prefix: str) -> list[str]:
        files = self._files
        tokens = home / "tokens.csv"
        tokens.write_text(
            f"{ADMIN_TOKEN},admin,admin,system:masters\n{VISITOR_TOKEN},visitor,visitor\n"
        )
        return [
            f"--etcd-servers=http://{HOST}:{self.etcd_port}", f"--etcd-prefix=/{prefix}",
            f"--bind-address={HOST}", f"--advertise-address={CONTROL_PLANE}",
            "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24",
            f"--tls-cert-file={files.server_cert}", f"--tls-private-key-file={files.server_key}",
            f"--token-auth-file={tokens}",
            # Pods may be privileged, as in real clusters: a node proxy sets the kernel.
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files.server_cert}",
            f"--service-account-signing-key-file={files.server_key}",
            f"--disable-admission-plugins={_ADMISSION_OFF}",
            # Service references lead to the addresses of endpoints: nobody plays kube-proxy here.
            "--enable-aggregator-routing=true",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={files.ca_cert}",
            f"--kubelet-client-certificate={files.client_cert}",
            f"--kubelet-client-key={files.client_key}",
            f"--proxy-client-cert-file={files.client_cert}",
            f"--proxy-client-key-file={files.client_key}",
            f"--requestheader-client-ca-file={files.client_ca_cert}",
        ]  # fmt: skip


def _selector(home: Path, selections: object) -> Path:
    path = home / "egress.json"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "apiserver.k8s.io/v1beta1",
                "kind": "EgressSelectorConfiguration",
                "egressSelections": selections,
            }
        )
    )
    return path


def _listens(namespace: str | None, port: int) -> bool:
    try:
        connect(namespace, (HOST, port)).close()
    except OSError:
        return False
    return True
