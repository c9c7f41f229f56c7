"""A peer's program, in processes of its own."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare_parts.job import Job
from shared_parts.process_tree import tree_pss_bytes

_HERE = Path(__file__).parents[1]
_LONGEST_S, _EVERY_S = 900.0, 0.1
_QUIET = {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


class PeerError(Exception):
    """A peer's process ended with an error: the last line that it wrote."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A running process, whose standard error is a file."""

    popen: "subprocess.Popen[str]"
    errors: Any

    def told(self, begin: str) -> str:
        """The next line that begins so; others are the peer's own.

        Raises:
            PeerError: The process ended before.
        """
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(begin):
                return line
        self.popen.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        raise PeerError(lines[-1] if lines else f"exit code {self.popen.returncode}")

    def tell(self) -> None:
        """Writes an empty line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()


@dataclass(frozen=True, kw_only=True)
class Program:
    """Starts processes of a peer.

    Attributes:
        peer: Its name.
        python: Its interpreter.
    """

    peer: str
    python: str

    def run(self, do: str, job: Job, **asked: Any) -> dict[str, Any]:
        """What a process tells, and "pss_bytes", the most memory that it and those below it had at
        once, if it is sampled (`watch`).
        """
        watch, peak = asked.pop("watch", False), 0
        with self.started(do, job, began_s=time.time(), **asked) as process:
            until = time.monotonic() + _LONGEST_S
            while process.popen.poll() is None and time.monotonic() < until:
                peak = max(peak, tree_pss_bytes(process.popen.pid) if watch else 0)
                time.sleep(_EVERY_S)
            found: dict[str, Any] = json.loads(process.told("{"))
        return found | {"pss_bytes": peak}

    @contextlib.contextmanager
    def started(
        self, do: str, job: Job, *, environment: Mapping[str, str] | None = None, **asked: Any
    ) -> Iterator[Process]:
        """A process that is killed at the end of the block."""
        told = {"peer": self.peer, "do": do, "job": asdict(job), **asked}
        path = os.pathsep.join(map(str, (_HERE, _HERE.parent)))
        threads = {"OMP_NUM_THREADS": str(job.num_cores), "POLARS_MAX_THREADS": str(job.num_cores)}
        with tempfile.TemporaryFile("w+") as errors:
            popen = subprocess.Popen(
                [self.python, "-m", "compare_parts.child", json.dumps(told)],
                env=os.environ | _QUIET | threads | {"PYTHONPATH": path} | dict(environment or {}),
                cwd=job.scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            try:
                yield Process(popen=popen, errors=errors)
            finally:
                popen.kill()
                popen.communicate()
