"""A server and a browser for the tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.console.browser import MISSING, PROGRAM, Browser, Page
from tests.http.conftest import http, module_db, name, server

__all__ = ["http", "module_db", "name", "server"]
HTML = {"accept": "text/html"}


@pytest.fixture
def web(http: httpx.Client) -> httpx.Client:
    """A client that asks for pages, as a browser does."""
    http.headers.update({"accept": "text/html", "sec-fetch-site": "same-origin"})
    return http


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    running = Browser()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def tab(browser: Browser) -> Page:
    return browser.page()
