"""The page of real servers and agents, one alone and several together."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from clients import Client, Target, echo_target, free_port, tunnel
from programs import COMMAND, ENVIRONMENT, Programs
from relay_bed import Relays, peer_files
from selenium.webdriver.common.keys import Keys
from stack import Stack, wait_until

from isthmus.frame import health
from isthmus.tools.pki.making import PkiFiles


@pytest.fixture
def linked(fresh: Stack) -> Stack:
    fresh.add_server(server_id="cp-1")
    fresh.add_agent(agent_id="node-1")
    return fresh


def page_of(port: int) -> str:
    return f"http://127.0.0.1:{port}/ui"


def echoed(client: Client, size: int) -> None:
    client.send(b"x" * size)
    got = 0
    while got < size:
        got += len(client.recv())


def was_reset(client: Client) -> bool:
    try:
        while client.recv():
            pass
    except ConnectionResetError:
        return True
    return False


def row_of(target: str) -> str:
    return f"#tunnel-rows .row:has(bdi[title='{target}'])"


def test_a_servers_page_shows_a_tunnel_that_moves(browser: Browser, linked: Stack) -> None:
    with echo_target() as target, linked.tunnel("tls", target.name) as client:
        browser.page(page_of(linked.server.admin_port))
        browser.wait_live()
        assert browser.driver.title == "server cp-1 · Isthmus"
        assert browser.driver.current_url.endswith("/ui/")
        assert {"cp-1", "node-1"} <= set(browser.texts(".node .title"))
        browser.wait(lambda: browser.all(row_of(target.name)), "the tunnel is shown")
        echoed(client, 123_000)
        sent = f"{row_of(target.name)} .sent"
        browser.wait(lambda: browser.text(sent) == "120KiB", "its bytes are shown")

        def goes_on() -> bool:
            echoed(client, 10_000)
            return browser.text("#sum-client").endswith("B/s")

        browser.wait(goes_on, "their rate is shown")
        with linked.tunnel("uds", target.name):
            browser.wait(lambda: browser.text("#sum-tunnels") == "2", "another one comes")
        browser.wait(lambda: browser.text("#sum-tunnels") == "1", "and goes")
        browser.wait(
            lambda: target.name in browser.text("[data-panel=endings]"), "its end is listed"
        )
    browser.driver.get("about:blank")


def test_an_agents_page_shows_its_server_and_the_same_tunnel(
    browser: Browser, linked: Stack
) -> None:
    with echo_target() as target, linked.tunnel("uds", target.name):
        browser.page(page_of(linked.agent.admin_port))
        browser.wait_live()
        assert browser.text("#peers-title") == "Servers 1 of 1"
        assert browser.texts(".node .title") == ["cp-1", "node-1", "Targets"]
        browser.wait(lambda: browser.all(row_of(target.name)), "the tunnel is shown")
    browser.driver.get("about:blank")


def test_a_tunnel_is_ended_after_asking_and_its_client_sees_the_reset(
    browser: Browser, linked: Stack
) -> None:
    with Target() as target, linked.tunnel("tls", target.name) as client, target.accept() as far:
        browser.page(page_of(linked.server.admin_port))
        browser.wait_live()
        browser.wait(lambda: browser.all(row_of(target.name)), "the tunnel is shown")
        browser.click(row_of(target.name))
        browser.click("#details-end")
        assert browser.text("#end-to") == target.name
        browser.keys(Keys.ESCAPE)  # keep it
        client.send(b"still there")
        assert far.recv() == b"still there"
        browser.click("#details-end")
        browser.click("#end-yes")
        assert was_reset(client)
        assert was_reset(far)
        browser.wait(lambda: "Ended the tunnel" in browser.text("#said"), "it is said")
        browser.wait(lambda: browser.text("#sum-tunnels") == "0", "it is gone")
        browser.wait(
            lambda: "operator" in browser.text("[data-panel=endings]"), "its end names the operator"
        )
    browser.driver.get("about:blank")


def test_a_tunnel_that_is_stalled_says_why(browser: Browser, linked: Stack) -> None:
    with Target() as target, linked.tunnel("uds", target.name), target.accept() as far:
        browser.page(page_of(linked.server.admin_port))
        browser.wait_live()
        far.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while far.sock.send(bytes(65536)):  # until nobody takes any more: the client reads none
                pass
        why = f"{row_of(target.name)} .why"
        browser.wait(lambda: "client stopped reading" in browser.text(why), "it says why", 40)
        assert browser.text("#sum-stalled") == "1"
        assert browser.text(f"{row_of(target.name)} .badge-text") == "stalled"
    browser.driver.get("about:blank")


def test_failed_dials_and_audit_records_are_shown(
    browser: Browser, fresh: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STEP_S", 1.0)  # of the history, whose last whole one is shown
    fresh.add_server(audit_log_path=str(tmp_path / "audit.log"))
    fresh.add_agent()
    browser.page(page_of(fresh.server.admin_port))
    browser.wait_live()
    nowhere = f"127.0.0.1:{free_port()}"
    with fresh.uds() as client, contextlib.suppress(AssertionError):
        tunnel(client, nowhere)
    browser.wait(lambda: browser.text("#sum-failed-note") == "1 total", "the failure is counted")
    audit = "[data-panel=audit]"
    browser.wait(lambda: nowhere in browser.text(audit), "it is in the audit records")
    assert "Failed" in browser.texts(f"{audit} .badge-text")
    legend = "#charts .chart:last-child .legend"
    browser.wait(lambda: browser.text(legend) == "connection refused1", "it is in the chart")
    browser.driver.get("about:blank")


def test_it_outlives_the_server(browser: Browser, programs: Programs) -> None:
    flags = [f"--admin-port={free_port()}", f"--agent-port={free_port()}", "--server-id=cp-1"]
    server = programs.server(*flags)
    programs.agent(server)
    programs.wait_ready(server)
    browser.page(page_of(server.port("admin_port")))
    browser.wait_live()
    server.process.kill()
    server.wait_exit()
    browser.wait(lambda: browser.text("#live-text") in ("reconnecting", "lost"), "it is missed")
    again = programs.server(*flags[:2], "--server-id=cp-2")
    programs.wait_ready(again)
    browser.wait(lambda: browser.driver.title == "server cp-2 · Isthmus", "the new one is shown")
    browser.wait_live()
    browser.wait(lambda: browser.text("#peers-count") == "1", "with its agent")
    assert [line for line in browser.complaints() if "/ui/events" not in line] == []
    browser.driver.get("about:blank")


def test_a_server_with_a_token_wants_it(browser: Browser, fresh: Stack, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-long-and-secret-token-of-the-operators\n")
    fresh.add_server(admin_token_file=str(file), server_id="cp-1")
    fresh.add_agent()
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept():
        browser.page(page_of(fresh.server.admin_port))
        browser.wait(lambda: browser.find("#token-dialog").is_displayed(), "it asks")
        browser.keys("guessed", Keys.ENTER)
        browser.wait(lambda: "not accepted" in browser.text("#token-wrong"), "it says so")
        browser.keys(file.read_text().strip(), Keys.ENTER)
        browser.wait_live()
        browser.wait(lambda: browser.all(row_of(target.name)), "the tunnel is shown")
        browser.click(row_of(target.name))
        browser.click("#details-end")
        browser.click("#end-yes")
        assert was_reset(client)
    assert [line for line in browser.complaints() if "401" not in line] == []
    browser.js("sessionStorage.clear()")
    browser.driver.get("about:blank")


@contextlib.contextmanager
def dashboard(*ports: int) -> Iterator[str]:
    """``isthmus dashboard`` for the programs at these admin ports; its address."""
    sources = [f"--admin=http://127.0.0.1:{port}" for port in ports]
    with subprocess.Popen(
        [*COMMAND, "dashboard", "--port=0", *sources],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:[0-9]+/ui/", said)
            assert found, said
            yield found[0]
        finally:
            process.terminate()
            process.wait(20)


def test_two_servers_and_an_agent_are_one_page(browser: Browser, fresh: Stack) -> None:
    one = fresh.add_server(server_id="cp-1")
    agent = fresh.add_agent(agent_id="node-1")
    two = fresh.add_server(server_id="cp-2")
    fresh.add_agent(linked=False, agent_id="node-2", proxy_server_port=two.agent_port)
    fresh.wait(lambda: any(link.agent_id == "node-2" for link in two.agents), "the other links")
    with (
        dashboard(one.admin_port, two.admin_port, agent.admin_port) as url,
        Target() as target,
        fresh.tunnel("tls", target.name) as client,
        target.accept(),
    ):
        browser.page(url)
        browser.wait_live()
        browser.wait(lambda: len(browser.texts("#programs .badge.ok")) == 3, "all three are ready")
        assert browser.driver.title == "3 programs · Isthmus"
        nodes = {"cp-1", "cp-2", "node-1", "node-2"}
        browser.wait(lambda: nodes <= set(browser.texts(".node .title")), "all are drawn")
        browser.wait(lambda: browser.text("#tunnel-count") == "1", "its tunnel is shown once")
        browser.click(row_of(target.name))
        browser.click("#details-end")
        browser.click("#end-yes")
        assert was_reset(client)
        fresh.stop(two)
        browser.wait(
            lambda: len(browser.texts("#programs .badge.bad")) == 1, "the stopped one is missed"
        )
        assert browser.text("#live-text") == "live"
        browser.driver.get("about:blank")


def test_a_tunnel_that_one_server_relays_through_another_is_one_tunnel(
    browser: Browser, fresh: Stack, certificates: PkiFiles, tmp_path: Path
) -> None:
    relays = Relays(fresh, peer_files(certificates, tmp_path / "peer"))
    helps = relays.helper("cp-2")
    relays.agent(helps, "node-1")
    asks = relays.asker(helps, name="cp-1")
    relays.wait_relay(asks)
    with (
        dashboard(asks.admin_port, helps.admin_port) as url,
        echo_target() as target,
        relays.tunnel(asks, target.name) as client,
    ):
        browser.page(url)
        browser.wait_live()
        browser.wait(lambda: "ready by relay" in browser.text("#programs"), "it relays")
        row = row_of(target.name)
        browser.wait(lambda: browser.text(f"{row} .via .first") == "node-1 via cp-2", "it is named")
        assert browser.text("#tunnel-count") == "1"
        assert browser.all(".way[aria-label^='cp-1 to cp-2']")
        echoed(client, 123_000)
        browser.wait(lambda: browser.text(f"{row} .sent") == "120KiB", "its bytes are shown")
        browser.click(row)
        browser.click("#details-end")
        browser.click("#end-yes")
        # A UNIX socket cannot be reset; that the two servers have nothing left says enough.
        browser.wait(lambda: browser.text("#tunnel-count") == "0", "both servers have ended it")
        browser.driver.get("about:blank")


@pytest.mark.nightly
def test_two_thousand_real_tunnels(browser: Browser, linked: Stack) -> None:
    with Target(backlog=4096) as target, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(linked.tunnel("uds", target.name)) for _ in range(2000)]
        browser.page(page_of(linked.server.admin_port))
        browser.wait_live()
        browser.wait(lambda: browser.text("#tunnel-count") == "2,000", "all are shown")
        browser.js("window.__longTasks.length = 0")
        for client in clients:
            client.send(b"x" * 1000)
        browser.wait(lambda: browser.text("#sum-target-note") == "1.9MiB total", "all moved")
        rows = browser.js("return document.querySelectorAll('#tunnel-rows .row').length")
        assert rows < 60
        print(f"2,000 real tunnels: {rows} rows, long tasks {browser.js('return __longTasks')} ms")
        browser.driver.get("about:blank")
    wait_until(lambda: linked.snapshot()["tunnels"] == [], "all are gone")
