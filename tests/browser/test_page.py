"""The page as a whole: it loads under its policy, can be read everywhere, and names are text."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest
import scenes
from browser import PHONE, Browser
from fake_feed import FakeFeed

ASSETS = Path(str(files("isthmus.frame.dashboard"))) / "assets"
HOSTILE = '<img src=x onerror="document.title=1">\u202e<script>window.owned=1</script>'
# Of each element that has text of its own: the contrast of its colour to what is behind it.
CONTRAST = """
const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const [r, g, b, a = 1] = parse(getComputedStyle(node).backgroundColor);
    if (a > 0) return [r, g, b];
  }
};
const poor = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((it) => it.nodeType === 3 && it.data.trim());
  if (!own || !node.checkVisibility()) continue;
  if (node.closest("svg, .hidden-text, :disabled, .mark")) continue;
  const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${node.className} ${node.textContent.slice(0, 30)} ${ratio}`);
}
return poor;
"""


def test_no_file_of_the_page_parses_html_or_has_code_or_styles_inline() -> None:
    found = [file for file in ASSETS.iterdir() if file.suffix in (".js", ".html", ".css", ".svg")]
    assert len(found) > 20
    for file in found:
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{file.name} has {word}"
        if file.suffix in (".html", ".svg"):
            assert not re.search(r"\sstyle=|<style|<script(?! type=\"module\" src=)|\son\w+=", text)
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), f"{file.name} names another host"


@pytest.fixture
def feed() -> Iterator[FakeFeed]:
    scene = scenes.server()
    scene.snapshot["agents"][2]["draining"] = True
    with FakeFeed(scene) as running:
        yield running


def test_it_loads_without_complaint_and_shows_what_the_feed_says(
    browser: Browser, feed: FakeFeed
) -> None:
    browser.page(feed.url)
    browser.wait_live()
    assert browser.driver.title == "server cp-1 · Isthmus"
    assert browser.texts("#programs li") == ["servercp-1●ready0.1.0 · up 26h"]
    assert browser.text("#sum-tunnels") == "42"
    assert browser.text("#sum-client-note") == "85GiB total"
    assert "node-3" in browser.texts(".node .title")
    assert browser.texts("[data-panel=certificates] .badge-text") == [
        "4 days left",
        "21 days left",
        "3,649 days left",
    ]
    assert "--audit-log-path" in browser.text("[data-panel=audit]")
    kept = browser.text("[data-panel=memory] tbody")
    assert "all peers" in kept and "certificate:" in kept and "256MiB" in kept
    assert browser.complaints() == []


def test_its_policy_is_in_force(browser: Browser, feed: FakeFeed) -> None:
    # Otherwise "no violation" would say nothing.
    browser.page(feed.url)
    browser.js("document.body.setAttribute('style', 'color: red')")
    browser.js(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'x=1'}))"
    )
    browser.wait(lambda: len(browser.js("return window.__violations")) == 2, "both are violations")
    assert browser.js("return typeof x") == "undefined"
    browser.complaints()  # they were ours
    browser.js("window.__violations.length = 0")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_in_both_themes(browser: Browser, feed: FakeFeed, dark: bool) -> None:
    browser.page(feed.url, dark=dark, still=True)
    browser.wait_live()
    browser.click("#help-open")
    assert browser.js(CONTRAST) == []
    background = browser.js("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(15, 20, 19)" if dark else "rgb(243, 245, 243)")


def test_of_a_nodes_long_name_the_domain_is_cut_first(browser: Browser) -> None:
    scene = scenes.server(agents=2)
    scene.snapshot["agents"][0]["id"] = "ip-10-123-123-123.eu-central-1.compute.internal"
    cut = """
    const title = document.querySelector("#picture [title^=ip-10]");
    const words = document.createRange();
    return [...title.children].map((part) => {
      words.selectNodeContents(part);
      return words.getBoundingClientRect().width > part.getBoundingClientRect().width;
    });
    """
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        browser.wait(lambda: browser.all("#picture [title^=ip-10]"), "the agent is drawn")
        assert browser.js(cut) == [False, False, True]


def test_nobody_is_linked(browser: Browser) -> None:
    for scene, who in ((scenes.server(agents=0), "agent"), (scenes.agent_program(), "server")):
        scene.snapshot["links"] = []
        with FakeFeed(scene) as feed:
            browser.page(feed.url)
            browser.wait_live()
            said = f"No {who} linked."
            browser.wait(lambda said=said: browser.text("#peers-more") == said, said)
            assert browser.find("#peers-panel").is_displayed()


@pytest.mark.parametrize("kind", ["server", "agent", "hostile"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, kind: str) -> None:
    scene = scenes.agent_program() if kind == "agent" else scenes.server(agents=20)
    if kind == "hostile":
        long = "w" * 600
        scene.source["instance"] = scene.snapshot["agents"][0]["id"] = long
        scene.snapshot["tunnels"][0].update(requester=long, target=long, stalled=long)
        scene.snapshot["certificates"][0]["file"] = long
    with FakeFeed(scene) as feed:
        browser.page(feed.url, size=PHONE)
        browser.wait_live()
        browser.wait(lambda: browser.all("#tunnel-rows .row"), "the tunnels are drawn")
        assert browser.overflow() <= 0
        browser.js("document.querySelector('#tunnel-rows .row').click()")
        assert browser.find("#details").is_displayed()
        assert browser.overflow() <= 0
        # Everything that is in sight is within the page, and not cut by it.
        assert (
            browser.js(
                "return [...document.querySelectorAll('.tile, .panel, .node, .row, #details')]"
                ".filter((it) => it.checkVisibility())"
                ".filter((it) => it.getBoundingClientRect().right > document.body.clientWidth)"
                ".map((it) => it.className)"
            )
            == []
        )


def test_a_page_that_gets_narrower_becomes_so(browser: Browser) -> None:
    with FakeFeed(scenes.server(agents=3, tunnels=5)) as feed:
        browser.page(feed.url)
        browser.wait_live()
        for width in (1000, 600, 360):
            browser.resize(width, 780)
            feed.send("delta", feed.scenes[0].delta())
            browser.wait(lambda: browser.overflow() <= 0, f"it is {width} pixels wide")
        browser.driver.get("about:blank")


def test_a_program_that_leaves_something_out_costs_one_part_of_the_page(browser: Browser) -> None:
    scene = scenes.server(agents=2, tunnels=3)
    for agent in scene.snapshot["agents"]:
        del agent["identifiers"]
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        browser.wait(lambda: browser.text("#tunnel-count") == "3", "the tunnels are shown")
        browser.wait(lambda: browser.all("[data-panel=certificates]"), "and what is below")
        said = browser.complaints()
        browser.driver.get("about:blank")
    assert said and all("join" in line for line in said)
    browser.complaints()


def test_hostile_names_are_text_and_nothing_else(browser: Browser) -> None:
    scene = scenes.server(agents=3, tunnels=3)
    scene.source["instance"] = HOSTILE
    scene.snapshot["agents"][0].update(
        id=HOSTILE, identity=HOSTILE, zone=HOSTILE, identifiers=[HOSTILE], network=HOSTILE
    )
    scene.snapshot["links"][0]["peerId"] = HOSTILE
    scene.snapshot["networks"] = [{"name": HOSTILE, "way": "agents", "agents": 1}]
    for tunnel in scene.snapshot["tunnels"]:
        tunnel.update(target=HOSTILE, requester=HOSTILE, agentId=HOSTILE, stalled=HOSTILE)
        tunnel.update(frontend=HOSTILE, connectionId=HOSTILE, state="stalled")
    scene.snapshot["recentEndings"][0].update(target=HOSTILE, by=HOSTILE, ending=HOSTILE)
    scene.snapshot["certificates"][0]["file"] = HOSTILE
    scene.snapshot["relays"] = [scenes.relay(HOSTILE, "to", address=HOSTILE)]
    scene.snapshot["otherServers"] = [scenes.other_server(HOSTILE, HOSTILE, HOSTILE)]
    record = {"time": "2026-01-02T15:04:05Z", "stage": HOSTILE, "destination": HOSTILE}
    scene.audit = {"enabled": True, "records": [{**record, "requester": {"name": HOSTILE}}]}
    scene.history[-1]["failures"] = {HOSTILE: 3, "__proto__": 1}
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        browser.js("document.querySelector('#tunnel-rows .row').click()")
        browser.click("#details-end")
        assert browser.text("#end-to") == HOSTILE
        assert browser.text("#details-why") == HOSTILE
        assert HOSTILE in browser.texts(".node .title")
        assert HOSTILE in browser.text("[data-panel=audit]")
        assert browser.text("#installation-table tbody").count(HOSTILE) == 3
        browser.click("#end-no")
        found = "return document.querySelectorAll('img:not(.logo), main script').length"
        assert browser.js(found) == 0
        assert browser.js("return [window.owned, document.title]") == [
            None,
            f"server {HOSTILE} · Isthmus",
        ]


def test_an_agents_page_has_its_servers_and_its_nodes_traffic(browser: Browser) -> None:
    with FakeFeed(scenes.agent_program()) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert browser.text("#peers-title") == "Servers 2 of 3"
        assert browser.texts("#peers-table .badge-text") == ["linked", "stuck"]
        assert browser.texts(".node .title") == ["cp-1", "node-7", "Targets", "cp-2"]
        traffic = browser.text("[data-panel=node-traffic]")
        assert "no connected server carries connections from nodes" in traffic
        assert "172.20.0.1:6443" in traffic
        assert browser.texts("[data-panel=node-servers] .badge-text") == ["not supported"]
        assert "does not allow kube-apiserver:6443" in browser.text("[data-panel=node-failures]")
        assert browser.texts("[data-panel=certificates] .badge-text") == ["expired 5h ago"]
        assert browser.texts("[data-panel=endpoints] .first") == ["169.254.0.0/16", "10.0.0.0/8"]
        assert browser.texts("[data-panel=endpoints] .badge-text") == ["denied", "allowed"]


def test_200_agents_are_shown_by_zone_and_many_without_a_zone_are_counted(browser: Browser) -> None:
    scene = scenes.server(agents=200, tunnels=300)
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        zones = ["zone eu-1a", "zone eu-1b", "zone eu-1c"]
        assert sorted(set(browser.texts(".node .title")) & set(zones)) == zones
        assert browser.text("#peers-more").startswith("100 more agents")
        browser.js(
            "[...document.querySelectorAll('.node')].find((it) =>"
            " it.textContent.includes('zone eu-1b')).click()"
        )
        shown = int(browser.text("#tunnel-count").split(" of ")[0])
        carried = sum(it["tunnels"] for it in scene.snapshot["agents"] if it["zone"] == "eu-1b")
        assert shown == carried
        # The choice goes with its zone: another agent comes to it, with what it carries.
        moved = next(it for it in scene.snapshot["agents"] if it["zone"] == "eu-1a")
        moved["zone"] = "eu-1b"
        feed.send("delta", scene.delta(snapshot={"agents": scene.snapshot["agents"]}))
        more = f"{carried + moved['tunnels']} of 300"
        browser.wait(lambda: browser.text("#tunnel-count") == more, "the choice has more")
        for agent in scene.snapshot["agents"]:
            agent["zone"] = ""
        feed.send("delta", scene.delta(snapshot={"agents": scene.snapshot["agents"]}))
        browser.wait(lambda: "194 more" in browser.texts(".node .title"), "the rest is counted")


def test_charts_count_failures_by_reason_and_read_a_column(browser: Browser) -> None:
    scene = scenes.server()
    now = datetime.now(UTC)
    for back, step in enumerate(reversed(scene.history)):
        # A little early, a little late: no second of a busy machine is like another.
        late = 4.9 if back % 2 else 0
        step["time"] = scenes.rfc3339(now - timedelta(seconds=10 * back + late))
        step["failures"] = {}
    scene.history[-3]["failures"] = {"timed out": 4, "no agent available": 2, "new one": 1}
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        legend = "#charts .chart:last-child .legend"
        assert browser.text(legend) == "timed out4no agent available2other1"
        browser.find("#charts .chart:last-child .chart-box").click()
        browser.js("document.querySelector('#charts .chart:last-child .chart-box').focus()")
        label = "#charts .chart:last-child .chart-box"
        browser.keys("\ue014" * 100, "\ue012", "\ue012")  # the newest, and two to the left
        assert "timed out 4" in str(browser.find(label).get_attribute("aria-label"))
        browser.keys("\ue014")
        assert "timed out 0" in str(browser.find(label).get_attribute("aria-label"))
        browser.click("[data-range='3600']")
        browser.js("document.activeElement.blur()")
        assert "last hour" in browser.text("#charts")


def test_nothing_moves_its_place_from_one_second_to_the_next(
    browser: Browser, feed: FakeFeed
) -> None:
    browser.page(feed.url)
    browser.wait_live()
    places = (
        "return [...document.querySelectorAll('.tile, .panel, .node, .head .cell')]"
        ".map((it) => it.getBoundingClientRect()).map((it) => [it.x, it.y, it.width, it.height])"
    )
    before = browser.js(places)
    chance = random.Random(4)
    for _ in range(5):
        feed.send("delta", feed.scenes[0].moving(chance))
    dials = f"{feed.scenes[0].snapshot['totals']['dials']:,} total"
    browser.wait(lambda: browser.text("#sum-dials-note") == dials, "the last second is drawn")
    assert browser.js(places) == before


def test_reduced_motion_is_respected(browser: Browser, feed: FakeFeed) -> None:
    running = "return document.getAnimations().filter((it) => it.playState === 'running').length"
    for still in (False, True):
        browser.page(feed.url, still=still)
        browser.wait_live()
        chance = random.Random(2)

        def moves(chance: random.Random = chance) -> bool:
            feed.send("delta", feed.scenes[0].moving(chance, some=42))
            return bool(browser.all(".flow.quick, .flow.slow"))

        browser.wait(moves, "traffic is drawn")
        assert (browser.js(running) == 0) is still


@pytest.mark.parametrize("agents", [1, 6, 7])
def test_the_first_screen_has_tunnels_and_no_card_is_higher_than_its_content(
    browser: Browser, agents: int
) -> None:
    with FakeFeed(scenes.server(agents=agents)) as feed:
        browser.page(feed.url, size=(1366, 850))
        browser.wait_live()
        rows = "return [...document.querySelectorAll('#tunnel-rows .row:not([hidden])')]"
        browser.wait(lambda: browser.js(f"{rows}.length"), "the tunnels are drawn")
        whole = f"{rows}.filter((it) => it.getBoundingClientRect().bottom <= innerHeight).length"
        assert browser.js(whole) >= 4
        # Below the lowest of what the card of the picture has in it there is little left.
        unused = """
        const card = document.querySelector('[aria-labelledby=picture-title]');
        const nodes = [...card.querySelectorAll('.node')].map((it) => it.getBoundingClientRect());
        return card.getBoundingClientRect().bottom - Math.max(...nodes.map((it) => it.bottom));
        """
        assert browser.js(unused) < 60


def test_the_details_open_beside_the_row_and_in_sight(browser: Browser, feed: FakeFeed) -> None:
    for width, at in ((1366, 0), (1366, 8), (1150, 3)):
        browser.page(feed.url, size=(width, 850))
        browser.wait_live()
        browser.wait(lambda: len(browser.all("#tunnel-rows .row")) > 8, "the tunnels are drawn")
        browser.js("document.querySelectorAll('#tunnel-rows .row')[arguments[0]].click()", at)
        row, details = browser.js(
            "return ['#tunnel-rows [aria-selected=true]', '#details']"
            ".map((it) => document.querySelector(it).getBoundingClientRect().toJSON())"
        )
        assert details["left"] >= row["right"]
        assert details["top"] < row["bottom"] and row["top"] < details["bottom"]
        assert details["top"] >= 0 and details["bottom"] <= 850


def test_slow_is_not_stalled(browser: Browser) -> None:
    scene = scenes.server(agents=1, tunnels=3)
    for tunnel, state in zip(scene.snapshot["tunnels"], ("open", "slow", "stalled"), strict=True):
        why = {"slow": "", "stalled": "", state: "why" if state != "open" else ""}
        tunnel.update({"state": state, "slow": why["slow"], "stalled": why["stalled"]})
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert [browser.text("#sum-stalled"), browser.text("#sum-slow")] == ["1", "1"]
        colours = set()
        for state in ("stalled", "slow"):
            browser.click(f"#tile-{state}")
            assert browser.texts("#tunnel-rows .row:not([hidden]) .badge-text") == [state]
            colours |= set(
                browser.js(
                    "return ['.state .badge', '.state .why'].map((it) => getComputedStyle("
                    "document.querySelector(`#tunnel-rows .row:not([hidden]) ${it}`)).color)"
                )
            )
        assert len(colours) == 2  # one for each state, with its word and its reason
        pressed = "return [...document.querySelectorAll('.tile[aria-pressed=true]')]"
        browser.wait(
            lambda: browser.js(f"{pressed}.map((it) => it.id)") == ["tile-slow"], "only it"
        )


def test_a_servers_page_names_the_whole_installation_and_what_it_does_not_know(
    browser: Browser,
) -> None:
    scene = scenes.server(agents=2)
    scene.snapshot.update(
        serverCount=5,
        relays=[scenes.relay("cp-2", "to", agentCount=4), scenes.relay("cp-3", "from")],
        otherServers=[
            scenes.other_server("cp-2", address="10.0.0.2:8091"),
            scenes.other_server("cp-3"),
            scenes.other_server("cp-4", "flag", "10.0.0.4:8091"),
        ],
    )
    rows = "#installation-table tbody tr"
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert browser.text("#installation-title") == (
            "Installation 1 of 5 servers seen, 2 agents linked"
        )
        cells = [
            [cell.text for cell in row.find_elements("css selector", "td")]
            for row in browser.all(rows)
        ]
        unseen = "○\nknown, not seen"
        assert cells == [
            ["cp-1", "●\nready", "this page", "2", "this page", "–"],
            ["cp-2\n10.0.0.2:8091", unseen, "Lease, relay link", "4", "its report", "1.1ms"],
            ["cp-3", unseen, "Lease, relay link", "unknown", "–", "–"],
            ["cp-4\n10.0.0.4:8091", unseen, "--peer-server", "unknown", "–", "–"],
        ]
        said = browser.text("#installation-unknown")
        assert "1 more server counted, with unknown name" in said
        assert "3 servers not seen" in said and "isthmus dashboard" in said
    # Another server on the page is seen, and one that cannot be reached is listed with the reason.
    other = scenes.server(id="1", instance="cp-2", agents=3)
    gone = scenes.server(id="2", instance="cp-3")
    gone.lost = "10.0.0.3:8095 refused the connection"
    with FakeFeed(scene, other, gone) as feed:
        browser.page(feed.url)
        browser.wait_live()
        text = browser.texts(f"{rows} .badge-text")
        assert text == ["ready", "ready", "not reached", "known, not seen"]
        assert "refused the connection" in browser.texts(rows)[2]
        heads = browser.texts("#peers-table th")
        assert heads[2] == "Linked to"
        assert "cp-1, cp-2" in browser.texts("#peers-table tbody tr")[0]


def test_workers_of_one_server_are_one_row(browser: Browser) -> None:
    scene = scenes.server(agents=1)
    workers = [scenes.other_server(f"cp-1-{number}", "worker") for number in range(2)]
    scene.snapshot.update(serverCount=2, otherServers=workers)
    with FakeFeed(scene) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert browser.text("#installation-count") == "1 of 1 server seen, 1 agent linked"
        assert browser.text("#installation-unknown") == ""
    # Another server knows the workers by their Leases.
    other = scenes.server(id="1", instance="cp-2", agents=1)
    leased = [scenes.other_server(worker["serverId"]) for worker in workers]
    other.snapshot.update(serverCount=3, otherServers=leased)
    with FakeFeed(scene, other) as feed:
        browser.page(feed.url)
        browser.wait_live()
        assert browser.texts("#installation-table tbody .badge-text") == ["ready", "ready"]
