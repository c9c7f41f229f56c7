"""Guides and how-to pages, run on one raw log."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

import featstore
from tests.pages.page import ROOT, blocks, run_page
from tests.pages.raw_log import DAYS, write_raw

EXTRACT, ALL_DAYS = "docs/extract.md", "docs/howto/daily_runs.md"
# How many blocks of each page are run.
PAGES = {
    EXTRACT: 7,
    "docs/table.md": 2,
    "docs/train.md": 8,
    "docs/command_line.md": 1,
    "docs/report.md": 2,
    "docs/howto/add_slots.md": 6,
    "docs/howto/backfill.md": 4,
    ALL_DAYS: 5,
    "docs/howto/join_labels.md": 2,
    "docs/howto/online_serving.md": 3,
    "docs/howto/tuning_staging.md": 3,
}
NEED_ALL_DAYS = ("docs/report.md", "docs/table.md", "docs/train.md")


@pytest.mark.slow
def test_the_readme_leads_from_raw_rows_to_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page("README.md", tmp_path) == 4


@pytest.fixture(scope="module")
def after_extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which docs/extract.md was followed."""
    directory = tmp_path_factory.mktemp("extract")
    write_raw(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run_page(EXTRACT, directory) == PAGES[EXTRACT]
    return directory


@pytest.fixture(scope="module")
def after_all_days(after_extraction: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which docs/howto/daily_runs.md was followed, too."""
    directory = tmp_path_factory.mktemp("days") / "run"
    shutil.copytree(after_extraction, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run_page(ALL_DAYS, directory) == PAGES[ALL_DAYS]
    return directory


@pytest.mark.parametrize(("max_len", "days"), [(3, [3, 2]), (2, [2])])
def test_a_row_sees_what_the_page_of_histories_says(max_len: int, days: list[int]) -> None:
    [text] = [of.text for of in blocks((ROOT / EXTRACT).read_text()) if "histories:" in of.text]
    spec = yaml.safe_load(text) | {
        "spec": 1,
        "inputs": {"user_id": "string", "ts": "timestamp", "item_id": "string"},
        "slots": [{"slot": 1, "name": "item", "op": "hash", "of": "item_id"}],
    }
    spec["histories"][0]["max_len"] = max_len
    ts = datetime(2026, 11, 2, tzinfo=UTC)
    # An old event that came a day ago, one at the row's time, and one that came after it.
    clicks = [
        {"event_ts": ts - timedelta(days=at), "arrived": ts - timedelta(days=came)}
        for at, came in [(3, 3), (2, 2), (100, 1), (0, 0), (1, -1)]
    ]
    row = {"user_id": "u", "item_id": "i", "ts": ts}
    events = [{"user_id": "u", "item_id": "i", **click} for click in clicks]
    found = featstore.Extractor(featstore.load_spec(spec)).one(row, events={"clicks": events})
    assert found["clicks_age"] == [day * 86_400 for day in days]
    assert found["clicks_item"] == [found["item"]] * len(days)


@pytest.mark.slow
def test_daily_runs_do_what_their_page_says(after_all_days: Path) -> None:
    assert (after_all_days / "data" / "ctr").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in (EXTRACT, ALL_DAYS)])
def test_each_block_of_a_page_does_what_it_says(
    page: str,
    after_extraction: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = (
        request.getfixturevalue("after_all_days") if page in NEED_ALL_DAYS else after_extraction
    )
    directory = tmp_path / "run"
    shutil.copytree(before, directory)
    shutil.copytree(directory / "raw" / f"dt={DAYS[0]}", directory / "ripe" / f"dt={DAYS[0]}")
    monkeypatch.chdir(directory)
    assert run_page(page, directory) == PAGES[page]
