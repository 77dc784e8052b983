"""The page and its stream: it comes back, says when it cannot, rests, and shows several as one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenes
from browser import Browser
from fake_feed import FakeFeed
from selenium.webdriver.common.keys import Keys

UNITS = Path(__file__).parents[1] / "unit/text/units.json"
# A minute is the patience of a page that nobody looks at; a test has less.
IMPATIENT = """
const later = window.setTimeout;
window.setTimeout = (act, wait, ...more) => later(act, wait === 60000 ? 10 : wait, ...more);
"""


@pytest.fixture
def feed() -> Iterator[FakeFeed]:
    with FakeFeed(scenes.server(agents=2, tunnels=4)) as running:
        yield running


def forget_failed_loads(browser: Browser) -> None:
    """Take what Chromium logs of connections that we cut out of the page's complaints."""
    left = [line for line in browser.complaints() if "/ui/" not in line]
    assert left == []


def test_bytes_and_rates_move(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    browser.wait_live()
    assert browser.text("#sum-target") == "0B/s"
    chance = random.Random(1)

    def moves() -> bool:
        feed.send("delta", feed.scenes[0].moving(chance))
        shown = browser.text("#sum-target") != "0B/s"
        return shown and bool(browser.all(".flow.to-client:not(.still)"))

    browser.wait(moves, "the rate is shown")
    # Nothing is said any more: nothing moves any more.
    browser.wait(lambda: browser.text("#sum-target") == "0B/s", "the rate ends")
    assert not browser.all(".flow:not(.still)")


def test_it_comes_back_and_shows_the_new_program(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    browser.wait_live()
    browser.js("document.querySelector('#tunnel-rows .row').click()")
    feed.stop()
    browser.wait(lambda: browser.text("#live-text") == "lost", "it is said to be lost")
    assert browser.find("#trouble").is_displayed()
    assert "last known state" in browser.text("#trouble")
    assert browser.text("#sum-tunnels") == "4"
    feed.scenes[:] = [scenes.server(instance="cp-2", agents=1, tunnels=1)]
    feed.start()
    browser.click("#live-retry")
    browser.wait(lambda: browser.text("#live-text") == "live", "it is live again")
    browser.wait(lambda: browser.text("#sum-tunnels") == "1", "the new one is shown")
    assert browser.driver.title == "server cp-2 · Isthmus"
    assert not browser.find("#details").is_displayed()
    forget_failed_loads(browser)


def test_a_stream_that_is_not_understood_is_closed(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    browser.wait_live()
    feed.mumble()
    browser.wait(lambda: len(feed.tokens) == 2, "it asks again")
    browser.wait_live()
    browser.wait(lambda: feed.viewers == 1, "the other stream is closed")


def test_a_stream_that_is_cut_is_opened_again_by_itself(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    browser.wait_live()
    browser.click(".nodes .node:nth-child(2)")
    assert browser.text("#filter-label") == "cp-1"
    feed.cut()
    browser.wait(lambda: len(feed.tokens) == 2, "it asks again")
    browser.wait_live()
    assert browser.text("#filter-label") == "cp-1"  # what was chosen is chosen still
    browser.wait(lambda: browser.text("#tunnel-count") == "4", "its tunnels are shown again")
    feed.cut()
    browser.wait(lambda: len(feed.tokens) == 3, "and again")
    browser.wait_live()
    forget_failed_loads(browser)


def test_a_program_that_lets_nobody_in_says_why(browser: Browser, feed: FakeFeed) -> None:
    feed.busy = "32 pages are open already."
    browser.page(feed.url)
    said = "Not connected: 32 pages are open already. The page shows"
    browser.wait(lambda: said in browser.text("#trouble"), "the reason is shown")
    feed.busy = ""
    browser.click("#live-retry")
    browser.wait_live()
    assert not browser.find("#trouble").is_displayed()
    forget_failed_loads(browser)


def test_an_updated_program_gets_its_own_page(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    browser.wait_live()
    browser.js("window.old = true")
    feed.version = "0.2.0"
    feed.cut()
    browser.wait(lambda: browser.js("return window.old") is None, "the page is loaded anew")
    browser.wait_live()
    browser.js("window.old = true")
    feed.cut()
    browser.wait(lambda: len(feed.tokens) == 4, "it asks again")
    browser.wait_live()
    assert browser.js("return window.old") is True
    forget_failed_loads(browser)


def test_the_token_is_asked_for_kept_and_told_to_be_wrong(browser: Browser, feed: FakeFeed) -> None:
    feed.token = "s3cret"
    browser.page(feed.url)
    browser.wait(lambda: browser.find("#token-dialog").is_displayed(), "it asks")
    assert browser.find("#token-field").get_attribute("type") == "password"
    assert browser.text("#live-text") == "locked"
    browser.keys("wrong", Keys.ENTER)
    browser.wait(lambda: "not accepted" in browser.text("#token-wrong"), "it says so")
    assert feed.tokens == ["", "Bearer wrong"]
    # Whoever closes the question finds it again.
    browser.keys(Keys.ESCAPE)
    browser.wait(lambda: not browser.find("#token-dialog").is_displayed(), "it is closed")
    browser.click("#live-retry")
    browser.keys("s3cret", Keys.ENTER)
    browser.wait_live()
    assert not browser.find("#token-dialog").is_displayed()
    browser.js("document.querySelector('#tunnel-rows .row').click()")
    browser.click("#details-end")
    browser.click("#end-yes")
    browser.wait(lambda: len(feed.orders) == 1, "the order carries the token")
    browser.driver.refresh()
    browser.wait_live()
    assert feed.tokens[-1] == "Bearer s3cret"
    assert browser.js("return [localStorage.length, document.cookie]") == [0, ""]
    browser.js("sessionStorage.clear()")
    forget_failed_loads(browser)


def test_a_page_that_nobody_looks_at_rests(browser: Browser, feed: FakeFeed) -> None:
    script = browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=IMPATIENT)
    first = browser.driver.current_window_handle
    try:
        browser.page(feed.url)
        browser.wait_live()
        assert feed.viewers == 1
        browser.driver.switch_to.new_window("tab")
        browser.wait(lambda: feed.viewers == 0, "the stream is closed")
        asked = len(feed.tokens)
        browser.driver.close()
        browser.driver.switch_to.window(first)
        browser.wait(lambda: feed.viewers == 1, "the stream is open again")
        assert len(feed.tokens) == asked + 1
        browser.wait_live()
    finally:
        browser.driver.switch_to.window(first)
        browser.cdp("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_several_programs_are_one_page(browser: Browser) -> None:
    one = scenes.server(id="0", instance="cp-1", agents=3, tunnels=5)
    two = scenes.server(id="1", instance="cp-2", agents=3, tunnels=7, seed=2)
    for tunnel in two.snapshot["tunnels"]:
        tunnel["connectionId"] = f"other-{tunnel['id']}"
    node = scenes.agent_program(id="2", instance="node-2")
    for tunnel in node.snapshot["tunnels"]:
        tunnel["connectionId"] = f"node-{tunnel['id']}"
    node.snapshot["tunnels"][0]["connectionId"] = one.snapshot["tunnels"][0]["connectionId"]
    gone = scenes.server(id="3", instance="")
    gone.lost = "127.0.0.1:8095 refused the connection"
    gone.source["address"] = "127.0.0.1:8095"
    with FakeFeed(one, two, node, gone) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert browser.driver.title == "4 programs · Isthmus"
        programs = browser.texts("#programs li")
        assert any("refused the connection" in program for program in programs)
        # What a server shows is not shown again by the agent that carries it.
        assert browser.text("#tunnel-count") == str(5 + 7 + 8 - 1)
        assert browser.text("#peers-count") == "3"
        assert browser.text("#sum-dials-note") == "36,462 total"
        assert {"cp-1", "cp-2", "node-1"} <= set(browser.texts(".node .title"))
        browser.js(
            "[...document.querySelectorAll('.node')].find((it) =>"
            " it.textContent.includes('cp-2')).click()"
        )
        assert browser.text("#tunnel-count") == "7 of 19"
        browser.js("document.querySelector('#tunnel-rows .row').click()")
        browser.click("#details-end")
        browser.click("#end-yes")
        browser.wait(lambda: [it["source"] for it in feed.orders] == ["1"], "its source is named")
        feed.send("lost", {"source": "1", "why": "it went away"})
        browser.wait(lambda: "not reached" in browser.texts("#programs li")[1], "it is lost")
        # What it did a moment ago is not shown as if it went on.
        browser.wait(lambda: browser.text("#tunnel-count") == "0 of 12", "its tunnels are gone")
        assert len(browser.all(".node.bad")) == 2
        two.snapshot["tunnels"] = two.snapshot["tunnels"][:2]
        feed.send("full", two.full())
        browser.wait(lambda: "ready" in browser.texts("#programs li")[1], "it is back")
        browser.wait(lambda: browser.text("#tunnel-count") == "2 of 14", "without what has gone")


def relaying() -> tuple[scenes.Scene, scenes.Scene]:
    """A server without agents, and the other one that passes its only dial on."""
    asks = scenes.server(id="0", instance="cp-1", agents=0)
    helps = scenes.server(id="1", instance="cp-2", agents=2, tunnels=3)
    helps.snapshot["tunnels"][0]["frontend"] = "relay"
    one = helps.snapshot["tunnels"][0]
    asks.snapshot["tunnels"] = [{**one, "id": 7, "frontend": "grpc", "relay": "cp-2"}]
    asks.snapshot["relays"] = [scenes.relay("cp-2", "to"), scenes.relay("cp-3", "to", streams=0)]
    helps.snapshot["relays"] = [scenes.relay("cp-1", "from")]
    return asks, helps


def test_a_relayed_tunnel_names_the_server_that_has_the_agent(browser: Browser) -> None:
    asks, helps = relaying()
    agent = asks.snapshot["tunnels"][0]["agentId"]
    with FakeFeed(asks) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert "ready by relay" in browser.text("#programs")
        # The other server stands where agents do; one that is asked for nothing is only listed.
        assert set(browser.texts(".node .title")) == {"Clients", "cp-1", "cp-2", "Targets"}
        assert browser.texts("#tunnel-rows .via .first") == [f"{agent} via cp-2"]
        assert "cp-3" in browser.text("[data-panel=relays]")
        asks.snapshot["relays"] = [scenes.relay("cp-2", "to", agents=False)]
        feed.send("delta", asks.delta(snapshot={"relays": asks.snapshot["relays"]}))
        browser.wait(lambda: "no agent" in browser.text("#programs"), "nobody can help now")
    asks, helps = relaying()
    with FakeFeed(asks, helps) as feed:
        browser.page(feed.url)
        browser.wait_live()
        # Both servers have it; it is one tunnel, of the server that the client asked.
        assert browser.text("#tunnel-count") == "3"
        way = ".way[aria-label^='cp-1 to cp-2']"
        browser.js("document.querySelector(arguments[0]).focus()", way)
        browser.keys(Keys.ENTER)
        browser.wait(lambda: browser.text("#tunnel-count") == "1 of 3", "the way was chosen")
        browser.js("document.querySelector('#tunnel-rows .row').click()")
        assert f"{agent} via cp-2" in browser.texts("#details-fields dd")
        assert "server cp-1" in browser.texts("#details-fields dd")
        listed = browser.text("[data-panel=relays] tbody")
        assert "3 agents reported" in listed and "through agents of this server" in listed


def test_events_are_read_however_they_are_cut(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    text = ': alive\n\nevent: a\ndata: {"x":1}\n\nevent: b\ndata: {"y":"ü"}\n\n'
    found = browser.driver.execute_async_script(
        """
        const [text, done] = arguments;
        import("/ui/feed.js").then(({ EventReader }) => {
          const all = new EventReader().take(text);
          const reader = new EventReader();
          done([all, [...text].flatMap((letter) => reader.take(letter))]);
        });
        """,
        text,
    )
    events = [{"name": "a", "data": {"x": 1}}, {"name": "b", "data": {"y": "ü"}}]
    assert found == [events, events]


def test_figures_are_written_as_the_commands_write_them(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    vectors = json.loads(UNITS.read_text(encoding="utf-8"))
    found = browser.driver.execute_async_script(
        """
        const [vectors, done] = arguments;
        const names = { size: "bytes", rate: "rate", age: "duration", took: "roundTrip" };
        import("/ui/units.js").then((units) => done(Object.fromEntries(
          Object.entries(vectors).map(([name, pairs]) =>
            [name, pairs.map(([number]) => units[names[name]](number))]))));
        """,
        vectors,
    )
    # A count of bytes is never unknown to the page.
    del vectors["size"][0], found["size"][0]
    assert found == {name: [text for _, text in pairs] for name, pairs in vectors.items()}


def test_axes_end_at_round_numbers_and_certificates_have_a_level(
    browser: Browser, feed: FakeFeed
) -> None:
    browser.page(feed.url)
    found = browser.driver.execute_async_script(
        """
        const [done] = arguments;
        import("/ui/units.js").then(({ niceTop, niceTopOfBytes, expiry }) => done([
          [0, 1, 2.1, 4, 5, 9, 11, 61e6].map(niceTop),
          [0, 1024, 1025, 3 << 20].map(niceTopOfBytes),
          [[-1, "bad"], [3, "bad"], [3, "ok"], [90, "warn"], [90, undefined], [-1, "nonsense"]].map(
            ([days, standing]) =>
              expiry({ standing, notAfter: new Date(1e12 + days * 864e5).toISOString() }, 1e12)),
        ]));
        """
    )
    assert found == [
        [1, 1, 4, 4, 6, 10, 20, 80e6],
        [1, 1024, 2048, 4 << 20],
        # The level is the program's verdict, which is the doctor's; days alone decide nothing.
        [
            {"level": "bad", "text": "expired 24h ago"},
            {"level": "bad", "text": "3 days left"},
            {"level": "ok", "text": "3 days left"},
            {"level": "warn", "text": "90 days left"},
            {"level": "idle", "text": "90 days left"},
            {"level": "idle", "text": "expired 24h ago"},
        ],
    ]


def test_quantiles_are_read_from_buckets_of_several_steps(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    buckets = [[0.1, 0.2, 50], [0, 0.1, 30], [0, 0.1, 20]]
    found = browser.driver.execute_async_script(
        """
        const [buckets, done] = arguments;
        import("/ui/views.js").then(({ quantile }) => done([
          [0.25, 0.5, 0.75, 1].map((share) => quantile(buckets, share)),
          quantile([[10, null, 3]], 0.99), quantile([], 0.5),
          quantile([[0, 0.1, 99], [0.1, null, 1]], 0.999),
        ]));
        """,
        buckets,
    )
    # As Prometheus' histogram_quantile: linear inside a bucket, the lower bound in the last one.
    assert found == [pytest.approx([0.05, 0.1, 0.15, 0.2]), 10, None, 0.1]


def test_what_a_page_keeps_has_a_bound(browser: Browser, feed: FakeFeed) -> None:
    browser.page(feed.url)
    found = browser.driver.execute_async_script(
        """
        const [done] = arguments;
        import("/ui/state.js").then(({ State }) => {
          const state = new State();
          const source = "0";
          state.take("hello", { version: "", sources: [{ id: source, program: "server" }] });
          state.take("full", { source, at: new Date(0).toISOString(), snapshot: {} });
          for (let second = 1; second < 5000; second += 1) {
            const tunnel = { id: second, ageSeconds: 0, bytesToTarget: 0, bytesToClient: 0 };
            const step = { number: second, failures: {}, dialTimes: [[0, 0.1, 1]] };
            state.take("delta", {
              source, at: new Date(second * 1000).toISOString(), history: [step], audit: [{}],
              tunnels: { set: [tunnel], gone: [second - 1] },
            });
            state.tick();
          }
          const it = state.sources.get(source);
          done([it.history.length, it.audit.records.length, it.beats.length, it.tunnels.size]);
        });
        """
    )
    assert found == [360, 200, 60, 1]
