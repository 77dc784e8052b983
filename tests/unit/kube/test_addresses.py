"""Where servers are, by their Leases: written with the Lease, heard of by the others."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakeapi import FakeApi, running, until, with_api

from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.observe.program import LeaseMetrics
from isthmus.kube.leases import LeaseCounter, LeaseKeeper
from isthmus.kube.rules_leases import ADDRESS_ANNOTATION, Lease, servers
from isthmus.programs.agent import PROGRAM
from isthmus.programs.agent.server_links import ServerLinks
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server import PROGRAM as SERVER
from isthmus.programs.server.dials import ServerDials
from isthmus.programs.server.hand_on import Peers
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort, ServerId

LABELS = {"k8s-app": "konnectivity-server"}


def lease(holder: str, address: str, renewed_at: float | None = 100.0) -> Lease:
    return Lease(
        name=f"l-{holder}",
        holder=holder,
        renewed_at=renewed_at,
        duration_s=30,
        agent_address=address,
    )


def test_a_valid_lease_is_a_server_and_only_a_readable_address_is_one() -> None:
    found = servers(
        [
            lease("a", "10.0.0.1:8091"),
            lease("b", "[2001:db8::1]:8091"),
            lease("go", ""),
            lease("expired", "10.0.0.3:8091", renewed_at=50.0),
            lease("mute", "10.0.0.4:8091", renewed_at=None),
            lease("odd", "10.0.0.5"),
            lease("not askable", "10.0.0.6:8091"),
            lease("", "10.0.0.7:8091"),
        ],
        now=110.0,
    )
    a, b = HostPort("10.0.0.1", 8091), HostPort("2001:db8::1", 8091)
    assert found == {"a": a, "b": b, "go": None, "odd": None}


def test_a_server_knows_others_by_flag_lease_and_worker_and_asks_those_with_an_address() -> None:
    at = HostPort("10.0.0.1", 8091)
    peers = Peers(ServerId("me"), {ServerId("named"): at}, siblings=[ServerId("me-1")])
    found = {"me": None, "me-1": None, "named": None, "leased": at, "go": None}
    assert peers.leased({ServerId(name): address for name, address in found.items()})
    assert [(it.server_id, it.known_by, it.address) for it in peers.views()] == [
        ("go", "lease", ""),
        ("leased", "lease", "10.0.0.1:8091"),
        ("me-1", "worker", ""),
        ("named", "flag", "10.0.0.1:8091"),
    ]
    assert set(peers.addresses) == {"leased", "named"}
    # Agents are told only of servers that they can be handed on to.
    assert peers.ids == ("leased", "me", "me-1", "named")


class Following:
    """A counter, and every set of addresses and count that it told, in order."""

    def __init__(self, api: FakeApi) -> None:
        self.told: list[Mapping[ServerId, HostPort | None] | int] = []
        self.counter = LeaseCounter(
            api.open().leases("kube-system"),
            selector="k8s-app=konnectivity-server",
            changed=self.told.append,
            found=self.told.append,
            metrics=LeaseMetrics(),
        )


def keeper(api: FakeApi, server_id: str, address: str = "") -> LeaseKeeper:
    return LeaseKeeper(
        api.open().leases("kube-system"),
        server_id=ServerId(server_id),
        labels=LABELS,
        metrics=LeaseMetrics(),
        agent_address=address,
    )


def test_servers_hear_of_each_other(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        following = Following(api)
        first, second = keeper(api, "a", "10.0.0.1:8091"), keeper(api, "go")
        a: dict[ServerId, HostPort | None] = {ServerId("a"): HostPort("10.0.0.1", 8091)}
        both = {**a, ServerId("go"): None}
        async with running(following.counter.run()):
            await until(lambda: following.told == [1])
            async with running(first.run()):
                await until(lambda: following.told == [1, a])
                # The first Lease does not change the count: somebody was there all along.
                async with running(second.run()):
                    await until(lambda: following.told == [1, a, both, 2])
                await second.stop()
                await until(lambda: following.told == [1, a, both, 2, a, 1])
            await first.stop()
            await until(lambda: following.told == [1, a, both, 2, a, 1, {}])

    with_api(tmp_path, test)


def test_the_annotation_is_there_only_when_there_is_an_address(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        for server_id, address in (("a", "a.example:8091"), ("b", "")):
            held = keeper(api, server_id, address)
            async with running(held.run()):
                await until(lambda h=held: h.held)  # type: ignore[misc]
            wrote = api.leases[held.name]["metadata"].get("annotations")
            assert wrote == ({ADDRESS_ANNOTATION: address} if address else None)

    with_api(tmp_path, test)


def test_an_address_that_moves_is_heard(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        def put(address: str) -> None:
            at = datetime.fromtimestamp(time.time(), UTC).isoformat()
            api.put("x", labels=LABELS, holderIdentity="x", renewTime=at, leaseDurationSeconds=1000)
            api.leases["x"]["metadata"]["annotations"] = {ADDRESS_ANNOTATION: address}

        put("old:1")
        following = Following(api)
        async with running(following.counter.run()):
            await until(lambda: following.told == [{"x": HostPort("old", 1)}, 1] and api.watches)
            moved = dict(api.leases["x"])
            moved["metadata"] = {**moved["metadata"], "annotations": {ADDRESS_ANNOTATION: "new:2"}}
            api._store("MODIFIED", moved)
            await until(lambda: following.told[2:] == [{"x": HostPort("new", 2)}])

    with_api(tmp_path, test)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def make_server(files: pki.PkiFiles, api: FakeApi, directory: Path) -> Lifecycle:
    port = free_port()
    settings = compose(
        ServerSettings,
        uds_name=str(directory / f"{port}.sock"),
        agent_bind_address="127.0.0.1",
        agent_port=port,
        cluster_cert=str(files.server_cert),
        cluster_key=str(files.server_key),
        cluster_ca_cert=str(files.ca_cert),
        health_bind_address="127.0.0.1",
        health_port=0,
        admin_port=0,
        enable_lease_controller=True,
        advertise_agent_address=f"127.0.0.1:{port}",
        kubeconfig=api.kubeconfig(),
    )
    settings.validate()
    return Lifecycle(SERVER, settings)


def make_agent(files: pki.PkiFiles, port: int) -> Lifecycle:
    return Lifecycle(
        PROGRAM,
        compose(
            AgentSettings,
            proxy_server_port=port,
            ca_cert=str(files.ca_cert),
            agent_cert=str(files.agent_cert),
            agent_key=str(files.agent_key),
            health_server_host="127.0.0.1",
            health_server_port=0,
            admin_server_port=0,
            sync_interval_s=0.01,
            sync_interval_cap_s=0.05,
        ),
    )


@contextlib.asynccontextmanager
async def started(program: Lifecycle) -> AsyncIterator[None]:
    await program.start()
    try:
        async with running(program.watch()):
            yield
    finally:
        await program.stop()


def test_an_agent_of_one_server_finds_those_that_have_a_lease(
    tmp_path: Path, files: pki.PkiFiles
) -> None:
    async def test(api: FakeApi) -> None:
        first, second = (make_server(files, api, tmp_path) for _ in range(2))
        agent = make_agent(files, first.ground.settings.agent_port)
        async with started(first), started(agent):
            servers = agent.part(ServerLinks).servers
            assert servers is not None
            links = servers.links
            await until(lambda: set(links) == {first.ground.id})
            async with started(second):
                await until(lambda: set(links) == {first.ground.id, second.ground.id})
                assert (
                    len(first.part(ServerDials).agent_door.handing) == 1
                    and len(second.part(ServerDials).agent_door.agents) == 1
                )
            await until(
                lambda: (
                    set(links) == {first.ground.id}
                    and not len(first.part(ServerDials).agent_door.peers)
                )
            )

    with_api(tmp_path, test)
