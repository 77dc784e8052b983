"""The table of tunnels: searched, sorted, walked through by keys, ended after asking."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import scenes
from browser import Browser
from fake_feed import FakeFeed
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

# A person sees some twenty rows; what is above and below is there for scrolling.
MOST_ROWS = 60


@pytest.fixture
def scene() -> scenes.Scene:
    scene = scenes.server(agents=3, tunnels=0)
    names = ("a.example:443", "b.example:10250", "c.example:443")
    for number, target in enumerate(names, 1):
        tunnel = scenes.tunnel(number, scene.snapshot["agents"], random.Random(number))
        tunnel.update(target=target, agentId=f"node-{number}", linkId=number, state="open")
        tunnel.update(stalled="", bytesToTarget=number * 1000, ageSeconds=100.0 - number)
        scene.snapshot["tunnels"].append(tunnel)
    return scene


@pytest.fixture
def feed(scene: scenes.Scene) -> Iterator[FakeFeed]:
    with FakeFeed(scene) as running:
        yield running


def targets(browser: Browser) -> list[str]:
    return browser.texts("#tunnel-rows .row:not([hidden]) .to .first")


def opened(browser: Browser, feed: FakeFeed) -> Browser:
    browser.page(feed.url)
    browser.wait_live()
    browser.wait(lambda: len(targets(browser)) == 3, "three tunnels are drawn")
    return browser


def test_search_finds_by_every_word_and_the_slash_goes_there(
    browser: Browser, feed: FakeFeed
) -> None:
    opened(browser, feed).keys("/")
    assert browser.focused() == "search"
    browser.keys("443 NODE-3")
    assert targets(browser) == ["c.example:443"]
    assert browser.text("#tunnel-count") == "1 of 3"
    browser.keys(" nowhere")
    assert targets(browser) == []
    assert browser.text("#tunnel-none") == "No tunnels match."
    browser.keys(Keys.ESCAPE)
    assert len(targets(browser)) == 3
    assert browser.focused() == "tunnel-grid"


def test_who_asked_is_a_name_and_below_it_by_what(browser: Browser) -> None:
    scene = scenes.server(agents=1, tunnels=3)
    who = ("uid:0", "certificate:uid:0", "certificate:kube-apiserver")
    for tunnel, requester in zip(scene.snapshot["tunnels"], who, strict=True):
        tunnel.update(requester=requester, frontend="grpc")
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        browser.click("[data-sort=requester] button")
        assert browser.texts("#tunnel-rows .who .first") == ["kube-apiserver", "uid:0", "uid:0"]
        below = browser.texts("#tunnel-rows .who .second")
        assert below == ["cert · grpc", "cert · grpc", "grpc"]
        browser.js("document.querySelector('#tunnel-rows .row').click()")
        assert browser.texts("#details-fields dd")[0].startswith("certificate:")


def test_a_click_or_a_key_on_a_head_sorts_and_again_the_other_way(
    browser: Browser, feed: FakeFeed
) -> None:
    head = "[data-sort=toTarget]"
    opened(browser, feed)
    assert browser.find("[data-sort=age]").get_attribute("aria-sort") == "ascending"
    assert targets(browser) == ["c.example:443", "b.example:10250", "a.example:443"]
    browser.click(f"{head} button")
    assert browser.find(head).get_attribute("aria-sort") == "descending"
    assert browser.find("[data-sort=age]").get_attribute("aria-sort") == "none"
    assert targets(browser) == ["c.example:443", "b.example:10250", "a.example:443"]
    browser.keys(Keys.ENTER)
    assert browser.find(head).get_attribute("aria-sort") == "ascending"
    assert targets(browser) == ["a.example:443", "b.example:10250", "c.example:443"]


def test_what_moves_is_sorted_anew_but_not_under_the_pointer(
    browser: Browser, feed: FakeFeed, scene: scenes.Scene
) -> None:
    opened(browser, feed).click("[data-sort=toTarget] button")
    ActionChains(browser.driver).move_to_element(browser.find("h1")).perform()
    feed.send("delta", scene.delta(tunnels={"moved": [[1, 99_000, 0]]}))
    browser.wait(lambda: targets(browser)[0] == "a.example:443", "the largest comes first")
    ActionChains(browser.driver).move_to_element(browser.find("#tunnel-rows .row")).perform()
    feed.send("delta", scene.delta(tunnels={"moved": [[3, 999_000, 0]]}))
    browser.wait(lambda: "976KiB" in browser.text("#tunnel-rows"), "the bytes are drawn")
    assert targets(browser)[0] == "a.example:443"
    ActionChains(browser.driver).move_to_element(browser.find("h1")).perform()
    browser.wait(lambda: targets(browser)[0] == "c.example:443", "the largest comes first again")


def test_tunnels_come_change_and_go_with_the_feed(
    browser: Browser, feed: FakeFeed, scene: scenes.Scene
) -> None:
    opened(browser, feed)
    why = "client stopped reading; 256KiB held for 12s"
    second = {**scene.snapshot["tunnels"][1], "state": "stalled", "stalled": why}
    new = {**scene.snapshot["tunnels"][0], "id": 9, "target": "d.example:443", "ageSeconds": 0.1}
    feed.send("delta", scene.delta(tunnels={"set": [second, new], "gone": [1]}))
    browser.wait(
        lambda: targets(browser) == ["d.example:443", "c.example:443", "b.example:10250"],
        "one came and one went",
    )
    assert why in browser.text("#tunnel-rows")
    assert browser.text("#sum-stalled") == "1"
    browser.click("#tile-stalled")
    assert targets(browser) == ["b.example:10250"]
    browser.click("#filter-off")
    assert len(targets(browser)) == 3


def test_an_agent_or_a_link_of_the_picture_chooses_its_tunnels(
    browser: Browser, feed: FakeFeed
) -> None:
    opened(browser, feed)
    browser.click(".nodes .node:nth-child(4)")
    assert browser.text("#filter-label") == "agent node-2"
    assert targets(browser) == ["b.example:10250"]
    browser.click(".nodes .node:nth-child(4)")
    assert len(targets(browser)) == 3
    browser.js("document.querySelector('.way[aria-label*=\"cp-1 to node-3\"]').focus()")
    browser.keys(Keys.ENTER)
    assert targets(browser) == ["c.example:443"]
    browser.keys(Keys.ESCAPE)
    assert len(targets(browser)) == 3
    browser.find("#peers-table tbody tr").click()
    assert targets(browser) == ["a.example:443"]


def test_an_agent_of_the_list_is_chosen_by_keys(browser: Browser, feed: FakeFeed) -> None:
    opened(browser, feed)
    assert len(browser.all("#peers-table tr[tabindex='0']")) == 1  # one stop, however many agents
    browser.js("document.querySelector('#peers-scroll').focus()")
    browser.keys(Keys.TAB, Keys.ARROW_DOWN, Keys.ENTER)
    assert targets(browser) == ["b.example:10250"]
    browser.keys(Keys.ARROW_UP, " ")
    assert targets(browser) == ["a.example:443"]
    browser.keys(Keys.ARROW_DOWN, Keys.TAB)
    back = ActionChains(browser.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB)
    back.key_up(Keys.SHIFT).send_keys(Keys.ENTER).perform()
    assert targets(browser) == ["b.example:10250"]  # where it was


def test_all_of_it_by_keys(browser: Browser, feed: FakeFeed) -> None:
    opened(browser, feed).keys("?")
    assert browser.find("#help-dialog").is_displayed()
    browser.keys(Keys.ESCAPE)
    assert not browser.find("#help-dialog").is_displayed()
    browser.keys("j", "j")
    row = browser.find("#tunnel-rows [aria-selected=true]")
    assert browser.find("#tunnel-grid").get_attribute("aria-activedescendant") == row.get_attribute(
        "id"
    )
    assert not browser.find("#details").is_displayed()
    browser.keys("k", Keys.ARROW_DOWN, Keys.ENTER)
    assert browser.text("#details-fields").count("b.example:10250") == 1
    browser.keys(Keys.END)  # the details follow
    assert browser.text("#details-fields").count("a.example:443") == 1
    browser.keys("e")
    assert browser.focused() == "end-no"  # a hasty Enter ends nothing
    browser.keys(Keys.ENTER)
    assert feed.orders == []
    browser.keys("e", Keys.TAB, Keys.ENTER)
    browser.wait(lambda: feed.orders == [{"source": "0", "tunnel": 1}], "it was ordered")
    browser.wait(lambda: "Ended the tunnel" in browser.text("#said"), "it was said")
    browser.keys(Keys.ESCAPE)
    assert not browser.find("#details").is_displayed()
    assert browser.focused() == "tunnel-grid"


def test_the_focus_can_be_seen(browser: Browser, feed: FakeFeed) -> None:
    opened(browser, feed)
    seen = (
        "const it = document.activeElement; const style = getComputedStyle(it);"
        "return [it.id || it.getAttribute('class') || it.tagName, parseFloat(style.outlineWidth)]"
    )
    met = []
    for _ in range(40):
        browser.keys(Keys.TAB)
        name, width = browser.js(seen)
        if name == "BODY":
            break
        met.append(name)
        # A way has no outline: its own line takes the colour.
        assert width >= 1 or name.startswith("way"), name
    assert {"tile-stalled", "search", "tunnel-grid", "peers-scroll"} <= set(met)


def test_an_end_is_asked_for_named_and_refused_in_words(browser: Browser, feed: FakeFeed) -> None:
    opened(browser, feed).click("#tunnel-rows .row")
    chosen = browser.text("#details-fields")
    browser.click("#details-end")
    assert browser.text("#end-to") in chosen
    browser.click("#end-no")
    assert feed.orders == []
    feed.refusal = (403, "only root or the program's own user may end tunnels here")
    browser.click("#details-end")
    browser.click("#end-yes")
    browser.wait(lambda: "only root" in browser.text("#end-result"), "the refusal is shown")
    assert browser.find("#end-dialog").is_displayed()
    browser.click("#end-no")
    said = [line for line in browser.complaints() if "403" not in line]
    assert said == []


def test_a_number_that_is_another_tunnels_by_now_is_not_ended(
    browser: Browser, feed: FakeFeed, scene: scenes.Scene
) -> None:
    opened(browser, feed).click("#tunnel-rows .row")
    browser.click("#details-end")
    for tunnel in scene.snapshot["tunnels"]:  # the program begins anew, and counts from 1 again
        tunnel.update(connectionId=f"new-{tunnel['id']}", target=f"new-{tunnel['id']}.example:443")
    feed.cut()
    browser.wait(lambda: all("new-" in each for each in targets(browser)), "it is back")
    browser.click("#end-yes")
    browser.wait(lambda: "nothing was done" in browser.text("#end-result"), "it is said")
    browser.click("#end-no")
    assert feed.orders == []


def test_where_nothing_can_be_ended_it_says_so(browser: Browser, scene: scenes.Scene) -> None:
    scene.source["canEnd"] = False
    with FakeFeed(scene) as feed:
        opened(browser, feed).click("#tunnel-rows .row")
        assert not browser.find("#details-end").is_enabled()
        assert "cannot be ended" in browser.text("#details-cannot")
        browser.keys("e")
        assert not browser.find("#end-dialog").is_displayed()


def test_the_details_of_a_tunnel_that_ended_say_so(
    browser: Browser, feed: FakeFeed, scene: scenes.Scene
) -> None:
    opened(browser, feed).click("#tunnel-rows .row")
    feed.send("delta", scene.delta(tunnels={"gone": [1, 2, 3]}))
    browser.wait(lambda: "ended" in browser.text("#details-state"), "it has ended")
    assert not browser.find("#details-end").is_enabled()
    assert browser.text("#tunnel-none") == "No open tunnels."


def test_the_connection_id_is_copied(browser: Browser, feed: FakeFeed) -> None:
    opened(browser, feed).cdp(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    browser.click("#tunnel-rows .row")
    browser.click("#details-copy")
    browser.wait(lambda: "Copied" in browser.text("#said"), "it says so")
    copied = browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    )
    assert copied == browser.text("#details-id") != ""


@pytest.mark.parametrize("count", [2000, pytest.param(5000, marks=pytest.mark.nightly)])
def test_thousands_of_tunnels_keep_the_page_small_and_moving(browser: Browser, count: int) -> None:
    scene = scenes.server(agents=40, tunnels=count)
    chance = random.Random(8)
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        browser.wait(lambda: browser.text("#tunnel-count") == f"{count:,}", "all are counted")
        rows = "return document.querySelectorAll('#tunnel-rows .row').length"
        elements = browser.js("return document.querySelectorAll('*').length")
        browser.js("window.__longTasks.length = 0")
        browser.click("[data-sort=rate] button")
        browser.find("h1").click()
        before = browser.texts("#tunnel-rows .row:not([hidden]) .to")
        for _ in range(5):
            feed.send("delta", scene.moving(chance, some=count))
        browser.wait(
            lambda: browser.texts("#tunnel-rows .row:not([hidden]) .to") != before, "they move"
        )
        for place in (0.5, 1.0, 0.2):
            browser.js(
                "const grid = document.querySelector('#tunnel-grid');"
                "grid.scrollTop = grid.scrollHeight * arguments[0]",
                place,
            )
            browser.wait(
                lambda: browser.texts("#tunnel-rows .row:not([hidden]) .to .first"),
                "rows are there",
            )
            assert browser.js(rows) <= MOST_ROWS
        browser.js("document.querySelector('#tunnel-grid').focus()")
        browser.keys(Keys.END)
        last = browser.find("#tunnel-rows [aria-selected=true]")
        assert last.get_attribute("aria-rowindex") == str(count + 1)
        ids = "const all = [...document.querySelectorAll('[id]')].map((it) => it.id);"
        assert browser.js(f"{ids} return all.length === new Set(all).size")
        assert browser.js("return document.querySelectorAll('*').length") < elements + 200
        tasks = browser.js("return window.__longTasks")
        print(
            f"{count} tunnels: {browser.js(rows)} rows, {elements} elements, long tasks {tasks} ms"
        )
