"""The example of sequences in docs/operators.md: its table says what batches hold."""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import featstore
from tests.parquet_files import put_parquet

SECTION = (
    (Path(__file__).parents[2] / "docs" / "operators.md")
    .read_text()
    .partition("## Sequences and shared embeddings\n")[2]
    .partition("\n## ")[0]
)
LINES = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", SECTION, re.MULTILINE)
ITEMS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A row for each item, with the clicks of the example."""
    root = tmp_path_factory.mktemp("example")
    [spec] = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    (root / "spec.yaml").write_text(spec)
    times = [datetime.datetime(2026, 11, 1, hour) for hour in range(4)]
    raw = {
        "item": ITEMS,
        "click_items": [ITEMS] * 4,
        "click_prices": [[1.0, 2.0, 3.0, 4.0]] * 4,
        "click_times": [times] * 4,
        "ts": [datetime.datetime(2026, 11, 1, 5)] * 4,
    }
    put_parquet(root / "raw" / "a.parquet", raw)
    featstore.extract(str(root / "spec.yaml"), str(root / "raw"), str(root / "table"))
    return str(root / "table")


def only_batch(table: str, slots: list[Any]) -> Any:
    with featstore.FeatureLoader(table, slots=slots) as loader:
        [batch] = [batch.clone() for batch in loader]
    return batch


def test_the_page_shows_each_option() -> None:
    options = {key for slot, _ in LINES for key in slot.strip("{}").replace(":", ",").split(", ")}
    assert {"max_len", "keep", "pad", "pad_side"} <= options


@pytest.mark.parametrize(("slot", "delivered"), LINES)
def test_each_line_is_what_a_batch_holds(table: str, slot: str, delivered: str) -> None:
    batch = only_batch(table, ["item", yaml.safe_load(slot)])
    names = dict(zip(batch["item"].tolist(), ITEMS, strict=True)) | {0: "0"}
    assert [names[of] for of in batch["clicked"][0].tolist()] == delivered.split(", ")


def test_prices_and_ages_are_those_of_the_items(table: str) -> None:
    batch = only_batch(table, ["clicked", "clicked_price", "clicked_ago"])
    assert batch["clicked"].offsets is batch["clicked_ago"].offsets
    assert batch["clicked_price"][0].tolist() == [2.0, 3.0, 4.0]
    assert batch["clicked_ago"][0].tolist() == [4.0, 3.0, 2.0]
    both = batch["clicked_price"].to_nested() * batch["clicked_ago"].to_nested()
    assert both.values()[:3].tolist() == [8.0, 9.0, 8.0]


def test_equal_items_have_equal_ids_in_both_slots(table: str) -> None:
    slots = [{"name": name, "buckets": 1000} for name in ("item", "clicked")]
    batch = only_batch(table, slots)
    assert batch["clicked"][0].tolist() == batch["item"][1:].tolist()
