"""A server that is named instead of the kubeconfig's (--master)."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.kube.kubeconfig import read_config

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def test_it_counts_instead_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    access = read_config(str(path), "https://10.0.0.2:6443")
    assert access.config.cluster.server == "https://10.0.0.2:6443"
    assert access.config.cluster.insecure
    assert access.config.user is not None
    assert access.config.user.token == "secret"
    assert read_config(str(path)).config.cluster.server == "https://10.0.0.1:6443"


def test_it_needs_no_file() -> None:
    access = read_config("", "http://127.0.0.1:8080")
    assert access.config.cluster.server == "http://127.0.0.1:8080"


@pytest.mark.parametrize("server", ["nowhere", "ftp://a", "https://", "http://[::1", "http://a:b"])
def test_what_is_no_server_is_refused_by_its_flag(server: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    for kubeconfig in ("", str(path)):
        with pytest.raises(ConfigError) as error:
            read_config(kubeconfig, server)
        assert str(error.value) == f"--master: {server!r} is not a server URL"


def test_a_file_with_no_server_is_named_itself(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG.replace("https://10.0.0.1:6443", "http://[::1"))
    with pytest.raises(ConfigError, match=f"--kubeconfig {path}: .* is not a server URL"):
        read_config(str(path))
