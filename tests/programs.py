"""Python programs that tests run in processes of their own."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

CLI = "from featstore.tools.cli import console; console()"
JOB = ("--rdzv-id", "job-1")
LIMIT_S = 900.0  # against hanging: a busy machine may take six times as long as an idle one
# Below those that Linux gives to whoever asks for any: nobody takes one before it is used.
_PORTS = range(12_000, 32_000)


def free_ports(number: int) -> list[int]:
    """So many ports on which nothing listens now."""
    found = list[int]()
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == number:
            return found
    raise AssertionError(f"expected {number} free ports, found {found}")


def command_of(program: str | Path, *arguments: object, warnings: str = "") -> list[str]:
    """The command of a program, which is code or the path of a script."""
    start = [sys.executable, *(["-W", warnings] if warnings else [])]
    start += [str(program)] if isinstance(program, Path) else ["-c", program]
    return [*start, *map(str, arguments)]


def run_python(
    program: str | Path,
    *arguments: object,
    status: int | None = 0,
    variables: Mapping[str, str] | None = None,
    warnings: str = "",
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, which must have this status unless it is None. `variables` are
    added to the environment.
    """
    command = command_of(program, *arguments, warnings=warnings)
    return _run(command, status=status, variables=variables, **how)


def run_with(
    python: Path, script: Path, *arguments: object, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a script by another interpreter to its end, which must have the status 0."""
    return _run([python, script, *map(str, arguments)], status=0, variables=variables)


def run_on_host(host: str, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end as process 1 of a host of this name, as in a container."""
    spaces = ["unshare", "--uts", "--pid", "--fork", "--mount-proc"]
    spaces += [] if os.geteuid() == 0 else ["--map-root-user"]
    if shutil.which("unshare") is None or subprocess.call(
        [*spaces, "true"], stderr=subprocess.DEVNULL
    ):
        pytest.skip("no namespaces of its own: the system does not let this user make any")
    named = f"import socket\nsocket.sethostname({host!r})\n{program}"
    return _run([*spaces, *command_of(named, *arguments)], status=0, variables=None)


def _run(
    command: Sequence[str | Path],
    *,
    status: int | None,
    variables: Mapping[str, str] | None,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    done = to_its_end(command, **{"env": os.environ | dict(variables or {})} | how)
    assert status in (None, done.returncode), f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def to_its_end(
    command: Sequence[str | Path], *, timeout: float | None = LIMIT_S, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. If that takes too long it is killed with all that it has started,
    which would take time from the tests after this one.
    """
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes | how) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            kill_with_children(psutil.Process(process.pid))
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def kill_with_children(process: psutil.Process) -> None:
    """Kills a process and all that it has started, also in sessions of their own."""
    all_of_them = [process, *process.children(recursive=True)]
    for one in all_of_them:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(all_of_them, timeout=10)


class Program(subprocess.Popen[str]):
    """A program that runs, with pipes of text. At the end of a `with` block it is killed if it
    still runs. `within` is a command that runs the one that follows it.
    """

    def __init__(
        self,
        program: str | Path,
        *arguments: object,
        variables: Mapping[str, str] | None = None,
        warnings: str = "",
        within: Sequence[str] = (),
        **how: Any,
    ) -> None:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        super().__init__(
            [*within, *command_of(program, *arguments, warnings=warnings)],
            env=os.environ | dict(variables or {}),
            text=True,
            **pipes | how,
        )

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)

    def line(self) -> str:
        """The next line of its output."""
        assert self.stdout is not None
        return self.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Gives it an empty line."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()

    def result(self, said: str = "", *, status: int = 0, timeout_s: float = LIMIT_S) -> str:
        """The rest of its output, once it has ended with this status."""
        out, errors = self.communicate(said, timeout=timeout_s)
        assert self.returncode == status, errors
        return out

    def die(self) -> None:
        """Is killed, and must not have ended before."""
        self.kill()
        self.result(status=-signal.SIGKILL)


def start_together(programs: Sequence[Program]) -> None:
    """Lets programs go on at one moment, once all have said that they are ready."""
    for program in programs:
        assert program.line() == "ready", program.communicate()[1]
    for program in programs:
        program.go_on()


def torchrun(
    script: Path, *arguments: object, num_processes: int = 2, settings: Sequence[str] = JOB
) -> subprocess.CompletedProcess[str]:
    """A job of one host; torchrun keeps a store, unless told not to."""
    job = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_processes)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *settings]
    command = [sys.executable, *job, *meeting, str(script), *map(str, arguments)]
    return to_its_end(command)
