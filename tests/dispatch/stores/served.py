"""Dispatch servers in processes of their own, which tests stop, kill and start again."""

import gc
import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.dispatch.stores.endpoint import TCP, TORCH, parse_endpoint
from featstore.dispatch.stores.server import serve_until_signal

KINDS = (TCP, TORCH)
_FORK = multiprocessing.get_context("fork")


class ServerProcess:
    """A store served at a free port or at the given one, until the end of a `with` block. The
    process is forked so that it need not import torch.

    Args:
        kind: `tcp` is featstore's server, `torch` is torch's TCPStore.
        port: The port.
        file: The server's file.
    """

    def __init__(self, kind: str = TCP, port: int = 0, file: Path | None = None) -> None:
        address, sender = _FORK.Pipe(duplex=False)
        self.kind, self.file = kind, file
        self.process = _FORK.Process(target=_serve, args=(kind, port, file, sender.send))
        self.process.start()
        self.url = address.recv()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def stop(self) -> None:
        """Stops the process; returns when it has stopped, since it may answer until then."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def again(self) -> "ServerProcess":
        """Another server at the same port, with the same file."""
        return ServerProcess(self.kind, parse_endpoint(self.url).port, self.file)


def _serve(kind: str, port: int, file: Path | None, on_ready: Any) -> None:
    # What the tests' process left is not this one's to free: clients of stores wait for threads
    # that are not here.
    gc.freeze()
    if kind == TCP:
        serve_until_signal("127.0.0.1", port, on_ready, file=file)
        return
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    on_ready(f"{TORCH}://127.0.0.1:{server.port}")
    signal.pause()


def free_url(kind: str) -> str:
    """A URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"{kind}://127.0.0.1:{free.getsockname()[1]}"
