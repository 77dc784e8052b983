"""axe-core, the accessibility checker: installed once from npm, and run in an open page."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser import Browser

PACKAGE = Path(__file__).parent / "npm"
INSTALL_S = 300

_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations, passes }) => done({
    passes: passes.length,
    found: violations.map(({ id, impact, help, nodes }) => ({
      id, impact, help, nodes: nodes.slice(0, 5).map(({ html }) => html.slice(0, 200)),
    })),
  }),
  (error) => done({ error: String(error) }),
);
"""


def axe_source() -> str:
    """The script of axe-core, from the user's cache; skips the test, with the reason, without."""
    lock = (PACKAGE / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "isthmus" / "browser" / hashlib.sha256(lock).hexdigest()[:16]
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        _install(folder)
    return script.read_text(encoding="utf-8")


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the dashboard is not checked with axe-core")
    # A folder of its own: two test processes may install at the same time.
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.copytree(PACKAGE, fresh)
    try:
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=fresh,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
        if done.returncode:
            pytest.skip(f"axe-core could not be installed: {done.stderr.strip()[-300:]}")
        if not folder.exists():
            fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def findings(browser: Browser, source: str) -> list[dict[str, Any]]:
    """Check the open page as it is now; every finding, of whatever impact."""
    # By the debugger, which the page's policy does not bind.
    browser.js(f"if (!window.axe) {{ {source} }}")
    browser.driver.set_script_timeout(60)
    result: dict[str, Any] = browser.driver.execute_async_script(_RUN)
    assert "error" not in result, result
    assert result["passes"] > 10  # it did look
    found: list[dict[str, Any]] = result["found"]
    return found
