"""Namespaces to try nftables in, and ports to try it with."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import netns

from isthmus.dial.rules_service_names import ServiceName
from isthmus.lab.namespaces import remove
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
    Update,
)

T = TypeVar("T")
LIMIT_S = 30.0
_numbers = itertools.count()


class Space:
    """A network namespace with one thread in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, initializer=netns.setns, initargs=(name,))

    def do(self, work: Callable[..., T], *args: Any, **words: Any) -> T:
        """Do something in it; what that raises is raised here."""
        return self._thread.submit(work, *args, **words).result(LIMIT_S)

    def begin(self, work: Callable[..., T], *args: Any) -> Callable[[], T]:
        """Begin something in it, in a thread of its own; the answer is a call that waits."""

        def inside() -> T:
            netns.setns(self.name)
            return work(*args)

        thread = ThreadPoolExecutor(1)
        begun = thread.submit(inside)
        thread.shutdown(wait=False)
        return lambda: begun.result(LIMIT_S)

    def run(self, *argv: str, text: str = "") -> str:
        """Run a program in it that has to succeed."""
        done = self.do(
            subprocess.run, argv, input=text, text=True, capture_output=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a setting of the kernel."""
        self.do(Path(path).write_text, text)

    def close(self) -> None:
        self._thread.shutdown()


@contextmanager
def spaces(*kinds: str) -> Iterator[list[Space]]:
    """Make namespaces, and remove them whatever happens."""
    made: list[Space] = []
    try:
        for kind in kinds:
            name = f"isthmus-nft-{os.getpid()}-{next(_numbers)}-{kind}"
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=LIMIT_S)
            made.append(Space(name))
            made[-1].run("ip", "link", "set", "lo", "up")
        yield made
    finally:
        for each in made:
            each.close()
            remove(each.name)


def listing(space: Space, *words: str) -> list[Any]:
    """Some of the rules of a namespace, without what differs from run to run, in one order."""
    printed = space.run("nft", "--json", "list", *(words or ("ruleset",)))
    found = [each for each in json.loads(printed)["nftables"] if "metainfo" not in each]
    rules = [each for each in found if "rule" in each]
    others = sorted(json.dumps(_bare(each)) for each in found if "rule" not in each)
    by_chain: dict[tuple[str, str, str], list[Any]] = {}
    for each in rules:
        rule = each["rule"]
        by_chain.setdefault((rule["family"], rule["table"], rule["chain"]), []).append(_bare(each))
    return [others, sorted(by_chain.items())]


def _bare(value: Any) -> Any:
    """A value without handles and the time that elements have left, lists of elements sorted."""
    if isinstance(value, dict):
        bare = {key: _bare(each) for key, each in value.items() if key not in ("handle", "expires")}
        if "elem" in bare and isinstance(bare["elem"], list):
            bare["elem"].sort(key=json.dumps)
        return bare
    return [_bare(each) for each in value] if isinstance(value, list) else value


def backed(
    name: str,
    cluster_ip: str,
    ends: Sequence[str] = (),
    *,
    protocol: PortProtocol = PortProtocol.TCP,
    target: int = 8080,
    **fields: Any,
) -> BackedPort:
    """Port 80 of a Service; endpoints are on this node if their addresses end with ".1"."""
    port = ServicePort(
        key=PortKey(ServiceName("ns", name), "p80", protocol),
        cluster_ip=cluster_ip,
        port=80,
        **fields,
    )
    found = tuple(Endpoint(ip=ip, port=target, local=ip.endswith(".1")) for ip in ends)
    near = tuple(each for each in found if each.local)
    return BackedPort(
        port=port,
        backends=ChosenEndpoints(
            cluster=found if port.uses_cluster_endpoints else (),
            local=near if port.uses_local_endpoints else (),
            reachable=found if port.uses_cluster_endpoints else near,
            exist=bool(found),
        ),
    )


def update(*ports: BackedPort, family: IpFamily = IpFamily.IPV4) -> Update:
    """What the tracker would say of these."""
    return Update(view=ServiceView(family=family, ports={each.port.key: each for each in ports}))
