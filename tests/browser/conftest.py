"""Debian's chromium, driven by selenium. The tests are skipped where one of them is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium here: apt install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options=options, service=ChromeService(DRIVER))
    yield started
    started.quit()
