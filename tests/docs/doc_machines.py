"""Machines for the commands of the documents, so that they run exactly as they are written.

A machine is a mount, process and network namespace: ``/etc``, ``/run``, ``/var/lib`` and
``/var/log`` are its own, every port is free, and names of the documents lead to its loopback. It
has the real ``isthmus`` and whatever is installed here; of what has no place on it (kubectl without
a cluster, systemctl without systemd) there are stand-ins that check what they are given
(doc_stand_in.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doc_blocks import ROOT, SHELL, Block, Page
from doc_commands import Command, commands

import isthmus

HERE = Path(__file__).parent
#: Where the isthmus is that these tests have: not always the one that is installed.
SOURCE = Path(isthmus.__file__).parents[1]
STAND_INS = ("kubectl", "systemctl", "helm", "kubeadm", "kind", "k3s", "k0s", "docker", "podman")
NAMES = (
    "konnectivity.example.com proxy.example.com server.example.com api.example.com edge.example "
    "api-a.example.com api-b.example.com isthmus.example"
)
DIRECTORIES = (
    "/etc/isthmus",
    "/etc/konnectivity",
    "/etc/kubernetes/manifests",
    "/etc/kubernetes/pki",
    "/etc/systemd/system",
    "/run/isthmus",
    "/var/lib/isthmus",
    "/var/log/isthmus",
)
#: For programs that want one; nobody answers there, which they have to bear.
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
current-context: nobody
users: [{name: nobody, user: {}}]
"""
_PKI = (
    "cp -r $MADE_PKI /etc/isthmus/pki",
    "cp /etc/isthmus/pki/* /etc/isthmus/ && cp /etc/isthmus/pki/ca.crt /etc/kubernetes/ca.crt",
    "cp /etc/isthmus/pki/ca.crt /etc/kubernetes/pki/ca.crt",
    "cp -r /etc/isthmus/pki pki && cp pki/ca.crt ca.crt",
)
_TUNNEL = (
    *_PKI,
    f"exec {sys.executable} {HERE / 'doc_target.py'} > target.log 2>&1 &",
    "isthmus server --mode=http-connect --uds-name=/run/isthmus/server.sock "
    "--cluster-cert=pki/server.crt --cluster-key=pki/server.key --cluster-ca-cert=pki/ca.crt "
    "--server-port=8090 --server-bind-address=127.0.0.2 "
    "--server-cert=pki/server.crt --server-key=pki/server.key "
    "--server-ca-cert=pki/client-ca.crt --enable-profiling",
    "isthmus agent --proxy-server-host=konnectivity.example.com --ca-cert=pki/ca.crt "
    "--agent-cert=pki/agent.crt --agent-key=pki/agent.key --agent-id=node-1",
    "curl -s -o /dev/null --fail --retry 50 --retry-delay 1 --retry-all-errors "
    "http://127.0.0.1:8092/readyz",
)
#: What a machine begins with; ``lab`` is this very one, for `make lab`.
MACHINES: dict[str, tuple[str, ...]] = {"bare": (), "pki": _PKI, "tunnel": _TUNNEL, "lab": ()}


@dataclass(frozen=True, slots=True)
class Failure:
    """A command that did not do what the page says."""

    where: str
    command: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.command}\n{self.why}"


def steps_of(page: Page) -> list[dict[str, Any]]:
    """What to do on a page's machine, in order."""
    steps: list[dict[str, Any]] = []
    for number, text in enumerate(MACHINES[page.machine]):
        steps.append(
            _step(Command(text=text, prints=None, where=f"machine {page.machine}:{number}"))
        )
    paths = [path for block in page.blocks if (path := block.note("file"))]
    steps += [_file(block) for block in page.blocks if paths.count(block.note("file")) == 1]
    for block in page.blocks:
        steps += [
            _step(Command(text=text, prints=None, where=f"{block} (setup)"))
            for text in block.all_notes("setup")
        ]
        if paths.count(block.note("file")) > 1:
            steps.append(_file(block))
        if block.language == "python" and block.note("given"):
            steps += _python(block)
        if block.language in SHELL and not block.note("not run"):
            varies = bool(block.note("output varies"))
            steps += [_step(command, varies=varies) for command in commands(block)]
            steps[-1]["code"] = int(block.note("exit code") or 0)
    return steps


def _python(block: Block) -> list[dict[str, Any]]:
    """Write a Python block as a file, behind what it is given, and run it."""
    path = f"block-{block.line}.py"
    text = "\n".join([*block.all_notes("given"), block.text])
    command = f"python3 {HERE / 'doc_python.py'} {path}"
    return [
        {"do": "file", "path": path, "text": text, "where": str(block)},
        _step(Command(text=command, prints=None, where=str(block))),
    ]


def _file(block: Block) -> dict[str, Any]:
    """Write the file that a block is; one that a page has once is there from the beginning."""
    return {"do": "file", "path": block.note("file"), "text": block.text, "where": str(block)}


def _step(command: Command, *, varies: bool = False) -> dict[str, Any]:
    program = command.stays
    text = command.expanded
    prints = command.prints or ""
    return {
        "do": "stay" if program else "run",
        # The two sidecars have one port by default.
        "program": program.replace("https-proxy", "socks5-proxy"),
        "text": text.rstrip("& \n") if program else text,
        "where": command.where,
        "prints": None if program or varies else command.prints,
        # Whoever shows an error means it.
        "may_fail": bool(re.search(r"^(isthmus|curl): ", prints, re.MULTILINE)),
    }


def make_pki(directory: Path) -> Path:
    """Certificates for every machine, with the names and addresses of the documents."""
    names = (*NAMES.split(), "localhost", "127.0.0.1", "konnectivity-server-local", "10.0.0.5")
    given = [word for name in names for word in ("--server-name", name)]
    argv = [sys.executable, "-m", "isthmus.cli.main", "pki", "init", str(directory), *given]
    subprocess.run(argv, stdout=subprocess.DEVNULL, timeout=60, check=True)
    return directory


def run(page: Page, scratch: Path, pki: Path) -> list[Failure]:
    """Run the commands of a page on its machine; what failed, at most one."""
    for name in ("home", "etc", "bin", "site"):
        (scratch / name).mkdir()
    _programs(scratch / "bin")
    (scratch / "kubeconfig").write_text(KUBECONFIG)
    steps = steps_of(page)
    given = {
        "home": str(scratch / "home"),
        "steps": steps,
        "hosts": [
            "127.0.0.1 localhost",
            "::1 localhost",
            f"127.0.0.1 {NAMES}",
            "127.0.0.2 konnectivity-server-local",
        ],
        "addresses": ["10.0.0.5/32", "10.0.0.11/32", "203.0.113.10/32"],
        "directories": DIRECTORIES,
        "environment": {
            "REPOSITORY": str(ROOT),
            "A_KUBECONFIG": str(scratch / "kubeconfig"),
            "SITE": str(scratch / "site"),
            "PYTHONPATH": f"{scratch / 'site'}{os.pathsep}{SOURCE}",
            "POD_IP": "127.0.0.1",
            "MADE_PKI": str(pki),
            # A terminal of this size, for what prints tables there and JSON elsewhere.
            **{"COLUMNS": "200", "TERM": "xterm", "NO_COLOR": "1"},
        },
    }
    done = subprocess.run(
        [*namespaces(), sys.executable, str(HERE / "inside.py")],
        input=json.dumps(given), stdout=subprocess.PIPE, text=True, timeout=600, check=False,
        # Nothing else of whoever runs the tests: proxies, authorities and the like are theirs.
        env={"PATH": f"{scratch / 'bin'}{os.pathsep}{os.environ['PATH']}:/usr/sbin",
             "HOME": str(scratch / "home"), "LANG": "C.UTF-8"},
    )  # fmt: skip
    if done.returncode != 0:
        return [Failure(page.name, "(the machine itself)", f"exit code {done.returncode}")]
    return [
        failure
        for step, result in zip(steps, json.loads(done.stdout), strict=False)
        if (failure := judged(step, result)) is not None
    ]


def namespaces() -> list[str]:
    """The command that starts another in namespaces of its own, with or without root."""
    flags = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *flags]


def why_there_is_none() -> str:
    """Why no machine can be made here; empty when one can."""
    try:
        done = subprocess.run(
            [*namespaces(), "true"], capture_output=True, text=True, timeout=20, check=False
        )
    except FileNotFoundError:
        return "there is no unshare, of util-linux"
    return "" if done.returncode == 0 else "namespaces cannot be made here"


def _programs(directory: Path) -> None:
    """This very isthmus, and what stands in for programs that have no place on a machine."""
    lines = {
        "isthmus": f'exec {sys.executable} -m isthmus.cli.main "$@"',
        "pip": f'exec {sys.executable} -m pip "$@"',
        "python3": f'exec {sys.executable} "$@"',
    }
    for name in STAND_INS:
        lines[name] = f'exec {sys.executable} {HERE / "doc_stand_in.py"} {name} "$@"'
    for name, line in lines.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)


def judged(step: dict[str, Any], result: dict[str, Any]) -> Failure | None:
    """Compare what came of a step with what the page says."""
    text = step["text"].strip()
    if result["code"] != step.get("code", 0) and not step.get("may_fail"):
        why = f"exit code {result['code']}: {result['output']}\n{result.get('running', '')}"
        return Failure(step["where"], text, why)
    shown = step.get("prints")
    if shown and not matches(shown, result["output"]):
        return Failure(
            step["where"], text, f"the page shows:\n{shown}\nit printed:\n{result['output']}"
        )
    return None


def matches(shown: str, printed: str) -> bool:
    """Whether something is what a page shows: … stands for anything, white space for any."""
    pattern = r"\s+".join(
        ".*?" if word == "…" else re.escape(word).replace("…", r"\S*") for word in shown.split()
    )
    # Where … is a word of its own it may stand for nothing.
    pattern = pattern.replace(r"\s+.*?\s+", r"\s.*?").replace(r"\s+.*?", r".*?")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed)
    return re.fullmatch(pattern, plain.strip(), re.DOTALL) is not None
