"""Pages of the documentation, run block by block.

A block of a page is one of these:

- `sh`, or without a language: commands of a shell, which must end with 0.
- `text`: what the commands before it print, as part of their output.
- `yaml`, `python` or `sh` with a title: the file of that name.
- `python` without a title: run in this process, with the names of the blocks before it.
- Any with the title "not run: REASON": left out.
- Any other: no more than shown.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import to_its_end

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?[^\n]*\n(?P<text>.*?)^ *```$',
    re.DOTALL | re.MULTILINE,
)
# What pages name by absolute paths lies in the directory of the run.
_PLACES = re.compile(r"(?<![\w.:/])/(?=(?:data|ssd|logs)/)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: Its language; empty if it names none.
        title: Its title; empty if it has none.
        text: What it holds, without indentation of the fence.
    """

    language: str
    title: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.title.removeprefix("not run: ") if self.title.startswith("not run: ") else ""

    @property
    def is_shell(self) -> bool:
        return self.language in ("", "sh")


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for match in _BLOCK.finditer(text):
        yield Block(
            language=match["language"],
            title=match["title"] or "",
            text=re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
        )


def run_page(path: str, directory: Path) -> int:
    """Runs the blocks of a page in a directory, the current one; returns how many it ran.

    Raises:
        AssertionError: A command fails, or prints something else than the page says.
    """
    printed, names, num_run = "", dict[str, Any](), 0
    for block in blocks((ROOT / path).read_text()):
        text = _PLACES.sub(f"{directory}/", block.text)
        if block.reason:
            continue
        if block.title:
            (directory / block.title).write_text(text)
        elif block.is_shell:
            printed = _printed_by(text, directory)
        elif block.language == "text":
            assert text in printed, f"{path} shows\n{text}\nfound\n{printed}"
        elif block.language == "python":
            exec(compile(text, path, "exec"), names)
        else:
            continue
        num_run += 1
    return num_run


def _printed_by(commands: str, directory: Path) -> str:
    """What commands print, of which all must end with 0. Spark's own start is left out: the jobs
    start a session themselves.
    """
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = to_its_end(
        ["bash", "-euo", "pipefail", "-c", commands.replace("spark-submit $(", "python $(")],
        cwd=directory,
        env=os.environ | {"PATH": binaries, "COLUMNS": "100"},
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}"
    return done.stdout
