"""Headless Chromium, for tests of the pages; see the fixture `browser`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
)  # fmt: skip


@contextmanager
def launched() -> "Iterator[Browser]":
    """Skips the test where there is no Chromium or no Playwright."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt install chromium")
    playwright_api = pytest.importorskip("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=list(QUIET))


@contextmanager
def opened(
    browser: "Browser",
    address: str,
    *,
    width: int = 1200,
    scheme: Literal["light", "dark"] = "light",
) -> "Iterator[Page]":
    """The page in a new window. Any error of its script fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(address)
    yield page
    page.close()
    assert errors == []
