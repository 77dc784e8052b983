"""A real Chromium without a window, and what tests do with it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
LIMIT_S = 20.0
DESKTOP = (1440, 1000)
PHONE = (360, 780)
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")

# Runs before anything of the page: what the policy forbade and what took long is remembered.
_WATCH = """
window.__violations = [];
window.__longTasks = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.__longTasks.push(Math.round(entry.duration));
}).observe({ type: "longtask", buffered: true });
"""


class Browser:
    """One Chromium. ``page`` opens a page; ``close`` ends the process."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.add_argument("--no-proxy-server")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.cdp("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def page(
        self, url: str, *, size: tuple[int, int] = DESKTOP, dark: bool = False, still: bool = False
    ) -> None:
        """Open an address in a page of this size."""
        self.resize(*size)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.cdp("Emulation.setEmulatedMedia", features=features)
        self._log()  # what is left of another test
        # So is the pointer: what is under it is not sorted anew.
        self.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.driver.get(url)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, which may be narrower than a window can be."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def close(self) -> None:
        """End it."""
        self.driver.quit()

    # Looking.

    def js(self, script: str, *args: object) -> Any:
        """Run a script in the page; ``return`` gives its value."""
        return self.driver.execute_script(script, *args)

    def find(self, selector: str) -> WebElement:
        """The first element of a selector."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[WebElement]:
        """Every element of a selector."""
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """What an element says, seen or not; empty where it is not there."""
        return str(
            self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        )

    def texts(self, selector: str) -> list[str]:
        """What all visible elements of a selector say, from top to bottom."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((it) => it.checkVisibility())"
            ".sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)"
            ".map((it) => it.textContent)",
            selector,
        )
        return found

    def wait(self, holds: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
        """Ask until it holds; fail with ``what`` when it never does."""
        deadline = time.monotonic() + limit_s
        while not (found := holds()):
            assert time.monotonic() < deadline, f"never happened: {what}; {self.complaints()}"
            time.sleep(0.02)
        return found

    def wait_live(self) -> None:
        """Wait until the page has its first picture."""
        self.wait(lambda: self.text("#live-text") == "live", "the page is live")
        self.wait(lambda: self.text("#sum-tunnels") != "–", "the first picture is drawn")

    def complaints(self) -> list[str]:
        """Errors of the console and violations of the policy, since the page was opened."""
        said = [str(entry["message"]) for entry in self._log() if entry["level"] != "INFO"]
        return said + list(self.js("return window.__violations ?? []"))

    def _log(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call] # selenium
        return found

    def overflow(self) -> int:
        """By how many pixels the page is wider than what can be seen."""
        # Not innerWidth: a phone zooms out until all of a page that is too wide can be seen.
        return int(
            self.js("const it = document.scrollingElement; return it.scrollWidth - it.clientWidth")
        )

    # Doing.

    def click(self, selector: str) -> None:
        """Click as a person does: what covers the element gets it."""
        self.find(selector).click()

    def keys(self, *keys: str) -> None:
        """Type to whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.js("return document.activeElement.id"))
