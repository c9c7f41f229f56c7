"""Dispatch servers in processes of their own, which tests stop, kill and start again."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.dispatch.stores.endpoint import TCP, TORCH, parse_endpoint
from featstore.dispatch.stores.server import serve_until_signal
from tests.programs import free_ports

KINDS = (TCP, TORCH)
# Servers are forks of a process that has imported this module and does nothing else: so none imports
# torch, and none is a fork of the tests' process, whose other threads may hold locks at that moment.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class ServerProcess:
    """A store served at a free port or at the given one, until the end of a `with` block.

    Args:
        kind: `tcp` is featstore's server, `torch` is torch's TCPStore.
        port: The port.
        **options: Of featstore's server: its file, its certificate.
    """

    def __init__(self, kind: str = TCP, port: int = 0, **options: Any) -> None:
        address, sender = _FORKS.Pipe(duplex=False)
        self.kind, self.options = kind, options
        self.process = _FORKS.Process(target=_serve, args=(kind, port, options, sender))
        with address, sender:
            self.process.start()
            assert address.poll(60), f"no server after 60 s: {self.process}"
            self.url = address.recv()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def stop(self) -> None:
        """Stops the process; returns when it has stopped, since it may answer until then."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        while not all(map(_is_stopped, Path(f"/proc/{self.process.pid}/task").glob("*/stat"))):
            time.sleep(0.001)

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def again(self) -> "ServerProcess":
        """Another server at the same port, with the same file."""
        return ServerProcess(self.kind, parse_endpoint(self.url).port, **self.options)


def _is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


def _serve(kind: str, port: int, options: dict[str, Any], sender: Connection) -> None:
    if kind == TCP:
        serve_until_signal("127.0.0.1", port, sender.send, **options)
        return
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    sender.send(f"{TORCH}://127.0.0.1:{server.port}")
    signal.pause()


def free_url(kind: str) -> str:
    """A URL at which nobody listens."""
    return f"{kind}://127.0.0.1:{free_ports(1)[0]}"
