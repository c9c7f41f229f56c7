"""A headless Chromium, driven over a pipe by the DevTools protocol: messages of JSON, each ended by a
zero byte, on its file descriptors 3 and 4.

Everything waits for an answer or an event of the browser, never for a time.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_BINARIES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-US",
)
_PIPES = 'exec 3<&{read} 4>&{write}; exec "$@"'
_CLOSE_S = 60  # which takes a fraction of a second
_KEYS = {"Tab": 9, "Enter": 13, " ": 32}


def chromium_binary() -> str | None:
    """The path of a Chromium; None if there is none on PATH."""
    return next(filter(None, map(shutil.which, _BINARIES)), None)


@contextlib.contextmanager
def chromium(binary: str) -> Iterator["Tab"]:
    """A fresh browser with one empty tab, which ends with the block.

    Args:
        binary: The path of Chromium.
    """
    # As root Chromium has no sandbox. The pages are our own.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    to_read, to_write = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home:
        command = [binary, *_OPTIONS, *sandbox, f"--user-data-dir={home}", "about:blank"]
        pipes = _PIPES.format(read=to_read[0], write=to_write[1])
        process = subprocess.Popen(
            ["bash", "-c", pipes, "chromium", *command],
            pass_fds=(to_read[0], to_write[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": home, "TMPDIR": home},
            start_new_session=True,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        # Unbuffered, so that nothing is left to write to a browser that has ended.
        with open(to_read[1], "wb", 0) as requests, open(to_write[0], "rb") as answers:  # noqa: PTH123
            try:
                connection = _Connection(requests, answers)
                yield Tab(connection)
                connection.ask("Browser.close")
                process.wait(_CLOSE_S)
            finally:
                # After an error, or if it does not end by itself, with its helpers.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class _Connection:
    """Requests and their answers, one after the other; events that come in between are kept.

    Not for several threads.
    """

    def __init__(self, requests: Any, answers: Any) -> None:
        self._requests, self._answers = requests, answers
        self._unread = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            RuntimeError: The browser refuses, or has ended.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {} if session is None else {"sessionId": session}
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._requests.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: Chromium refuses: {answer['error']}")
        found: dict[str, Any] = answer["result"]
        return found

    def wait_for(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event of a kind, whether it has come or is yet to come."""
        for event in self.events:
            if is_it(event):
                return event
        while not is_it(event := self._next()):
            self.events.append(event)
        self.events.append(event)
        return event

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            read = self._answers.read1(1 << 20)
            if not read:
                raise RuntimeError("Chromium: expected an answer, found that it has ended")
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Tab:
    """One tab. Each `open` begins new lists of requests and messages."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        targets = connection.ask("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = connection.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Performance.enable", timeDomain="threadTicks")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a request about this tab and waits for its answer."""
        return self._connection.ask(method, self._session, **params)

    def open(self, path: Path) -> None:
        """Opens a file, and waits until it is loaded and has been drawn."""
        self._connection.events.clear()
        self.ask("Page.navigate", url=path.absolute().as_uri())
        self._connection.wait_for(lambda event: event.get("method") == "Page.loadEventFired")
        self.drawn()

    def drawn(self) -> None:
        """Waits until what the page is now has been drawn."""
        twice = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.value(f"{twice}.then(() => true)")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, awaited if it is a promise.

        Raises:
            RuntimeError: It throws.
        """
        found = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key: Tab, Enter or a space."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {" ": "Space"}.get(key, key)
        common = {"key": key, "code": code, "windowsVirtualKeyCode": _KEYS[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Enters text where the focus is, as a keyboard or a clipboard would."""
        self.ask("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Sets what the system prefers: `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def task_cpu_s(self) -> float:
        """The CPU time that the main thread has spent on the page since it was opened. The browser
        counts anew for each page.
        """
        metrics = self.ask("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    def requests(self) -> list[str]:
        """The URLs that the page asked for since it was opened, its own among them."""
        return [
            event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")
        ]

    def complaints(self) -> list[str]:
        """Errors that the page did not catch, and what the browser logged, such as a violated
        policy.
        """
        thrown = [
            event["params"]["exceptionDetails"]["text"]
            for event in self._of("Runtime.exceptionThrown")
        ]
        return thrown + [event["params"]["entry"]["text"] for event in self._of("Log.entryAdded")]

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self._connection.events if event.get("method") == method]
