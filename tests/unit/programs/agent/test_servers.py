"""An agent's links: one per server whatever the addresses, and nothing that ends the search."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from isthmus.frame.views import link_view
from isthmus.links.agent_side import AgentGreeting, ServerLink
from isthmus.links.dials import IncomingDial
from isthmus.links.link import Link, LinkTerms
from isthmus.links.server_side import AgentHooks, AgentLink, Membership, MuxServerTalk
from isthmus.logs import OncePer
from isthmus.net.connect import Address, literal
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.agent import servers as servers_module
from isthmus.programs.agent.linking import Linking, ServerAddress, ServerAddresses
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.servers import Servers
from isthmus.programs.server.agent_links import agent_view
from isthmus.text.pacing import Backoff
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending
from isthmus.tunnel.stream import Stream
from isthmus.values import AgentId, DialId, DialRequest, HostPort, Identity, ServerId
from isthmus.wire.alpn import ALPN, alpn_asking_for
from isthmus.wire.link_pb2 import Control, DialResult
from isthmus.wire.link_pb2 import Membership as Members


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


class Names(Resolver):
    """Knows the addresses that a test gives, by name; an exception is raised."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.known: dict[str, Sequence[Address] | Exception] = {}

    async def addresses(self, target: HostPort) -> Sequence[Address]:
        found = self.known[target.host]
        if isinstance(found, Exception):
            raise found
        return found


class Bed:
    """Servers that only link, behind ports, and the links of one agent to them."""

    def __init__(self, files: pki.PkiFiles) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.names = Names(self.loop)
        self.ready: list[AgentLink] = []
        self.open: set[Link] = set()
        self.dials: list[IncomingDial] = []
        self.on_ready: Callable[[AgentLink], None] = self.ready.append
        self._listeners: list[Listener] = []
        self._tls = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        self._server_context = server_context(self._tls, alpn=(ALPN,))
        mine = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
        self.context = client_context(mine, alpn=(ALPN,))
        self.servers: Servers | None = None

    def listen(self, ids: Sequence[str], count: int = 1) -> Address:
        """A port behind which each new connection comes to the next of the servers.

        An empty id stands for one that is just starting again, and refuses everybody.
        """
        turns = itertools.cycle(ids)

        def accept(sock: socket.socket) -> None:
            server_id = next(turns)
            if not server_id:
                sock.close()
                return
            said = Membership(server_id=ServerId(server_id), server_count=count)
            self.open.add(
                AgentLink(
                    LinkTerms(loop=self.loop, poller=self.poller),
                    AgentHooks(
                        membership=lambda: said,
                        on_ready=lambda link: self.on_ready(link),
                        on_dial=lambda _: pytest.fail("an agent dials"),
                        on_closed=self.open.discard,
                    ),
                    sock,
                    self._server_context,
                )
            )

        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self._listeners.append(Listener(self.loop, self.poller, sock, accept))
        return literal("127.0.0.1", self._listeners[-1].port)

    def listen_and_hand_on(
        self, plain: Sequence[str], named: Sequence[str], *, count: int, reachable: Sequence[str]
    ) -> tuple[Address, list[str]]:
        """A port where the server that is asked for answers, and each of ``plain`` in turn else.

        Also gives the list of what was asked for, which grows.
        """
        turns, asked = itertools.cycle(plain), list[str]()
        offers = {alpn_asking_for(each): each for each in named}
        context = server_context(self._tls, alpn=(*offers, ALPN))

        def membership(link: AgentLink) -> Membership:
            wanted = offers.get(link.carrier.tls.selected_alpn_protocol() or "", "")
            asked.append(wanted)
            server_id = wanted if wanted in reachable else next(turns)
            return Membership(
                server_id=ServerId(server_id), server_count=count, servers=tuple(named)
            )

        def accept(sock: socket.socket) -> None:
            link = AgentLink(
                LinkTerms(loop=self.loop, poller=self.poller),
                AgentHooks(
                    membership=lambda: membership(link),
                    on_ready=lambda link: self.on_ready(link),
                    on_dial=lambda _: pytest.fail("an agent dials"),
                    on_closed=self.open.discard,
                ),
                sock,
                context,
            )
            self.open.add(link)

        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self._listeners.append(Listener(self.loop, self.poller, sock, accept))
        return literal("127.0.0.1", self._listeners[-1].port), asked

    def start(
        self,
        hosts: Sequence[str],
        context: Callable[[], ssl.SSLContext] | None = None,
        *,
        first_s: float = 0.001,
    ) -> Servers:
        terms = LinkTerms(loop=self.loop, poller=self.poller)
        self.servers = Servers(
            Linking(
                terms,
                context=context or (lambda: self.context),
                greeting=lambda: AgentGreeting(agent_id=AgentId("agent")),
                on_dial=self.dials.append,
                metrics=AgentMetrics(),
                once=OncePer(),
                alpn=(ALPN,),
            ),
            ServerAddresses(
                terms,
                self.names,
                hosts=hosts,
                port=1,
                proxies=ProxyRules.from_environment({}),
                once=OncePer(),
            ),
            backoff=lambda: Backoff(first_s=first_s, cap_s=2 * first_s, chance=lambda: 0.5),
        )
        return self.servers

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        if self.servers is not None:
            self.servers.close()
            await self.servers.wait_closed()
        for listener in self._listeners:
            listener.stop()
        await self.until(lambda: not self.open and not len(self.poller))
        self.poller.shut_down()


def run(files: pki.PkiFiles, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed(files)
        try:
            await test(bed)
        finally:
            await bed.close()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def keeping(servers: Servers) -> AsyncIterator[None]:
    task = asyncio.create_task(servers.keep_connected())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def keepers() -> int:
    return sum(task.get_name().startswith("link:") for task in asyncio.all_tasks())


def ask(link: AgentLink, answers: list[DialResult | None]) -> Stream | None:
    return link.open_dial(
        DialRequest(HostPort("demo.internal", 80), Identity("who")),
        dial_id=DialId(1),
        timeout_s=10,
        told=answers.append,
    )


def test_a_dial_over_a_spare_link_is_not_done_but_given_back(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        answers: list[DialResult | None] = []

        def ready(link: AgentLink) -> None:
            bed.ready.append(link)
            assert ask(link, answers) is not None  # at once: the agent did not hear Welcome yet

        bed.on_ready = ready
        bed.names.known = {"localhost": [bed.listen(["one"]), bed.listen(["one"])]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: bed.dials and answers)
            assert answers == [None]  # a reset before the answer: to be tried elsewhere
            bed.dials[0].accept("192.0.2.1:80")
            await bed.until(lambda: len(answers) == 2)
            assert answers[1] is not None and answers[1].address == "192.0.2.1:80"
            await bed.until(lambda: len(bed.open) == 1)
            assert len(bed.ready) == 2 and len(servers.links) == len(bed.dials) == 1

    run(files, test)


def test_when_the_link_is_lost_the_other_address_is_tried(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one"]), bed.listen(["one"])]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: len(bed.ready) == 2 and len(bed.open) == 1)
            first = servers.links[ServerId("one")]
            bed._listeners[0].stop()  # whichever it was, one address is left
            for link in list(bed.open):
                link.close("lost")
            await bed.until(lambda: servers.links.get(ServerId("one")) not in (None, first))

    run(files, test)


def test_all_servers_behind_one_address_are_found(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "two", "three", "four", "five"]
        bed.names.known = {"localhost": [bed.listen([*ids, "one", "one"], count=5)]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids))
            await bed.until(lambda: len(bed.open) == 5 and keepers() == 1)

    run(files, test)


def test_one_that_refuses_us_does_not_end_the_search_where_another_is_linked(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one", "", "", "two"], count=2)]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"})

    run(files, test)


def test_a_count_is_believed_within_reason(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one"], count=2_000_000)]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: len(bed.ready) > 3)
            assert servers.known_count == 128
            assert keepers() == 2

    run(files, test)


def test_a_count_that_grows_is_heard(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one", "two"])]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one"})
            talk = bed.ready[0].talk
            assert isinstance(talk, MuxServerTalk)
            talk.tell(Control(membership=Members(server_count=2)))
            await bed.until(lambda: set(servers.links) == {"one", "two"})

    run(files, test)


def test_servers_that_others_name_are_asked_for(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "two", "three", "four"]
        address, asked = bed.listen_and_hand_on(["one"], ids, count=4, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids))
            assert sorted(asked) == ["", *sorted(ids[1:])]  # each of them once
            assert servers.missing == []

    run(files, test)


def test_one_that_is_never_reached_keeps_nobody_from_the_others(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        address, asked = bed.listen_and_hand_on(
            ["one"], ["one", "dead", "two"], count=3, reachable=["two"]
        )
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"})
            await bed.until(lambda: asked.count("dead") > 2)
            assert servers.missing == ["dead"]
            assert set(servers.links) == {"one", "two"}  # what was met instead was spare

    run(files, test)


def test_where_some_have_no_name_chance_goes_on(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        # As when one of the servers is konnectivity's: it is counted and not named.
        address, asked = bed.listen_and_hand_on(
            ["one", "one", "go"], ["one", "dead"], count=3, reachable=["one"]
        )
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "go"})
            await bed.until(lambda: asked.count("dead") > 1 and asked.count("") > 1)

    run(files, test)


def test_an_address_that_leads_to_a_linked_server_is_used_to_ask(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        # As many addresses as servers, and all of them lead to one.
        ids = ["one", "two"]
        found = [bed.listen_and_hand_on(["one"], ids, count=2, reachable=ids)[0] for _ in range(2)]
        bed.names.known = {"localhost": found}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids))

    run(files, test)


def test_an_address_that_is_dead_keeps_nobody_from_looking_at_the_others(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            dead = literal(*sock.getsockname())
        # As many addresses as servers, named or not.
        named, _ = bed.listen_and_hand_on(["one"], ["one", "two"], count=2, reachable=["two"])
        for found, ids in ((named, {"one", "two"}), (bed.listen(["x", "y"], count=2), {"x", "y"})):
            bed.names.known = {"localhost": [found, dead]}
            servers = bed.start(["localhost"])
            async with keeping(servers):
                await bed.until(lambda ids=ids, servers=servers: set(servers.links) == ids)
                await bed.until(lambda: keepers() == 2)  # and nobody looks any more
            servers.close()
            await servers.wait_closed()

    run(files, test)


def test_a_dead_address_is_not_probed_as_well(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            dead = literal(*sock.getsockname())
        bed.names.known = {"localhost": [bed.listen(["one"], count=3), dead]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: len(bed.ready) > 3)
            assert keepers() == 3  # one for each, and one that probes where somebody answers

    run(files, test)


def test_who_found_nobody_asks_for_somebody_else(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        # One address names two; the other takes only connections that ask for it.
        first, _ = bed.listen_and_hand_on(["one"], ["one", "two"], count=2, reachable=[])
        asking_only = server_context(bed._tls, alpn=(alpn_asking_for("two"),))
        asked: list[str | None] = []

        def accept(sock: socket.socket) -> None:
            def told() -> Membership:
                asked.append(link.carrier.tls.selected_alpn_protocol())
                known = asked[-1] == alpn_asking_for("two")
                return Membership(server_id=ServerId("two" if known else ""), server_count=2)

            link = AgentLink(
                LinkTerms(loop=bed.loop, poller=bed.poller),
                AgentHooks(
                    membership=told,
                    on_ready=bed.ready.append,
                    on_dial=lambda _: pytest.fail("an agent dials"),
                    on_closed=bed.open.discard,
                ),
                sock,
                asking_only,
            )
            bed.open.add(link)

        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        bed._listeners.append(Listener(bed.loop, bed.poller, sock, accept))
        bed.names.known = {"localhost": [first, literal("127.0.0.1", bed._listeners[-1].port)]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"})
            assert asked[0] is None  # the first time it asked for nobody

    run(files, test)


def test_one_that_nobody_names_does_not_count_for_one_that_is_missing(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        named, _ = bed.listen_and_hand_on(["one"], ["one", "two"], count=2, reachable=["two"])
        bed.names.known = {"localhost": [named, bed.listen(["stranger"], count=2)]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two", "stranger"})
            await bed.until(lambda: keepers() == 2)

    run(files, test)


def test_names_that_cannot_be_asked_for_are_passed_over(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one"])]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: servers.links)
            talk = bed.ready[0].talk
            assert isinstance(talk, MuxServerTalk)
            wrong = ["", "a b", "x" * 201, "ä", "a/b", "one\n"]
            talk.tell(Control(membership=Members(server_count=1, servers=["one", "two", *wrong])))
            await bed.until(lambda: servers.missing)
            assert servers.missing == ["two"]
            many = [f"s{number}" for number in range(500)]
            talk.tell(Control(membership=Members(server_count=1, servers=many)))
            await bed.until(lambda: len(servers.missing) == 128)

    run(files, test)


def test_nothing_unexpected_ends_the_search(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"odd": ValueError("odd"), "localhost": [bed.listen(["one"])]}
        failures = iter([RuntimeError("no context"), ValueError("no context")])

        def context() -> ssl.SSLContext:
            for failure in failures:
                raise failure
            return bed.context

        servers = bed.start(["odd", "localhost"], context)
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one"})

    run(files, test)


def test_an_address_that_is_gone_from_the_name_is_left(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_RESOLVE_AGAIN_S", 0.01)

    async def test(bed: Bed) -> None:
        live, same = bed.listen(["one"]), bed.listen(["one"])
        with socket.create_server(("127.0.0.1", 0)) as sock:
            dead = literal(*sock.getsockname())
        bed.names.known = {"localhost": [dead, live, same]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: len(bed.ready) == 2 and len(bed.open) == 1)
            assert keepers() == 3
            used = servers.links[ServerId("one")].peer_address
            left = live if used.endswith(f":{live[1][1]}") else same
            bed.names.known = {"localhost": [left]}
            await bed.until(lambda: keepers() == 1)
            assert set(servers.links) == {"one"}

    run(files, test)


def of_server(bed: Bed, servers: Servers, server_id: str) -> AgentLink:
    """The server's side of the link that is in the table."""
    here = servers.links[ServerId(server_id)].carrier.sock.getsockname()
    (link,) = (it for it in bed.ready if it.peer_address == f"{here[0]}:{here[1]}")
    return link


def test_when_a_server_drains_links_that_may_pass_through_it_are_replaced(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "two", "three"]
        address, asked = bed.listen_and_hand_on(["one"], ids, count=3, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids) and keepers() == 1)
            before = dict(servers.links)
            answers: list[DialResult | None] = []
            assert ask(of_server(bed, servers, "two"), answers) is not None
            await bed.until(lambda: bed.dials)
            asked.clear()
            of_server(bed, servers, "one").drain()
            await bed.until(lambda: servers.links[ServerId("two")] is not before[ServerId("two")])
            await bed.until(lambda: before[ServerId("three")].closed_because and keepers() == 1)
            assert sorted(asked) == ["three", "two"]  # once, and the one that drains not at all
            assert servers._table.unsure == [] and servers.links[ServerId("one")].ready
            # What is open goes on, and with it the link that it is open on.
            bed.dials[0].accept("192.0.2.1:80")
            await bed.until(lambda: answers)
            assert answers[0] is not None and answers[0].address == "192.0.2.1:80"
            old = before[ServerId("two")]
            assert old.ready and old in servers.open_links
            assert not servers.links[ServerId("two")].load
            bed.dials[0].stream.abort(Ending.RESET)
            await bed.until(lambda: old.closed_because)
            assert len(bed.open) == len(servers.open_links) == 3

    run(files, test)


def test_who_looks_for_a_dead_server_keeps_no_link_from_being_replaced(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        named = ["dead", "one", "two"]
        address, _ = bed.listen_and_hand_on(["one"], named, count=3, reachable=["two"])
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"], first_s=3600)  # it waits for so long after each look
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"})
            before = servers.links[ServerId("two")]
            of_server(bed, servers, "one").drain()
            await bed.until(lambda: servers.links[ServerId("two")] is not before)
            await bed.until(lambda: before.closed_because)

    run(files, test)


def test_links_that_nobody_can_have_handed_on_stay(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen([each], count=2) for each in ("one", "two")]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"} and keepers() == 2)
            two = servers.links[ServerId("two")]
            for link in bed.ready:
                talk = link.talk
                assert isinstance(talk, MuxServerTalk)
                talk.tell(Control(membership=Members(server_count=2, servers=["one", "two"])))
            of_server(bed, servers, "one").drain()
            await bed.until(lambda: servers.links[ServerId("one")].drained_at)
            assert servers._table.unsure == [] and servers.links[ServerId("two")] is two

    run(files, test)


def test_a_link_that_was_begun_before_a_server_drained_replaces_none(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "two"]
        address, _ = bed.listen_and_hand_on(["one"], ids, count=2, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        two = ServerId("two")
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids) and keepers() == 1)
            before = servers.links[two]
            servers.links[ServerId("one")].drained_at = bed.loop.time() + 3600  # all are begun
            servers._table.tell_change()
            await bed.until(lambda: len(bed.ready) > 4)
            assert servers.links[two] is before and servers._table.unsure == ["two"]

    run(files, test)


def test_no_more_links_are_replaced_than_may_wait_for_their_tunnels(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_MOST_REPLACED", 1)

    async def test(bed: Bed) -> None:
        ids = ["one", "two", "three"]
        address, _ = bed.listen_and_hand_on(["one"], ids, count=3, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids) and keepers() == 1)
            before = dict(servers.links)
            for each in ids[1:]:
                assert ask(of_server(bed, servers, each), []) is not None
            await bed.until(lambda: len(bed.dials) == 2)
            of_server(bed, servers, "one").drain()
            await bed.until(lambda: servers.links != before and keepers() == 1)
            assert sum(servers.links[key] is not link for key, link in before.items()) == 1
            for dial in bed.dials:  # now the other's turn comes
                dial.stream.abort(Ending.RESET)
            await bed.until(lambda: all(before[ServerId(each)].closed_because for each in ids[1:]))

    run(files, test)


def test_all_that_are_missing_are_linked_without_waiting(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "two", "three", "four", "five"]
        address, asked = bed.listen_and_hand_on(["one"], ids, count=5, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"], first_s=3600)
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == set(ids))
            for link in list(bed.open):
                if link.peer_address != of_server(bed, servers, "one").peer_address:
                    link.close("lost")
            await bed.until(lambda: set(servers.links) == {"one"})
            # Those that come and go have to wait: they were just linked.
            asked.clear()
            for _ in range(100):
                await asyncio.sleep(0)
            assert not asked

    run(files, test)


def test_an_agent_drains_when_it_says_so(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.names.known = {"localhost": [bed.listen(["one"])]}
        servers = bed.start(["localhost"])
        async with keeping(servers):
            await bed.until(lambda: servers.links)
            (link,) = bed.ready
            assert link.talk.session is not None
            link.stuck_ticks = 5
            link.talk.session.round_trip_s = 0.0
            view = agent_view([link])
            assert (view.draining, view.rtt_s) == (False, None)
            assert link_view(link, "agent", 0.0).rtt_s is None
            link.talk.session.round_trip_s = 0.5
            assert agent_view([link]).rtt_s == 0.5
            assert link.talk.session.grow(1000) == 1000
            link.talk.session.ungrow(600)
            grown = link_view(link, "agent", 0.0)
            assert (grown.window_growth_bytes, grown.window_growth_peak_bytes) == (400, 1000)
            servers.drain()
            await bed.until(lambda: agent_view([link]).draining)

    run(files, test)


def test_one_that_is_dead_keeps_nobody_who_is_named_later(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        named = ["one", "dead", "two"]
        address, asked = bed.listen_and_hand_on(["one"], named, count=2, reachable=["two"])
        named.remove("two")
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"], first_s=3600)  # so long the dead one waits
        async with keeping(servers):
            await bed.until(lambda: asked == ["", "dead"])
            talk = of_server(bed, servers, "one").talk
            assert isinstance(talk, MuxServerTalk)
            talk.tell(Control(membership=Members(server_count=3, servers=["one", "dead", "two"])))
            await bed.until(lambda: set(servers.links) == {"one", "two"})
            assert asked == ["", "dead", "two"]

    run(files, test)


def test_one_that_is_silent_keeps_nobody_from_the_others(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_PATIENCE_S", 0.01)

    async def test(bed: Bed) -> None:
        ids = ["a", "silent", "z"]
        address, _ = bed.listen_and_hand_on(["a"], ids, count=3, reachable=ids)
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"])
        link, answer = servers._linking.link, asyncio.Event()

        async def slowly(
            addresses: ServerAddresses, at: ServerAddress, asked: ServerId | None, hooks: Any
        ) -> ServerLink | None:
            if asked == "silent":
                await answer.wait()
            return await link(addresses, at, asked, hooks)

        servers._linking.link = slowly  # type: ignore[method-assign]
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"a", "z"})
            answer.set()
            await bed.until(lambda: set(servers.links) == set(ids))
            await bed.until(lambda: keepers() == 1)

    run(files, test)


def test_when_all_links_are_lost_the_dead_are_still_known(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        ids = ["one", "dead", "two"]
        address, _ = bed.listen_and_hand_on(["one"], ids, count=3, reachable=["two"])
        bed.names.known = {"localhost": [address]}
        servers = bed.start(["localhost"], first_s=3600)
        asking = servers._table.asking
        async with keeping(servers):
            await bed.until(lambda: set(servers.links) == {"one", "two"})
            await bed.until(lambda: repr(asking) == "<AskingTurns for 1, 1 failed>")
            for link in list(bed.open):
                link.close("lost")
            await bed.until(lambda: not servers.links)
            assert repr(asking) == "<AskingTurns for 3, 1 failed>"  # it is not asked for at once

    run(files, test)
