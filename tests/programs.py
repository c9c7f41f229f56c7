"""Python programs that tests run in processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

CLI = "from featstore.cli import main; main()"


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
    how = {"env": os.environ | dict(variables or {}), "timeout": 300} | how
    command = command_of(program, *arguments, warnings=warnings)
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert status in (None, done.returncode), f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


class Program:
    """A program that runs, with pipes of text. At the end of a `with` block it is killed, if it
    still runs.
    """

    def __init__(self, program: str | Path, *arguments: object, **how: Any) -> None:
        variables, warnings = how.pop("variables", {}), how.pop("warnings", "")
        self.process = subprocess.Popen(
            command_of(program, *arguments, warnings=warnings),
            env=os.environ | variables,
            text=True,
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | how,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Gives it an empty line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def output(self, said: str = "", *, status: int | None = 0, timeout_s: float = 120) -> str:
        """The rest of its output, at the end, which must have this status unless it is None."""
        out, errors = self.process.communicate(said, timeout=timeout_s)
        assert status in (None, self.process.returncode), errors
        return out

    def kill(self) -> None:
        """Kills it, which must not have ended before."""
        self.process.send_signal(signal.SIGKILL)
        self.output(status=-signal.SIGKILL)
