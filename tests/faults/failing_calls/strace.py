"""System calls of a process, traced and made to fail by strace.

`strace -P PATH` restricts both to calls with this path, or with a descriptor of it. `when=N` counts
in each thread.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STATS = ("newfstatat", "statx", "stat", "lstat", "fstat")
LOOKS = ("openat", "getdents64", "readlink", "access", "faccessat", "statfs", "lseek")
READS = ("read", "pread64", "mmap", "copy_file_range", "sendfile")
WRITES = ("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "fallocate", "utimensat")
NAMES = (
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink"),
    *("unlink", "unlinkat", "mkdir", "rmdir", "chmod", "fchmod"),
)
LOCKS = ("flock", "fcntl")
SHORT, SHORT_BYTES = "short@", 5
CALLS = (*STATS, *LOOKS, *READS, *WRITES, *NAMES, *LOCKS)

_LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\w+)(?:<[^>]*>)?(?: (E[A-Z]+) \(.*?\))?.*$")
_TEXT, _DESCRIPTOR = re.compile(r'"((?:[^"\\]|\\.)*)"'), re.compile(r"\d<(/[^>]*)>")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failing call.

    Attributes:
        call: Its name.
        path: Which calls: those with this path, or a descriptor of it.
        when: Which of these in each thread: `3` is the third, `3+` the third and all later ones.
        error: The error's name; `0`, which the call returns instead: nothing more to read, or
            nothing written; or `short@{offset}`, which is a read of a few bytes from there.
    """

    call: str
    path: str
    when: str
    error: str

    def options(self) -> list[str]:
        inject = f"inject={self.call}:{self._how()}:when={self.when}"
        return ["-P", self.path, "-e", f"trace={self.call}", "-e", inject]

    def is_hit(self, call: "Call") -> bool:
        """Whether this call was made to fail; that another part would have been read is no hit."""
        return call.injected and self.offset in (None, call.offset)

    @property
    def offset(self) -> int | None:
        """Where a short read begins."""
        return int(self.error.partition("@")[2]) if self.error.startswith(SHORT) else None

    def _how(self) -> str:
        if self.error == "0":
            return "retval=0"
        if (at := self.offset) is None:
            return f"error={self.error}"
        data = Path(self.path).read_bytes()[at : at + SHORT_BYTES]
        return f"retval={len(data)}:poke_exit=@arg2={data.hex()}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that was made.

    Attributes:
        thread: Who made it.
        name: Its name.
        paths: What it was about.
        offset: Where it began to read, if it says so.
        error: The name of the error that it ended with, if any.
        injected: Whether strace made it fail.
    """

    thread: str
    name: str
    paths: tuple[str, ...]
    offset: int | None
    error: str | None
    injected: bool


def why_not() -> str | None:
    """Why strace does not work here, else None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    command = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=getdents64:error=EIO", "ls", "/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if "nput/output error" in done.stderr else f"no ptrace here: {done.stderr.strip()}"


def attach(pid: int, log: Path, options: Iterable[str]) -> subprocess.Popen[bytes]:
    """Starts strace on a process that waits; the log of each thread is a file beside `log`."""
    command = ["strace", "-ff", "-qq", "-y", "-s", "0", "-o", str(log), "-p", str(pid), *options]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    while b"TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_bytes():
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            raise RuntimeError(f"strace ended: {tracer.stderr.read().decode()}")
    return tracer


def read_calls(log: Path) -> list[Call]:
    """The calls of all threads; those that were cut off by the end of the process are left out."""
    calls = []
    for file in sorted(log.parent.glob(f"{log.name}.*")):
        for line in file.read_text(errors="replace").splitlines():
            if match := _LINE.match(line):
                name, arguments, _, error = match.groups()
                calls.append(
                    Call(
                        thread=file.suffix,
                        name=name,
                        paths=_paths(name, arguments),
                        offset=int(arguments.rpartition(",")[2]) if name == "pread64" else None,
                        error=error,
                        injected=line.endswith("(INJECTED)"),
                    )
                )
        file.unlink()
    return calls


def _paths(name: str, arguments: str) -> tuple[str, ...]:
    """The absolute paths in the arguments, or else those of descriptors."""
    named = tuple(text for text in _TEXT.findall(arguments) if text.startswith("/"))
    # By the new name of a rename strace does not find it.
    return named[: 1 if name == "rename" else None] or tuple(_DESCRIPTOR.findall(arguments))
