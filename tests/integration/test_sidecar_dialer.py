"""The sidecars' dialer through a real server and agent: names, ways, outages, and cancelling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from client_bed import all_doors, run, until
from clients import LIMIT_S, Target, echo_target, free_port, full_target
from sidecar_bed import (
    DNS,
    Bed,
    Dnsmasq,
    Proxy,
    StubDns,
    Zone,
    put_dns,
    server_flags,
    sidecar,
    stub_dns,
)
from stack import Stack

from isthmus.dial.rules_name_order import Outcome, Source, Way
from isthmus.errors import ConfigError, DialFailure
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.sidecar.dialer import SidecarDialer
from isthmus.settings.options import compose
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort

KINDS = ["connect-uds", "connect-tls", "grpc-uds", "grpc-tls"]
GUEST = {"resolve_from_guest_cluster_dns": True}
BOTH = {**GUEST, "resolve_from_management_cluster_dns": True}
CLOUD = {"connect_directly_to_cloud_apis": True}
CLOUD_NAME = "ec2.us-east-1.amazonaws.com"
#: What the answers of a management proxy are to whoever dials.
REFUSALS = {
    403: DialFailure.DENIED,
    407: DialFailure.DENIED,
    418: DialFailure.INTERNAL,
    502: DialFailure.UNREACHABLE,
    503: DialFailure.UNREACHABLE,
    504: DialFailure.TIMED_OUT,
}


@pytest.fixture(scope="module")
def doors(certificates: pki.PkiFiles) -> Iterator[Stack]:
    with all_doors(certificates) as made:
        yield made


@pytest.fixture
def stack(doors: Stack) -> Iterator[Stack]:
    yield doors
    doors.wait_idle()


@pytest.fixture(scope="module")
def echo() -> Iterator[Target]:
    with echo_target() as target:
        yield target


def flags(stack: Stack, kind: str = "connect-uds", **more: Any) -> dict[str, Any]:
    return server_flags(stack, kind) | more


def ways(bed: Bed) -> dict[str, int]:
    return {way.name: count for way, count in bed.dialer.names.counts.ways.items() if count}


def zone(**names: str) -> Zone:
    made = Zone()
    for name, address in names.items():
        made.put(name.replace("_", "."), "A", *address.split())
    return made


@contextlib.asynccontextmanager
async def guest(
    where: dict[str, Any], directory: Path, names: Zone, **how: Any
) -> AsyncIterator[tuple[Bed, StubDns]]:
    """A sidecar whose guest cluster has a DNS of ours."""
    async with stub_dns(names) as stub, sidecar(where, directory, **how) as bed:
        put_dns(bed, stub.at.port)
        yield bed, stub


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_is_reached_by_its_name(
    stack: Stack, echo: Target, tmp_path: Path, kind: str
) -> None:
    async def work() -> None:
        async with sidecar(flags(stack, kind), tmp_path) as bed:
            bed.api.put("web/echo", "127.0.0.1")
            for name in ("echo.web", "echo.web.svc", "Echo.Web.svc.cluster.local."):
                assert await bed.says(name, echo.port) == b"hello"
            assert await bed.says("127.0.0.1", echo.port) == b"hello"
            assert ways(bed) == {"TUNNEL": 4}
            error = await bed.fails("echo.web", free_port())
            assert error.reason is DialFailure.REFUSED

    run(work)


@pytest.mark.parametrize("kind", ["connect-tls", "grpc-uds"])
def test_names_are_resolved_by_a_real_dns_server_through_the_tunnel(
    stack: Stack, echo: Target, tmp_path: Path, kind: str
) -> None:
    many = [f"--host-record=many.example,10.0.0.{n}" for n in range(1, 31)]

    async def work() -> None:
        dnsmasq = Dnsmasq(
            "--host-record=idp.example,127.0.0.1,::1",
            "--cname=login.example,idp.example",
            "--host-record=pods.web.svc.cluster.local,127.0.0.1",
            "--local=/example/",
            "--local-ttl=5",
            *many,
        )
        await dnsmasq.start()
        try:
            async with sidecar(flags(stack, kind, **GUEST), tmp_path) as bed:
                put_dns(bed, dnsmasq.port)
                bed.api.put("web/pods")  # headless
                found = await bed.dialer.resolve("idp.example")
                assert set(found.addresses) == {"127.0.0.1", "::1"}
                assert await bed.says("idp.example", echo.port) == b"hello"
                assert await bed.says("login.example", echo.port) == b"hello"
                assert await bed.says("pods.web", echo.port) == b"hello"
                assert len((await bed.dialer.resolve("many.example")).addresses) == 8
                error = await bed.fails("nowhere.example", echo.port)
                assert error.reason is DialFailure.UNRESOLVED
                assert f"127.0.0.1:{dnsmasq.port}" in error.detail
                # Its upstream is missing: an answer nevertheless.
                other = await bed.dialer.resolve("www.other-zone")
                assert other.steps[-1].outcome is Outcome.ANSWERED_ERROR
        finally:
            await dnsmasq.stop()

    run(work)


def test_all_addresses_of_a_name_are_tried(stack: Stack, echo: Target, tmp_path: Path) -> None:
    async def work() -> None:
        names = zone(three_example="127.0.0.7 127.0.0.8 127.0.0.9")
        names.put("good.example", "A", "127.0.0.7", "127.0.0.1")
        async with guest(flags(stack, **GUEST), tmp_path, names) as (bed, stub):
            assert await bed.says("good.example", echo.port) == b"hello"
            error = await bed.fails("three.example", echo.port)
            assert error.reason is DialFailure.REFUSED
            assert error.detail.startswith("the last of 3 addresses")
            # What was of no use is asked for again.
            before = len(stub.seen)
            await bed.fails("three.example", echo.port)
            assert len(stub.seen) == before + 2

    run(work)


def test_addresses_share_the_time_of_a_dial(stack: Stack, tmp_path: Path) -> None:
    async def work() -> None:
        names = zone(slow_example="127.0.0.1 127.0.0.2")
        with full_target() as hung:
            async with guest(flags(stack, **GUEST), tmp_path, names) as (bed, _):
                error = await bed.fails("slow.example", hung.port, timeout_s=2.0)
                # One hangs and one refuses; both were tried within the time.
                assert "the last of 2 addresses" in error.detail
                assert error.reason in (DialFailure.REFUSED, DialFailure.TIMED_OUT)

    run(work)


def test_a_resolver_that_is_off_leaves_names_to_the_agent(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        async with sidecar(flags(stack, disable_resolver=True), tmp_path) as bed:
            assert await bed.says("localhost", echo.port) == b"hello"
            assert bed.api.asked == []
            error = await bed.fails("nowhere.invalid", echo.port)
            assert error.reason is DialFailure.UNRESOLVED

    run(work)


def test_without_guest_dns_this_pods_is_asked_and_the_tunnel_taken(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        aliases = {"mgmt.example": ["127.0.0.1"]}
        async with sidecar(flags(stack), tmp_path, aliases=aliases) as bed:
            assert await bed.says("mgmt.example", echo.port) == b"hello"
            assert ways(bed) == {"TUNNEL": 1}
            error = await bed.fails("nowhere.invalid", echo.port)
            assert error.reason is DialFailure.UNRESOLVED
            assert error.detail.startswith("management DNS: ")

    run(work)


def test_guest_dns_down_management_dns_and_back(
    stack: Stack, echo: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="isthmus")
    aliases = {"idp.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    names = zone(idp_example="127.0.0.1", guest_example="127.0.0.1")

    async def work() -> None:
        where = flags(stack, **BOTH)
        async with guest(where, tmp_path, names, aliases=aliases, retry_s=0.1) as (bed, stub):
            assert await bed.says("idp.example", echo.port) == b"hello"
            assert ways(bed) == {"TUNNEL": 1}
            # An answer that there is no such name is an answer: the tunnel works.
            assert await bed.says("other.example", echo.port) == b"hello"
            assert ways(bed) == {"TUNNEL": 1, "DIRECT": 1}
            assert bed.health.works

            await stub.stop()
            bed.dialer._dns.forget("idp.example")
            assert await bed.says("idp.example", echo.port) == b"hello"
            assert not bed.health.works
            assert ways(bed) == {"TUNNEL": 1, "DIRECT": 2}
            # Names that only the guest knows are not found while it is away.
            error = await bed.fails("guest.example", echo.port)
            assert error.reason is DialFailure.UNRESOLVED
            # An address goes directly, unless it is a Service's.
            await bed.fails("127.0.0.3", echo.port)
            assert ways(bed) == {"TUNNEL": 1, "DIRECT": 3}
            bed.api.put("web/echo", "127.0.0.2")
            await until(
                lambda: bed.dialer.services and bed.dialer.services.has_address("127.0.0.2")
            )
            await bed.fails("127.0.0.2", echo.port)
            await bed.fails("echo.web", echo.port)
            assert ways(bed) == {"TUNNEL": 3, "DIRECT": 3}

            await stub.start(stub.at.port)
            async with asyncio.timeout(LIMIT_S):
                while not bed.health.works:
                    await bed.says("idp.example", echo.port)
            await bed.says("guest.example", echo.port)

    run(work)
    said = [record.getMessage() for record in caplog.records]
    assert sum("does not work" in each for each in said) == 1
    assert sum("works again" in each for each in said) == 1


def test_while_the_tunnel_is_down_port_53_is_never_dialed_directly(
    stack: Stack, tmp_path: Path
) -> None:
    async def work() -> None:
        aliases = {"idp.example": ["127.0.0.1"]}
        async with sidecar(flags(stack, **BOTH), tmp_path, aliases=aliases) as bed:
            found = await bed.dialer.resolve("idp.example")  # there is no DNS Service at all
            assert (found.way, bed.health.works) == (Way.DIRECT, False)
            assert bed.dialer.way(found, 53) is Way.TUNNEL
            assert bed.dialer.way(found, 443) is Way.DIRECT
            address = await bed.dialer.resolve("192.0.2.1")
            assert bed.dialer.way(address, 53) is Way.TUNNEL
            assert bed.dialer.way(address, 443) is Way.DIRECT
            error = await bed.fails("idp.example", 53)  # by its name: the agent resolves it
            assert error.reason is DialFailure.UNRESOLVED

    run(work)


def test_without_a_server_names_go_directly_and_services_fail(
    certificates: pki.PkiFiles, echo: Target, tmp_path: Path
) -> None:
    aliases = {"idp.example": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
    files = certificates
    where = {
        "konnectivity_hostname": "localhost",
        "konnectivity_port": free_port(),
        "ca_cert_path": str(files.ca_cert),
        "tls_cert_path": str(files.client_cert),
        "tls_key_path": str(files.client_key),
        **BOTH,
    }

    async def work() -> None:
        async with sidecar(where, tmp_path, aliases=aliases) as bed:
            put_dns(bed, 53)
            bed.api.put("web/echo", "127.0.0.1")
            assert await bed.says("idp.example", echo.port) == b"hello"
            assert ways(bed) == {"DIRECT": 1}
            error = await bed.fails("echo.web", echo.port)
            assert error.reason is DialFailure.UNREACHABLE
            at = f"connectivity server localhost:{where['konnectivity_port']}"
            assert error.detail.startswith(f"{at} cannot be reached: connection refused")

    run(work)


def test_an_unknown_name_goes_to_the_agent_when_nobody_here_knows_it(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        async with guest(flags(stack, **BOTH), tmp_path, Zone()) as (bed, _):
            found = await bed.dialer.resolve("nowhere.invalid")
            assert [step.source for step in found.steps] == [
                Source.SERVICE,
                Source.GUEST_DNS,
                Source.MANAGEMENT_DNS,
                Source.AGENT,
            ]
            assert (found.host, found.addresses) == ("nowhere.invalid", ())
            error = await bed.fails("nowhere.invalid", echo.port)
            assert error.reason is DialFailure.UNRESOLVED

    run(work)


def test_kube_dns_is_taken_where_openshift_has_none(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        names = zone(a_example="127.0.0.1")
        async with stub_dns(names) as stub, sidecar(flags(stack, **GUEST), tmp_path) as bed:
            error = await bed.fails("a.example", echo.port)
            assert f"no Service {DNS} or kube-system/kube-dns" in error.detail
            put_dns(bed, stub.at.port, "kube-system/kube-dns")
            await until(lambda: bed.dialer.services and len(bed.dialer.services))
            assert await bed.says("a.example", echo.port) == b"hello"
        other = flags(stack, **GUEST, guest_dns_service="my/dns")
        async with stub_dns(names) as stub, sidecar(other, tmp_path) as bed:
            put_dns(bed, stub.at.port, "kube-system/kube-dns")
            error = await bed.fails("a.example", echo.port)
            assert "no Service my/dns with an address" in error.detail

    run(work)


def test_an_external_name_is_dialed_as_that_name(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        names = zone(far_example="127.0.0.1")
        async with guest(flags(stack, **GUEST), tmp_path, names) as (bed, _):
            bed.api.put_external("web/far", "far.example")
            assert await bed.says("far.web", echo.port) == b"hello"

    run(work)


def test_services_that_cannot_be_listed_are_read_and_names_of_the_world_are_none(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    def forbidden(request: web.Request) -> web.StreamResponse | None:
        return web.json_response({}, status=403) if request.path == "/api/v1/services" else None

    names = zone(idp_example="127.0.0.1", pods_web_svc_cluster_local="127.0.0.1")

    async def work() -> None:
        async with guest(flags(stack, **GUEST), tmp_path, names) as (bed, stub):
            bed.api.fault = forbidden  # before the first turn of the loop, and so the first listing
            bed.api.put("web/pods")  # headless
            bed.api.put_external("web/alias", "idp.example")
            for name in ("idp.example", "alias.web", "pods.web"):
                assert await bed.says(name, echo.port) == b"hello"
            # Not idp.example.svc.cluster.local, of which the API said that there is none.
            assert {name for name, _ in stub.seen} == {"idp.example", "pods.web.svc.cluster.local"}

    run(work)


def test_https_proxys_names_are_resolved_before_each_dial(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        names = zone(idp_example="127.0.0.1")
        how = {"settings": HttpsProxySettings, "aliases": {"mgmt.example": ["127.0.0.1"]}}
        async with guest(flags(stack), tmp_path, names, **how) as (bed, _):
            assert await bed.says("idp.example", echo.port) == b"hello"
            # Known here, and to the agent, but https-proxy asks neither.
            for name in ("mgmt.example", "localhost"):
                error = await bed.fails(name, echo.port)
                assert error.reason is DialFailure.UNRESOLVED
                assert error.detail.startswith("guest DNS: ")

    run(work)


def test_certificates_are_read_again_when_they_change(
    certificates: pki.PkiFiles, stack: Stack, echo: Target, tmp_path: Path
) -> None:
    strangers = pki.init(tmp_path / "strangers")
    where = flags(stack, "connect-tls")
    trusted = tmp_path / "ca.crt"
    shutil.copy(certificates.ca_cert, trusted)
    where["ca_cert_path"] = str(trusted)

    async def work() -> None:
        async with sidecar(where, tmp_path) as bed:
            context = bed.dialer.context
            assert context is not None
            old = context.current
            assert await bed.says("127.0.0.1", echo.port) == b"hello"
            shutil.copy(strangers.ca_cert, trusted)
            await until(lambda: context.current is not old)
            error = await bed.fails("127.0.0.1", echo.port)
            assert error.reason is DialFailure.INTERNAL
            assert "its certificate" in error.detail

    run(work)


def test_a_certificate_that_cannot_be_used_is_said_before_anything_starts(
    stack: Stack, tmp_path: Path
) -> None:
    where = flags(stack, "grpc-tls", tls_key_path=str(tmp_path / "missing"))

    async def work() -> None:
        with pytest.raises(ConfigError, match=r"--tls-key-path .*missing: no such file"):
            async with sidecar(where, tmp_path):
                pass

    run(work)


# Cloud APIs.


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_a_cloud_api_is_dialed_by_the_proxy_of_the_environment(
    certificates: pki.PkiFiles,
    stack: Stack,
    echo: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    variable: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca_cert))

    async def work() -> None:
        async with Proxy(certificates, scheme).running() as proxy:
            exempt = "NO_PROXY" if variable.isupper() else "no_proxy"
            environment = {variable: proxy.url, exempt: ".azure.com"}
            aliases = {"management.azure.com": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
            async with sidecar(
                flags(stack, **CLOUD), tmp_path, environment=environment, aliases=aliases
            ) as bed:
                assert await bed.says(CLOUD_NAME, echo.port) == b"hello"
                assert proxy.asked == [f"{CLOUD_NAME}:{echo.port}"]
                assert proxy.users == ["me:secret"]
                assert await bed.says("management.azure.com", echo.port) == b"hello"
                assert len(proxy.asked) == 1
                assert ways(bed) == {"PROXIED": 2}
                for status, reason in REFUSALS.items():
                    proxy.answer = f"HTTP/1.1 {status} x\r\n\r\n".encode()
                    error = await bed.fails(CLOUD_NAME, echo.port)
                    assert error.reason is reason
                    said = f"proxy {scheme}://localhost:{proxy.port}: answered HTTP/1.1 {status} x"
                    assert error.detail.startswith(said)
                proxy.silent = True
                error = await bed.fails(CLOUD_NAME, echo.port, timeout_s=0.2)
                assert error.reason is DialFailure.TIMED_OUT
                assert "secret" not in f"{error}"

    run(work)


def test_a_management_proxy_that_is_not_there(stack: Stack, tmp_path: Path) -> None:
    port = free_port()
    environment = {"HTTPS_PROXY": f"http://localhost:{port}"}

    async def work() -> None:
        aliases = {"localhost": ["127.0.0.1"]}
        where = flags(stack, **CLOUD)
        async with sidecar(where, tmp_path, environment=environment, aliases=aliases) as bed:
            error = await bed.fails(CLOUD_NAME, 443)
            assert error.reason is DialFailure.UNREACHABLE
            assert error.detail.startswith(f"proxy http://localhost:{port}: connection refused")

    run(work)


def test_an_https_proxy_has_to_prove_its_name(
    certificates: pki.PkiFiles, stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        async with Proxy(certificates, "https").running() as proxy:
            environment = {"HTTPS_PROXY": proxy.url}
            async with sidecar(
                flags(stack, **CLOUD),
                tmp_path,
                environment=environment,
                aliases={"localhost": ["127.0.0.1"]},
            ) as bed:
                error = await bed.fails(CLOUD_NAME, echo.port)
                assert error.reason is DialFailure.INTERNAL
                assert "certificate" in error.detail
                assert proxy.asked == []

    run(work)


def test_without_the_flag_a_cloud_api_goes_through_the_tunnel(
    stack: Stack, echo: Target, tmp_path: Path
) -> None:
    async def work() -> None:
        aliases = {CLOUD_NAME: ["127.0.0.1"]}
        environment = {"HTTPS_PROXY": "http://proxy.invalid:1"}
        async with sidecar(flags(stack), tmp_path, aliases=aliases, environment=environment) as bed:
            assert await bed.says(CLOUD_NAME, echo.port) == b"hello"
            assert ways(bed) == {"TUNNEL": 1}
        more = flags(stack, **CLOUD, cloud_api_suffix=(".cloud.example",))
        async with sidecar(more, tmp_path, aliases={"api.cloud.example": ["127.0.0.1"]}) as bed:
            assert await bed.says("api.cloud.example", echo.port) == b"hello"
            assert ways(bed) == {"PROXIED": 1}

    run(work)


def test_a_proxy_that_cannot_be_read_is_said_before_anything_starts(
    stack: Stack, tmp_path: Path
) -> None:
    async def work() -> None:
        with pytest.raises(ConfigError, match="HTTPS_PROXY"):
            async with sidecar(
                flags(stack, **CLOUD), tmp_path, environment={"HTTPS_PROXY": "socks5://x"}
            ):
                pass

    run(work)


# Cancelling.


async def stop_at(bed: Bed, host: str, port: int, there: Any) -> None:
    """Dial, cancel once it is where it should be, and see that nothing is told and left."""
    told: list[object] = []
    dial = bed.dialer.dial(
        HostPort(host, port), timeout_s=LIMIT_S, reached=told.append,
        failed=lambda *why: told.append(why),
    )  # fmt: skip
    await until(there)
    dial.cancel()
    dial.cancel()
    assert not bed.dialer._dials
    await asyncio.sleep(0.02)
    assert told == []


def test_a_dial_can_be_cancelled_at_every_stage(
    certificates: pki.PkiFiles, stack: Stack, tmp_path: Path
) -> None:
    async def work() -> None:
        names = zone(slow_example="127.0.0.1")
        release = asyncio.Event()

        async def never(query: object) -> list[bytes | None]:
            await release.wait()
            return []

        proxy = Proxy(certificates, "http")
        proxy.silent = True
        async with proxy.running():
            where = flags(stack, **BOTH, **CLOUD)
            environment = {"HTTPS_PROXY": proxy.url}
            aliases = {"localhost": ["127.0.0.1"]}
            async with guest(where, tmp_path, names, environment=environment, aliases=aliases) as (
                bed,
                stub,
            ):
                reply, stub.reply = stub.reply, never  # type: ignore[assignment]
                # While the Services are listed: nothing is known yet.
                await stop_at(bed, "a.b", 80, lambda: True)
                # While the guest's DNS is asked.
                await stop_at(bed, "slow.example", 80, lambda: stub.seen)
                release.set()
                stub.reply = reply
                assert bed.health.works
                with full_target() as hung:
                    # While the agent connects.
                    await stop_at(
                        bed, "slow.example", hung.port, lambda: ways(bed).get("TUNNEL") == 1
                    )
                    await until(lambda: not len(stack.server.dialer.pending))
                # While the proxy thinks about it.
                await stop_at(bed, CLOUD_NAME, 443, lambda: proxy.asked)
                # While the resolver of this host is asked.
                await stop_at(bed, "nowhere.invalid", 80, lambda: True)

    run(work)


def test_closing_ends_dials_and_lookups_under_way(stack: Stack, tmp_path: Path) -> None:
    async def work() -> None:
        async def never(query: object) -> list[bytes | None]:
            return []

        told: list[object] = []
        async with guest(flags(stack, **GUEST), tmp_path, Zone()) as (bed, stub):
            stub.reply = never  # type: ignore[assignment]
            bed.dialer.dial(
                HostPort("slow.example", 80), timeout_s=LIMIT_S, reached=told.append,
                failed=lambda *why: told.append(why),
            )  # fmt: skip
            await until(lambda: stub.seen)
            await bed.dialer.close()
        assert told == []

    run(work)


def test_a_name_has_no_more_time_than_the_dial(stack: Stack, tmp_path: Path) -> None:
    async def work() -> None:
        async def never(query: object) -> list[bytes | None]:
            return []

        async with guest(flags(stack, **GUEST), tmp_path, Zone()) as (bed, stub):
            stub.reply = never  # type: ignore[assignment]
            error = await bed.fails("slow.example", 80, timeout_s=0.1)
            assert error.reason is DialFailure.TIMED_OUT
            assert error.detail == "the name was not resolved in time"

    run(work)


# isthmus resolve.


def test_resolve_shows_each_step(stack: Stack, tmp_path: Path) -> None:
    names = zone(idp_example="192.0.2.1")

    async def ask(*arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "isthmus.cli.main", "resolve", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def work() -> None:
        async with guest(flags(stack, **GUEST), tmp_path, names) as (bed, _):
            bed.api.put("web/echo", "10.0.0.7")
            where = [
                f"--konnectivity-uds={flags(stack)['konnectivity_uds']}",
                f"--kubeconfig={bed.api.kubeconfig()}",
                "--resolve-from-guest-cluster-dns",
            ]
            code, out, err = await ask("echo.web", "-o", "json", *where)
            assert (code, err) == (0, "")
            assert json.loads(out) == {
                "name": "echo.web",
                "steps": [
                    {
                        "source": "Service",
                        "outcome": "found",
                        "detail": "Service web/echo",
                        "addresses": ["10.0.0.7"],
                    }
                ],
                "way": "through the tunnel",
                "dialed": ["10.0.0.7"],
            }
            code, out, err = await ask("idp.example", *where)
            assert (code, err) == (0, "")
            rows = [line.split() for line in out.splitlines()]
            assert rows[0] == ["asked", "outcome", "addresses", "detail"]
            assert rows[1][:4] == ["Service", "no", "such", "name"]
            assert rows[2][:4] == ["guest", "DNS", "found", "192.0.2.1"]
            assert out.splitlines()[-1] == "dialed through the tunnel: 192.0.2.1"
            code, out, err = await ask("nowhere.example.com", "-o", "json", *where)
            assert code == 1
            assert json.loads(out)["failure"] == "name not resolved"
            code, out, err = await ask("not..aname", *where)
            assert (code, out) == (2, "")
            assert err.startswith("isthmus: NAME 'not..aname': ")

    run(work)


def test_a_dialer_that_resolves_needs_an_api(stack: Stack) -> None:
    async def work() -> None:
        from isthmus.net.poller import Poller
        from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings

        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        try:
            with pytest.raises(ConfigError, match="Kubernetes API"):
                SidecarDialer(
                    loop,
                    poller,
                    compose(Socks5ProxySettings, **flags(stack)),
                    kube=None,
                    environment={},
                )
        finally:
            poller.shut_down()

    run(work)
