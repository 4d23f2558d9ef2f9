"""The documentation site in a browser, as ``make docs`` left it: pages fit, search finds, nothing is from elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = [
    "index",
    "how",
    "train",
    "tour",
    "layers",
    "pretrained",
    "which",
    "semantics",
    "api/index",
    "api/nn",
    "changelog",
]
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """No line for each request."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def resize(browser: Any, width: int, dark: bool) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_loads_nothing_from_elsewhere(page: str, browser: Any, address: str) -> None:
    for width, dark in ((1400, False), (390, True)):
        resize(browser, width, dark)
        browser.get(f"{address}/{page}.html")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map((x) => x.name)")
        assert loaded
        assert [name for name in loaded if not name.startswith((address, "data:", "blob:"))] == []
        scheme = browser.execute_script("return document.body.getAttribute('data-md-color-scheme')")
        assert scheme == ("slate" if dark else "default")
        assert browser.get_log("browser") == []


def test_search_finds_a_name(browser: Any, address: str) -> None:
    resize(browser, 1400, dark=False)
    browser.get(f"{address}/index.html")
    browser.find_element("css selector", ".md-search__input").send_keys("TokenPool")
    for _ in range(100):
        found = browser.find_elements("css selector", ".md-search-result__link")
        if found:
            break
        time.sleep(0.1)
    assert any("api/nn.html" in each.get_attribute("href") for each in found)


def test_the_explorer_is_inside_of_a_page(browser: Any, address: str) -> None:
    resize(browser, 1400, dark=False)
    browser.get(f"{address}/how.html")
    frame = browser.find_element("css selector", "iframe.explorer")
    browser.execute_script("arguments[0].scrollIntoView()", frame)
    browser.switch_to.frame(frame)
    for _ in range(100):
        if browser.find_elements("css selector", "#presets button"):
            break
        time.sleep(0.1)
    assert browser.find_element("css selector", "h1").text == "Knockout explorer"
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []
