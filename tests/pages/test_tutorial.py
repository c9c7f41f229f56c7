"""docs/tutorial.md, as a stranger follows it: in an empty directory, one command after another."""

import re
from pathlib import Path

import pytest

import featstore
from tests.pages.page import ROOT, blocks, run_page


@pytest.mark.slow
def test_the_tutorial_leads_to_a_model_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page("docs/tutorial.md", tmp_path) == 17
    table = featstore.open_table("ctr")
    assert table.num_rows == 60_000
    assert {slot.name for slot in table.slots} == {"user", "item", "item_x_hour"}


def test_its_installation_is_all_that_is_not_run() -> None:
    page = list(blocks((ROOT / "docs" / "tutorial.md").read_text()))
    assert [block.text.splitlines()[-1] for block in page if block.reason] == [
        "pip install '/path/to/featstore[torch,explore]'"
    ]
    assert re.search(r"^spec: 1$", page[3].text, re.MULTILINE)
