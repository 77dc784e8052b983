"""Names by DNS: a real server that answers, is silent, truncates, lies, or sends nonsense."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from name_server import NameServer

from isthmus.errors import DialFailure
from isthmus.net import dns_client, name_service
from isthmus.net.resolver import Resolver
from isthmus.values import HostPort

LIMIT_S = 20.0


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer() as made:
        yield made


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.002)
    assert holds(), what


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(3 * LIMIT_S):
            await work()

    uvloop.run(limited())


def resolver(server: NameServer, directory: Path, **files: str) -> Resolver:
    return Resolver(asyncio.get_running_loop(), paths=server.paths(directory, **files))


async def find(names: Resolver, host: str) -> set[str]:
    return {str(at[0]) for _, at in await names.addresses(HostPort(host, 80))}


def test_both_families_are_asked_for_and_found(server: NameServer, tmp_path: Path) -> None:
    server.put("both.example", "192.0.2.1", "2001:db8::1", "192.0.2.2")

    async def work() -> None:
        names = resolver(server, tmp_path)
        assert await find(names, "both.example") == {"192.0.2.1", "192.0.2.2", "2001:db8::1"}
        assert sorted(server.asked("both.example")) == [("A", "udp"), ("AAAA", "udp")]
        assert await find(names, "BOTH.example.") == await find(names, "both.example")

    run(work)


@pytest.mark.parametrize("silent", ["A", "AAAA"])
def test_one_family_without_an_answer_does_not_fail_the_other(
    server: NameServer, tmp_path: Path, silent: str
) -> None:
    server.put("half.example", "192.0.2.1", "2001:db8::1")
    server.silent = {("half.example", silent)}

    async def work() -> None:
        found = await find(resolver(server, tmp_path), "half.example")
        assert found == ({"2001:db8::1"} if silent == "A" else {"192.0.2.1"})

    run(work)


def test_one_family_with_an_error_does_not_fail_the_other(
    server: NameServer, tmp_path: Path
) -> None:
    server.put("one.example", "192.0.2.1")  # of AAAA: no such record

    async def work() -> None:
        assert await find(resolver(server, tmp_path), "one.example") == {"192.0.2.1"}

    run(work)


def test_what_does_not_fit_comes_by_tcp(server: NameServer, tmp_path: Path) -> None:
    many = [f"192.0.2.{n}" for n in range(1, 61)]
    server.put("many.example", *many)
    server.truncated = {"many.example"}

    async def work() -> None:
        assert await find(resolver(server, tmp_path), "many.example") == set(many)
        assert ("A", "tcp") in server.asked("many.example")

    run(work)


def test_a_family_that_tcp_does_not_bring_is_not_waited_for(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("half.example", "192.0.2.1", "2001:db8::1")
    server.truncated_kinds = {("half.example", "AAAA")}
    server.silent_tcp = {"half.example"}
    monkeypatch.setattr(dns_client, "OTHER_FAMILY_S", 0.01)

    async def work() -> None:
        # Again where the machine stood still, and the time was over before TCP was tried.
        async with asyncio.timeout(LIMIT_S / 2):
            while ("AAAA", "tcp") not in server.asked("half.example"):
                names = resolver(server, tmp_path, resolv="options timeout:30")
                assert await find(names, "half.example") == {"192.0.2.1"}

    run(work)


def test_a_server_that_floods_with_other_answers_is_named(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("noisy.example", "192.0.2.1")
    server.noisy = {"noisy.example"}
    monkeypatch.setattr(dns_client, "_MOST_JUNK", 3)

    async def work() -> None:
        with pytest.raises(OSError, match=r"DNS server 127\.0\.0\.1: 3 unrelated messages"):
            await find(resolver(server, tmp_path), "noisy.example")

    run(work)


def test_use_vc_asks_by_tcp_alone(server: NameServer, tmp_path: Path) -> None:
    server.put("tcp.example", "192.0.2.1")

    async def work() -> None:
        names = resolver(server, tmp_path, resolv="options use-vc")
        assert await find(names, "tcp.example") == {"192.0.2.1"}
        assert {by for _, by in server.asked("tcp.example")} == {"tcp"}

    run(work)


def test_wrong_ids_other_answers_and_garbage_are_passed_over(
    server: NameServer, tmp_path: Path
) -> None:
    server.put("noisy.example", "192.0.2.1", "2001:db8::1")
    server.noisy = {"noisy.example"}

    async def work() -> None:
        found = await find(resolver(server, tmp_path), "noisy.example")
        assert found == {"192.0.2.1", "2001:db8::1"}

    run(work)


def test_cnames_are_followed_also_where_the_server_leaves_them_open(
    server: NameServer, tmp_path: Path
) -> None:
    server.put("a.example", cname="b.example")
    server.put("b.example", cname="c.example")
    server.put("c.example", "192.0.2.1")
    server.put("loop.example", cname="pool.example")
    server.put("pool.example", cname="loop.example")

    async def work() -> None:
        names = resolver(server, tmp_path)
        assert await find(names, "a.example") == {"192.0.2.1"}
        with pytest.raises(OSError, match="CNAMEs"):
            await find(names, "loop.example")

    run(work)


def test_the_search_list_and_ndots(server: NameServer, tmp_path: Path) -> None:
    server.put("api.prod.svc.example", "192.0.2.1")
    server.put("api", "192.0.2.66")
    server.put("a.b", "192.0.2.2")

    async def work() -> None:
        conf = "search no.example prod.svc.example\noptions ndots:2"
        names = resolver(server, tmp_path, resolv=conf)
        assert await find(names, "api") == {"192.0.2.1"}
        assert server.asked("api.no.example") and not server.asked("api")
        assert await find(names, "api.") == {"192.0.2.66"}  # complete: no search
        assert await find(names, "a.b") == {"192.0.2.2"}  # at last as it is
        assert server.asked("a.b.prod.svc.example")
        with pytest.raises(OSError, match="no such host"):
            await find(names, "nobody")

    run(work)


def test_an_error_is_one_and_not_a_missing_name(server: NameServer, tmp_path: Path) -> None:
    server.errors["bad.example"] = "SERVFAIL"

    async def work() -> None:
        with pytest.raises(OSError, match="SERVFAIL"):
            await find(resolver(server, tmp_path), "bad.example")

    run(work)


def test_the_next_server_is_asked_when_one_is_not_there(server: NameServer, tmp_path: Path) -> None:
    server.put("here.example", "192.0.2.1")

    async def work() -> None:
        paths = server.paths(tmp_path)
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\nnameserver 127.0.0.1\n")
        names = Resolver(asyncio.get_running_loop(), paths=paths)
        assert await find(names, "here.example") == {"192.0.2.1"}

    run(work)


def test_rotate_begins_with_another_each_time(tmp_path: Path) -> None:
    with NameServer() as first:
        first.put("x.example", "192.0.2.1")

        async def work() -> None:
            paths = first.paths(tmp_path)
            # The same server twice: nobody listens at the second address of the list.
            conf = "nameserver 127.0.0.1\nnameserver 127.0.0.77\noptions rotate timeout:1\n"
            (tmp_path / "resolv.conf").write_text(conf)
            names = Resolver(asyncio.get_running_loop(), paths=paths)
            for _ in range(4):
                assert await find(names, "x.example") == {"192.0.2.1"}

        run(work)


def test_edns_is_asked_for_and_done_without_where_it_is_refused(
    server: NameServer, tmp_path: Path
) -> None:
    server.put("e.example", "192.0.2.1")

    async def work() -> None:
        names = resolver(server, tmp_path, resolv="options edns0")
        assert await find(names, "e.example") == {"192.0.2.1"}
        assert set(server.edns) == {True}
        server.refuses_edns = True
        assert await find(names, "e.example") == {"192.0.2.1"}
        assert False in server.edns

    run(work)


def test_the_files_are_followed(server: NameServer, tmp_path: Path) -> None:
    server.put("app.one.example", "192.0.2.1")
    server.put("app.two.example", "192.0.2.2")

    async def work() -> None:
        names = resolver(server, tmp_path, resolv="search one.example")
        assert await find(names, "app") == {"192.0.2.1"}
        server.paths(tmp_path, resolv="search two.example # and more")
        assert await find(names, "app") == {"192.0.2.2"}
        server.paths(tmp_path, hosts="192.0.2.3 app\n2001:db8::3 App\n")
        assert await find(names, "app") == {"192.0.2.3", "2001:db8::3"}
        (tmp_path / "hosts").unlink()
        with pytest.raises(OSError):
            await find(names, "app")

    run(work)


def test_a_file_from_the_future_is_not_read_for_every_lookup(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def work() -> None:
        names = resolver(server, tmp_path, hosts="192.0.2.1 app")
        os.utime(tmp_path / "hosts", (4_000_000_000, 4_000_000_000))
        await find(names, "app")
        text = name_service._Followed._text
        monkeypatch.setattr(
            name_service._Followed, "_text", lambda it: (read.append(it._path), text(it))[1]
        )
        await find(names, "app")
        assert str(tmp_path / "hosts") not in read

    run(work)


def test_a_fifo_in_place_of_a_file_blocks_nobody(server: NameServer, tmp_path: Path) -> None:
    server.put("app.example", "192.0.2.1")

    async def work() -> None:
        names = resolver(server, tmp_path)
        assert await find(names, "app.example") == {"192.0.2.1"}
        (tmp_path / "hosts").unlink()
        os.mkfifo(tmp_path / "hosts")
        assert await find(names, "app.example") == {"192.0.2.1"}

    run(work)


def test_cancelled_a_lookup_is_gone_and_its_socket_with_it(
    server: NameServer, tmp_path: Path
) -> None:
    async def work() -> None:
        names = resolver(server, tmp_path, resolv="options timeout:1 attempts:5")
        with pytest.raises(OSError):
            await find(names, "import.what.it.needs.example")
        before = descriptors()
        tasks = [asyncio.create_task(find(names, f"hang{n}.example")) for n in range(100)]
        await until(lambda: len(server.seen) >= 2 + 200, "all were asked for")
        assert names.pending == 100 and descriptors() >= before + 100
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert names.pending == 0
        await until(lambda: descriptors() <= before, "their sockets are closed")
        # Nothing is asked again: whoever asks now is the next to be seen.
        asked = len(server.seen)
        server.put("next.example", "192.0.2.1")
        assert await find(names, "next.example") == {"192.0.2.1"}
        assert len(server.seen) == asked + 2

    run(work)


def test_no_thread_is_made_for_a_lookup(server: NameServer, tmp_path: Path) -> None:
    async def work() -> None:
        names = resolver(server, tmp_path)
        before = set(os.listdir("/proc/self/task"))
        tasks = [asyncio.create_task(find(names, f"hang{n}.example")) for n in range(20)]
        await until(lambda: len(server.seen) >= 40, "all were asked for")
        assert set(os.listdir("/proc/self/task")) <= before
        names.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(work)


def test_the_same_name_is_asked_for_once(server: NameServer, tmp_path: Path) -> None:
    server.put("held.example", "192.0.2.1")
    server.held = {"held.example"}

    async def work() -> None:
        names = resolver(server, tmp_path)
        first, *others = [asyncio.create_task(find(names, "held.example")) for _ in range(50)]
        await until(lambda: len(server.asked("held.example")) == 2, "it was asked for")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert names.pending == 1  # the others wait for it
        server.let_go("held.example")
        assert await asyncio.gather(*others) == [{"192.0.2.1"}] * 49
        assert len(server.asked("held.example")) == 2

    run(work)


def test_localhost_and_invalid_are_never_asked_for(server: NameServer, tmp_path: Path) -> None:
    async def work() -> None:
        names = resolver(server, tmp_path)
        assert await find(names, "localhost") == {"127.0.0.1", "::1"}
        assert await find(names, "a.b.localhost.") == {"127.0.0.1", "::1"}
        with pytest.raises(OSError, match="no such host"):
            await find(names, "name.invalid")
        assert not server.seen

    run(work)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hosts: files dns", {"192.0.2.1"}),
        ("hosts: dns files", {"192.0.2.2"}),
        ("hosts: dns [!UNAVAIL=return] files", {"192.0.2.2"}),
        ("hosts: files [NOTFOUND=return] dns", {"192.0.2.1"}),
        ("hosts: dns", {"192.0.2.2"}),
        ("hosts: files", {"192.0.2.1"}),
    ],
)
def test_the_order_of_files_and_dns(
    server: NameServer, tmp_path: Path, line: str, found: set[str]
) -> None:
    server.put("both.example", "192.0.2.2")

    async def work() -> None:
        hosts = "192.0.2.1 both.example"
        names = resolver(server, tmp_path, nsswitch=line, hosts=hosts)
        assert await find(names, "both.example") == found

    run(work)


def test_not_found_may_end_the_search(server: NameServer, tmp_path: Path) -> None:
    server.put("dns.example", "192.0.2.2")

    async def work() -> None:
        names = resolver(server, tmp_path, nsswitch="hosts: files [NOTFOUND=return] dns")
        with pytest.raises(OSError, match="no such host"):
            await find(names, "dns.example")
        assert not server.seen

    run(work)


def test_other_sources_are_the_c_librarys(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def system(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host == "none.example":
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.9", port))]

    monkeypatch.setattr(socket, "getaddrinfo", system)
    server.put("dns.example", "192.0.2.2")

    async def work() -> None:
        names = resolver(
            server, tmp_path, nsswitch="hosts: files mdns4_minimal [NOTFOUND=return] dns",
            hosts="192.0.2.1 host.example",
        )  # fmt: skip
        assert await find(names, "host.example") == {"192.0.2.1"}  # before the foreign source
        assert asked == []
        assert await find(names, "dns.example") == {"192.0.2.9"}
        with pytest.raises(OSError, match="not known"):
            await find(names, "none.example")
        assert asked == ["dns.example", "none.example"] and not server.seen
        # Behind DNS a foreign source is asked only for what DNS does not know.
        (tmp_path / "nsswitch.conf").write_text("hosts: files dns myhostname\n")
        assert await find(names, "dns.example") == {"192.0.2.2"}
        assert await find(names, "this-host") == {"192.0.2.9"}

    run(work)


def test_a_silent_server_ends_a_lookup_in_its_own_time(server: NameServer, tmp_path: Path) -> None:
    async def work() -> None:
        names = resolver(server, tmp_path, resolv="options timeout:1 attempts:1")
        with pytest.raises(OSError, match=r"127\.0\.0\.1: no answer within 1 s"):
            await find(names, "hang.example")

    run(work)


def test_one_clients_hanging_names_do_not_stop_anothers(server: NameServer, tmp_path: Path) -> None:
    server.put("honest.example", "192.0.2.1")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        names = Resolver(loop, max_pending=64, paths=server.paths(tmp_path))
        said: list[DialFailure] = []
        for client in ("one", "two", "three"):
            for n in range(200):
                names.lookup(
                    HostPort(f"hang-{client}-{n}.example", 80),
                    lambda _: None,
                    lambda failure, _: said.append(failure),
                    client,
                )
        assert names.pending <= 64
        assert set(said) == {DialFailure.TOO_MANY}
        found = await names.addresses(HostPort("honest.example", 80), "honest")
        assert [it[1][0] for it in found] == ["192.0.2.1"]
        names.close()
        assert names.pending == 0

    run(work)
