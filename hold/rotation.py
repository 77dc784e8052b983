"""G: certificates and authorities replaced every few seconds under traffic: nothing drops.

An authority is replaced as in practice: first every program trusts both, then certificates of the
new one are used, then the old one is removed. In between, all certificates are reissued.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from hold.clients import FRONTENDS, LINKS, run, service, until
from hold.ground import NAMES, Ground
from hold.outcome import Outcome
from hold.programs import Agent, Server
from hold.traffic import Steady
from isthmus.tools.pki import making as pki

LETTER, TITLE = "G", "certificates and authorities replaced every few seconds, under traffic"
LEAVES = ("server", "agent", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario; a step is longer than the programs' interval for checking files."""

    seconds: float = 60.0
    step_s: float = 2.5
    tunnels: int = 40
    pause_s: float = 0.2


FULL = Numbers()
QUICK = Numbers(seconds=20.0, tunnels=20)


class Files:
    """The directory of certificates, and how its files are replaced."""

    def __init__(self, directory: Path) -> None:
        self.live = directory
        self._fresh = directory.with_name(f"{directory.name}-fresh")
        self.leaves = self.authorities = 0

    def _place(self, name: str, content: bytes) -> None:
        """Replace a file atomically, like a mounted Secret."""
        path = self.live / name
        temporary = path.with_suffix(".new")
        temporary.write_bytes(content)
        temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)

    def new_leaves(self) -> None:
        """Reissue every certificate, by the present authority."""
        fresh = self._fresh
        fresh.mkdir(exist_ok=True)
        for name in ("ca.crt", "ca.key"):
            shutil.copy2(self.live / name, fresh / name)
        # A bundle of two: the first one signs.
        pki.renew(fresh, server_names=NAMES, days=2, force=True)
        self._show()

    def trust_both(self) -> None:
        """Create a new authority, which is trusted in addition to the old one."""
        shutil.rmtree(self._fresh, ignore_errors=True)
        pki.init(self._fresh, server_names=NAMES, days=2, one_ca=True)
        new = (self._fresh / "ca.crt").read_bytes()
        self._place("ca.crt", new + (self.live / "ca.crt").read_bytes())

    def show_new(self) -> None:
        """Use certificates of the new authority."""
        self._show()
        self._place("ca.key", (self._fresh / "ca.key").read_bytes())

    def trust_new(self) -> None:
        """Stop trusting the old authority."""
        self._place("ca.crt", (self._fresh / "ca.crt").read_bytes())
        self.authorities += 1

    def _show(self) -> None:
        for name in LEAVES:
            for kind in ("key", "crt"):
                self._place(f"{name}.{kind}", (self._fresh / f"{name}.{kind}").read_bytes())
        self.leaves += len(LEAVES)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Both links and both frontends at once, by TLS; all use the same files."""
    outcome = Outcome(LETTER, TITLE)
    servers = [ground.server(f"s-{link}") for link in LINKS]
    agents = [
        ground.agent(f"a-{link}", server, link=link)
        for link, server in zip(LINKS, servers, strict=True)
    ]
    run(rotate(outcome, ground, numbers, servers, agents))
    return outcome


async def rotate(
    outcome: Outcome,
    ground: Ground,
    numbers: Numbers,
    servers: list[Server],
    agents: list[Agent],
) -> None:
    """Traffic while files change; then a new agent with the last certificates."""
    for server, agent in zip(servers, agents, strict=True):
        await until(lambda s=server, a=agent: s.peers() == [a.name], "the link")  # type: ignore[misc]
    links = await asyncio.to_thread(link_ids, servers)
    doors = {f"{s.name}-{f}": s.door(f, "tls") for s in servers for f in FRONTENDS}
    files = Files(ground.files.directory)
    async with service(doors) as clients:
        dialers = [clients.dialer(name) for name in doors]
        steady = Steady(
            dialers, ground.target.address(), pause_s=numbers.pause_s, dial_pause_s=0.25
        )
        await steady.open(numbers.tunnels)
        sample = steady.sample
        over = time.monotonic() + numbers.seconds
        while time.monotonic() < over:
            ground.say(f"G: {files.authorities} authorities replaced")
            for step in (files.new_leaves, files.trust_both, files.show_new, files.trust_new):
                await asyncio.to_thread(step)
                await asyncio.sleep(numbers.step_s)
        stuck = await steady.answered()
        await steady.close()
    outcome.tell("authorities replaced", files.authorities)
    outcome.tell("certificates replaced", files.leaves)
    outcome.tell("requests on open tunnels", len(sample.answers))
    outcome.tell("new dials", len(sample.dials))
    outcome.count("tunnels and dials that failed", len(steady.lost), 0)
    outcome.count("tunnels and dials that stood still", len(stuck), 0)
    same = await asyncio.to_thread(link_ids, servers)
    outcome.count("links that were dropped", sum(link not in same for link in links), 0)
    outcome.notes += steady.lost[:3]
    for server, link in zip(servers, LINKS, strict=True):
        newcomer = ground.agent(f"late-{link}", server, link=link)
        await until(lambda s=server, a=newcomer: s.has(a.name), "a newcomer links")  # type: ignore[misc]
    outcome.count("agents that came afterwards and were linked", len(servers), len(LINKS))


def link_ids(servers: list[Server]) -> list[tuple[str, int]]:
    """The links of the servers; a link that was re-established has another number."""
    return [(server.name, link["id"]) for server in servers for link in server.snapshot()["links"]]
