"""A headless Chromium that tests drive through its DevTools, over a pipe: nothing to install.

Tests that use it are skipped where no Chromium is found.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_WAIT_S = 60.0


def find_browser():
    """Return the path of a Chromium, or skip the test."""
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip(f"no browser is here: {', '.join(_NAMES)}")


class Page:
    """A tab. `problems` has the errors and warnings that its console showed."""

    def __init__(self, browser, width, height, *, touch=False):
        self._browser, self.problems = browser, []
        target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        browser.pages[self._session] = self
        for name in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{name}.enable")
        self.resize(width, height, touch=touch)

    def call(self, method, parameters=None):
        return self._browser.call(method, parameters, self._session)

    def resize(self, width, height, *, touch=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", size)
        self.call("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    def open(self, address):
        self.call("Page.bringToFront")  # pages behind others draw nothing and feel no finger
        self.call("Page.navigate", {"url": address})
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script):
        """Return the value of an expression; promises are awaited."""
        found = self.call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script):
        """Wait until an expression is true."""
        deadline = time.monotonic() + _WAIT_S
        while not self.run(script):
            assert time.monotonic() < deadline, (script, self.problems)
            time.sleep(0.02)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def box(self, selector):
        """Return left, top, width, height of an element in the window, which scrolls to it."""
        return self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )

    def click(self, selector, x=0.5, y=0.5):
        """Click at a part of the width and height of an element."""
        left, top, width, height = self.box(selector)
        place = {"x": left + x * width, "y": top + y * height, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", **place, "button": "none"})
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", {"type": kind, **place})

    def drag_finger(self, selector, dx, dy):
        """Move one finger from the middle of an element."""
        left, top, width, height = self.box(selector)
        x, y = left + width / 2, top + height / 2

        def touch(kind, points):
            self.call("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", [{"x": x, "y": y}])
        for i in range(1, 11):
            touch("touchMove", [{"x": x + i * dx / 10, "y": y + i * dy / 10}])
        touch("touchEnd", [])

    def type(self, text):
        self.call("Input.insertText", {"text": text})

    def press(self, key, *, text=None):
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key}
            if text and kind == "keyDown":
                event["text"] = text
            self.call("Input.dispatchKeyEvent", event)

    def screenshot(self, path, *, whole=False):
        found = self.call("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))

    def hear(self, method, parameters):
        """Note what the console would show, and what would be loaded from elsewhere."""
        if method == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            if "GL Driver Message" not in parameters["entry"]["text"]:  # of drawing in software
                self.problems.append(parameters["entry"])
        elif method == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            here = ("data:", "file:", "blob:", "about:", "http://127.0.0.1:")
            if not address.startswith(here):
                self.problems.append(address)


class Browser:
    """Chromium and its pipe."""

    def __init__(self, process, to_browser, from_browser):
        self._process, self._to, self._from = process, to_browser, from_browser
        self._numbers, self._rest, self.pages = itertools.count(1), b"", {}

    def call(self, method, parameters=None, session=None):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            page = self.pages.get(answer.get("sessionId"))
            if page is not None and "method" in answer:
                page.hear(answer["method"], answer["params"])

    def _read(self):
        deadline = time.monotonic() + _WAIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            more = os.read(self._from, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def page(self, width=1400, height=900, *, touch=False):
        return Page(self, width, height, touch=touch)


@contextmanager
def open_browser():
    """Start a browser, and end it."""
    path = find_browser()
    to_browser, from_browser = os.pipe(), os.pipe()

    def connect():  # DevTools reads from 3 and writes to 4
        read, write = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [
                *(path, "--headless=new", "--no-sandbox", "--remote-debugging-pipe"),
                *("--disable-dev-shm-usage", "--enable-unsafe-swiftshader", "--hide-scrollbars"),
                *("--no-first-run", f"--user-data-dir={folder}", "about:blank"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Browser(process, to_browser[1], from_browser[0])
        finally:
            process.terminate()
            process.wait(timeout=30)
            os.close(to_browser[1])
            os.close(from_browser[0])
