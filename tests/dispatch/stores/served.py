"""A dispatch server in a process of its own, which tests stop, kill and start again."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.stores.server import serve_until_signal

FORK = multiprocessing.get_context("fork")


def _serve(port: int, file: Path | None, on_ready: Any) -> None:
    serve_until_signal("127.0.0.1", port, on_ready, file=file)


class ServerProcess:
    """A store served at a free port or at the given one, until the end of a `with` block."""

    def __init__(self, port: int = 0, file: Path | None = None) -> None:
        address, sender = FORK.Pipe(duplex=False)
        self.file = file
        self.process = FORK.Process(target=_serve, args=(port, file, sender.send))
        self.process.start()
        self.url = address.recv()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def stop(self) -> None:
        """Stops the process; returns when it has stopped."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def again(self) -> "ServerProcess":
        """Another server at the same port, with the same file."""
        return ServerProcess(parse_endpoint(self.url).port, self.file)
