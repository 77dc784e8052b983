"""The same page for the programs that have no agents: SNI router, apiserver proxy, sidecars."""

from __future__ import annotations

from pathlib import Path

import apiserver_bed
import sni_bed
from browser import Browser
from clients import echo_target, free_port
from proxies_bed import ProxiesBed, open_socks5
from stack import Stack

from isthmus.tools.pki.making import PkiFiles


def page_of(port: int) -> str:
    return f"http://127.0.0.1:{port}/ui/"


def test_an_sni_router_shows_its_routes(browser: Browser, tmp_path: Path) -> None:
    with (
        sni_bed.Tenant("shop", tmp_path) as tenant,
        sni_bed.Bed(tmp_path, {"shop": tenant}) as bed,
    ):
        browser.page(page_of(bed.start().admin_port))
        browser.wait_live()
        assert "sni-router" in browser.driver.title
        assert "shop" in browser.texts(".node .title")
        routes = browser.text("[data-panel=routes]")
        assert "*.shop.example" in routes
        assert tenant.address in routes
        assert not browser.find("#peers-panel").is_displayed()
        with bed.tls("shop"):
            browser.wait(lambda: browser.text("#tunnel-count") == "1", "a tunnel is shown")
            browser.js(
                "[...document.querySelectorAll('.node')]"
                ".find((it) => it.textContent.includes('shop')).click()"
            )
            assert browser.text("#filter-label") == "route shop"
            assert browser.text("#tunnel-count") == "1"
        browser.driver.get("about:blank")


def test_an_apiserver_proxy_shows_its_upstreams(
    browser: Browser, certificates: PkiFiles, tmp_path: Path
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with (
        apiserver_bed.Upstream(certificates) as upstream,
        apiserver_bed.Bed(tmp_path, certificates) as bed,
    ):
        browser.page(page_of(bed.start(upstream.address, gone).admin_port))
        browser.wait_live()
        assert {upstream.address, gone} <= set(browser.texts(".node .title"))
        states = "[data-panel=upstreams] .badge-text"
        browser.wait(lambda: browser.texts(states) == ["up", "down"], "one of them is down")
        assert len(browser.all(".node.bad")) == 1
        browser.driver.get("about:blank")


def test_a_sidecar_shows_its_server_and_its_names(
    browser: Browser, fresh: Stack, tmp_path: Path
) -> None:
    fresh.add_server()
    fresh.add_agent()
    with ProxiesBed(fresh, tmp_path) as bed, echo_target() as target:
        sidecar = bed.socks5()
        browser.page(page_of(sidecar.admin_port))
        browser.wait_live()
        assert "socks5-proxy" in browser.driver.title
        assert browser.all("[data-panel=names]")
        with open_socks5(sidecar, "127.0.0.1", target.port):
            browser.wait(lambda: browser.text("#tunnel-count") == "1", "its tunnel is shown")
            assert target.name in browser.text("#tunnel-rows")
        browser.driver.get("about:blank")
