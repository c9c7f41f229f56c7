"""docs/from_tfrecord.md: its commands and code do what it says."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import featstore
from featstore.tools.cli.program import cli
from tests.formats.example_files import tfrecord

PAGE = (Path(__file__).parents[2] / "docs" / "from_tfrecord.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_leads_from_records_to_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, list[Any] | None]] = [
        {
            "user": [b"u%d" % (i % 3)],
            "item": [b"shoe"],
            "tags": list(range(i % 3)),
            "price": [1.5],
            "click": [i % 2],
        }
        for i in range(10)
    ]
    for name in ("logs/a.tfrecord", "logs/b.tfrecord"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(tfrecord(rows))
    num_run = 0
    shown = ""
    for language, text in BLOCKS:
        if language == "yaml" and text.startswith("inputs"):
            assert shown == text
        elif language == "yaml":
            Path("spec.yaml").write_text(text)
        elif language == "python":
            exec(compile(text, "page", "exec"), {})
        for line in [] if language else text.splitlines():
            if line.startswith("featstore "):
                done = CliRunner().invoke(cli, shlex.split(line)[1:], catch_exceptions=False)
                assert done.exit_code == 0, done.output
                shown, num_run = done.stdout, num_run + 1
    assert num_run == 5
    assert featstore.open_table("table").to_arrow().num_rows == 20
