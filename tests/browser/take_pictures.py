"""Takes the pictures of the dashboard in docs/pictures, from a feed that is always the same.

Run it after a change of the page: ``make pictures``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import scenes  # found by the line above
from browser import Browser
from fake_feed import FakeFeed

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHOTS = {
    "desktop-light": {"size": (1366, 850), "dark": False},
    "desktop-dark": {"size": (1366, 850), "dark": True},
    "phone-light": {"size": (390, 844), "dark": False},
    "phone-dark": {"size": (390, 844), "dark": True},
}
SECONDS = 45


def busy_server() -> scenes.Scene:
    """A server with something to see: an agent that drains, a tunnel that is stalled."""
    scene = scenes.server(agents=6, tunnels=42, seed=11)
    scene.snapshot["agents"][2]["draining"] = True
    scene.snapshot["links"][2]["state"] = "draining"
    scene.snapshot["relays"] = [scenes.relay("cp-2", "to"), scenes.relay("cp-2", "from")]
    scene.snapshot["serverCount"] = 3
    scene.snapshot["otherServers"] = [
        scenes.other_server("cp-2", address="10.0.0.12:8091"),
        scenes.other_server("cp-3"),
    ]
    return scene


def take(browser: Browser, name: str, size: tuple[int, int], dark: bool) -> Path:
    """Take one picture, after some seconds of traffic."""
    scene = busy_server()
    chance = random.Random(3)
    with FakeFeed(scene) as feed:
        browser.page(feed.url, size=size, dark=dark, still=True)
        browser.wait_live()
        for _ in range(SECONDS):
            feed.send("delta", scene.moving(chance, some=chance.randrange(6, 16)))
        said = f"{scene.snapshot['totals']['dials']:,} total"
        browser.wait(lambda: browser.text("#sum-dials-note") == said, "the last second is drawn")
        if size[0] > 900:
            browser.click("[data-sort=state] button")
            browser.js("document.activeElement.blur(); scrollTo(0, 0)")
        file = PICTURES / f"dashboard-{name}.png"
        browser.driver.save_screenshot(str(file))
        if name == "desktop-light":
            browser.js("document.querySelector('#tunnel-rows .row').click()")
            browser.driver.save_screenshot(str(PICTURES / "dashboard-details.png"))
            browser.click("#details-close")
            browser.js("document.querySelector('#installation').scrollIntoView()")
            browser.driver.save_screenshot(str(PICTURES / "dashboard-installation.png"))
    return file


def main() -> None:
    """Take them all."""
    browser = Browser()
    try:
        for name, shot in SHOTS.items():
            file = take(browser, name, **shot)  # type: ignore[arg-type] # a table of keywords
            print(f"{file.name}: {file.stat().st_size // 1000} kB")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
