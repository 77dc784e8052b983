"""docs/how-to/helm.md, run as it is written: the real helm and kubectl at a real kube-apiserver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kube.api import Api
from kube.build import Binaries
from kube.programs import environment

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "helm.md"
LIMIT_S = 60.0
_FILE = re.compile(r"<!-- file: (\S+) -->\n\n```yaml\n(.*?)```", re.DOTALL)
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Each command, and what the page says that it prints."""
    found = []
    for block in _CONSOLE.findall(PAGE.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.replace("\\\n", "").splitlines()
            found.append((lines[0], "\n".join(lines[1:]).strip()))
    return found


def test_the_page_does_what_it_says(kube_api: Api, kube_binaries: Binaries, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(kube_binaries.helm)
    (programs / "kubectl").symlink_to(kube_binaries.kubectl)
    isthmus = programs / "isthmus"
    isthmus.write_text(f'#!/bin/sh\nexec {sys.executable} -m isthmus.cli.main "$@"\n')
    isthmus.chmod(0o755)
    for name, text in _FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    env = environment(PATH=path, HOME=str(tmp_path), KUBECONFIG=str(kube_api.kubeconfig))
    assert len(commands()) > 10
    for command, printed in commands():
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, env=env,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if printed.startswith("isthmus: "):
            assert done.returncode == 2
            assert done.stderr.startswith(printed.partition("…")[0]), done.stderr
        else:
            assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.startswith("helm upgrade"):
            # What was --set when it was installed is not forgotten.
            assert image(kube_api) == "registry.example.com/isthmus:0.2.0"


def image(api: Api) -> str:
    path = "/apis/apps/v1/namespaces/isthmus-system/daemonsets/isthmus-server"
    (container,) = api.get(path)["spec"]["template"]["spec"]["containers"]
    return str(container["image"])
