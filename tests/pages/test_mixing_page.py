"""docs/mixing.md, run block by block."""

from pathlib import Path

import pytest

from tests.pages.page import run_page

PAGE = "docs/mixing.md"


def test_each_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(PAGE, tmp_path) == 3
    # The first table has 3,000 rows: 30 batches, of which 8 were read before the state was saved.
    assert capsys.readouterr().out == "22 batches of the first table followed\n"
