"""Debian's chromium, driven over its DevTools pipe: no driver to install, no port to open."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
MISSING = "chromium is missing: apt-get install chromium"
_PATIENCE = 30.0
_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-proxy-server",
)  # fmt: skip


class BrowserError(Exception):
    """The browser refused a command, or a script of ours failed in it."""


class Browser:
    """A chromium process. Commands and events are JSON, each ended by a null byte."""

    def __init__(self) -> None:
        assert PROGRAM is not None, MISSING
        self._home = tempfile.mkdtemp(prefix="trunkline-chromium-")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        # chromium reads commands from file 3 and writes to file 4; dash knows files up to 9 only
        pipes = f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", pipes, PROGRAM, *_SWITCHES, f"--user-data-dir={self._home}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(read_end, write_end), start_new_session=True,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Run a command and return its result."""
        with self._changed:
            self._number += 1
            number = self._number
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers, _PATIENCE):
                raise BrowserError(f"{method} was not answered")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _listen(self) -> None:
        rest = b""
        while part := os.read(self._read, 1 << 20):
            *whole, rest = (rest + part).split(b"\0")
            for text in whole:
                message = json.loads(text)
                with self._changed:
                    if "id" in message:
                        self._answers[message["id"]] = message
                    elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                        page.heard(message["method"], message["params"])
                    self._changed.notify_all()

    def page(self, *, width: int = 1440, height: int = 1100, dark: bool = False, scripts: bool = True) -> Page:
        """Open a tab with cookies of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        return self.tab(context, width=width, height=height, dark=dark, scripts=scripts)

    def tab(self, context: str, *, width: int = 1440, height: int = 1100, dark: bool = False, scripts: bool = True) -> Page:
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        page.send(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )
        page.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        return page

    def close(self) -> None:
        os.close(self._write)
        self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)


class Page:
    """A tab. `errors` has what its console said: script errors and violations of the content security policy."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self.context = context
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loads = 0

    def heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def go(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        with self.loading():
            self.send("Page.navigate", url=url)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Wait for the page that the block opens."""
        before = self._loads
        yield
        self._until(lambda: self._loads > before, "the page to load")
        # the address may redirect, and scripts may be off
        self._until(lambda: self.run("document.readyState") == "complete", "the page to be complete")

    def run(self, script: str) -> Any:
        """Return the value of an expression; of a promise, its result."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        self._until(lambda: bool(self.run(script)), script)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise BrowserError(f"timed out waiting for {what}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        self.run(f"{{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select?.(); }}")
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False) -> None:
        text = "" if control or len(key) > 1 else key
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                modifiers=2 if control else 0,
                **({"text": text} if text else {}),
            )

    def text(self, selector: str = "body") -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def screenshot(self, path: Path) -> None:
        """Store a picture of the whole page."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))
