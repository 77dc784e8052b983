"""The page read by axe-core: labels, roles, contrast and focus, in both themes and two widths."""

from __future__ import annotations

import pytest
import scenes
from axe import axe_source, findings
from browser import Browser
from fake_feed import FakeFeed
from selenium.webdriver.common.keys import Keys

SIZES = {"desktop": (1366, 850), "phone": (390, 844)}


@pytest.fixture(scope="module")
def axe() -> str:
    return axe_source()


def a_server() -> list[scenes.Scene]:
    """With everything that a server can show: stalled and slow tunnels, relays, other servers."""
    scene = scenes.server(agents=6, tunnels=42, seed=11)
    scene.snapshot["agents"][2]["draining"] = True
    scene.snapshot["links"][2]["state"] = "draining"
    scene.snapshot["links"][3]["state"] = "stuck"
    scene.snapshot["relays"] = [scenes.relay("cp-2", "to"), scenes.relay("cp-3", "from")]
    scene.snapshot.update(serverCount=4, otherServers=[scenes.other_server("cp-2")])
    scene.snapshot["networks"] = [{"name": "tenant-a", "way": "agents", "agents": 6}]
    record = {"time": "2026-01-02T15:04:05Z", "stage": "Begin", "destination": "10.0.0.1:443"}
    scene.audit = {"enabled": True, "records": [record, {**record, "stage": "Refused"}]}
    return [scene]


def several() -> list[scenes.Scene]:
    """Two servers, an agent, and a server that cannot be reached."""
    lost = scenes.server(id="3", instance="cp-3", agents=0, tunnels=0)
    lost.lost = "http://192.0.2.3:8095: connection refused"
    return [
        scenes.server(id="0", instance="cp-1", agents=4, tunnels=12),
        scenes.server(id="1", instance="cp-2", agents=4, tunnels=12, seed=4),
        scenes.agent_program(id="2"),
        lost,
    ]


def open_details(browser: Browser) -> None:
    browser.click("[data-sort=state] button")  # the first is stalled, and says why
    browser.js("document.querySelector('#tunnel-rows .row').click()")
    assert browser.find("#details").is_displayed()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_servers_page_has_no_findings(browser: Browser, axe: str, size: str, dark: bool) -> None:
    with FakeFeed(*a_server()) as feed:
        browser.page(feed.url, size=SIZES[size], dark=dark, still=True)
        browser.wait_live()
        open_details(browser)
        check(browser, axe)
        browser.js("document.querySelector('#details-end').click()")
        assert browser.find("#end-dialog").is_displayed()
        check(browser, axe)
        browser.click("#end-no")
        browser.keys(Keys.ESCAPE)
        browser.js("document.querySelector('#tile-slow').click()")
        browser.js("document.querySelector('#charts .chart-box').focus()")
        browser.keys(Keys.ARROW_LEFT)
        check(browser, axe)
        browser.js("document.querySelector('#help-open').click()")
        assert browser.find("#help-dialog").is_displayed()
        check(browser, axe)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_other_pages_have_no_findings(browser: Browser, axe: str, size: str, dark: bool) -> None:
    for made in ([scenes.agent_program()], several()):
        with FakeFeed(*made) as feed:
            browser.page(feed.url, size=SIZES[size], dark=dark, still=True)
            browser.wait_live()
            check(browser, axe)
    with FakeFeed(scenes.server()) as feed:
        feed.token = "right"
        browser.page(feed.url, size=SIZES[size], dark=dark, still=True)
        browser.wait(lambda: browser.find("#token-dialog").is_displayed(), "a token is asked for")
        browser.complaints()  # the console names the status 401
        check(browser, axe)


def test_a_button_without_a_name_would_be_found(browser: Browser, axe: str) -> None:
    with FakeFeed(scenes.server()) as feed:
        browser.page(feed.url, still=True)
        browser.wait_live()
        browser.js(
            "const it = document.querySelector('#help-open');"
            "it.textContent = ''; it.removeAttribute('aria-label'); it.removeAttribute('title')"
        )
        found = {one["id"]: one["impact"] for one in findings(browser, axe)}
    assert found == {"button-name": "critical"}


def check(browser: Browser, axe: str) -> None:
    assert findings(browser, axe) == []
