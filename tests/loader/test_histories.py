"""Histories in batches: every row of any loader has what a row of its own would hold."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, DataFileError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.train_check import TrainCheck, check
from featstore.table.delta import commit
from featstore.table.open import open_snapshot
from featstore.tensors.batch import Batch
from tests.history_tables import HISTORY, US, FatRows, change, make_table, write_files
from tests.masked_tables import with_deleted

FILES = [[40, 25, 7], [30], [0, 33]]
NUM_ROWS = sum(map(sum, FILES))
ALL = ["clicks_item", "clicks_price", "clicks_age"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, FatRows]:
    root = tmp_path_factory.mktemp("histories") / "table"
    return str(root), make_table(root, 7, FILES)


def make(url: Any, **options: Any) -> FeatureLoader:
    known: dict[str, Any] = {"slots": ["row", "clicks_*", "tags"], "labels": ["click"]}
    known |= {"batch_size": 16, "seed": 3}
    return FeatureLoader(url, **known | options)


def lists_of(batch: Batch, name: str) -> list[list[Any]]:
    values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
    return [values[a:b] for a, b in pairwise(offsets)]


def rows_checked(batches: Iterable[Batch], fat: FatRows) -> list[int]:
    """The rows in the order of delivery; each has its history."""
    found = []
    for batch in batches:
        rows = batch["row"].tolist()
        for name, column in fat.columns().items():
            assert lists_of(batch, name) == [column[row] for row in rows]
        assert lists_of(batch, "tags") == [[row + 1] * (row % 3) for row in rows]
        found += rows
    return found


def chunks_of(url: str) -> list[Any]:
    """The footers' entries of all column chunks."""
    footers = [pq.read_metadata(path) for path in Path(url).rglob("*.parquet")]
    groups = [of.row_group(number) for of in footers for number in range(of.num_row_groups)]
    return [of.column(number) for of in groups for number in range(of.num_columns)]


MIXED = {"shuffle": {"window_rows": 60, "interleave": 3}}


@pytest.mark.parametrize("batch_size", [1, 16, 500])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "static"},
        {"shuffle": True},
        MIXED,
        {"where": "clicks_length > 3"},
        {**MIXED, "where": "row % 3 = 1"},
        {"memory_budget": 40_000},
        {**MIXED, "memory_budget": 40_000},
        {"staging": {"mode": "ranges"}},
        {"decode_threads": 2, "extras": ["clicks_length"]},
    ],
    ids=str,
)
def test_every_row_has_its_own_history(
    tmp_path: Path, table: tuple[str, FatRows], options: dict[str, Any], batch_size: int
) -> None:
    url, fat = table
    if "staging" in options:
        options = {"staging": {"directory": str(tmp_path / "cache"), **options["staging"]}}
    with make(url, batch_size=batch_size, **options) as loader:
        rows = rows_checked(loader, fat)
    expected = list(range(NUM_ROWS))
    if "where" in options:
        expected = [row for row in expected if row % 3 == 1 or "row" not in options["where"]]
        if "clicks_length" in options["where"]:
            expected = [row for row in expected if len(fat.item[row]) > 3]
    assert sorted(rows) == expected
    if "shuffle" not in options and "order" in options:
        assert rows == expected


@pytest.mark.parametrize("options", [{}, {"shuffle": True}], ids=str)
def test_a_budget_that_holds_less_than_a_batch_is_told_once(
    table: tuple[str, FatRows], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def read(budget: int) -> tuple[str, list[str], FeatureLoader]:
        caplog.clear()
        with make(table[0], memory_budget=budget, **options) as loader:
            assert sorted(rows_checked(loader, table[1])) == list(range(NUM_ROWS))
        told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        return loader.verdict(), [text for text in told if "rows are gathered" in text], loader

    _, [text], loader = read(4_000)
    assert text.startswith("memory_budget: the quarter of 4000 bytes in which rows are gathered")
    stats = loader.stats()
    assert stats["rows_in_pieces"] > NUM_ROWS / 2
    memory = stats["memory"]
    assert (memory["budget_bytes"], memory["held_bytes"]) == (4_000, 0)
    assert memory["peak_bytes"] > 4_000  # A row group is larger.
    wanted = int(re.search(r"set memory_budget to (\d+) or more", text)[1])  # type: ignore[index]
    _, told, loader = read(wanted)
    assert not told
    assert loader.stats()["rows_in_pieces"] == 0
    assert 0 < loader.stats()["memory"]["peak_bytes"] <= wanted


@pytest.mark.parametrize("options", [{}, MIXED, {"order": "static"}], ids=str)
def test_a_loader_resumed_at_any_batch_gives_the_rest(
    table: tuple[str, FatRows], options: dict[str, Any]
) -> None:
    url, fat = table
    with make(url, **options) as loader:
        states, batches = [loader.state_dict()], []
        for batch in loader:
            batches.append(batch.clone())
            loader.ack()
            states.append(json.loads(json.dumps(loader.state_dict())))
    for step, state in enumerate(states[:-1]):
        with make(url, **options) as resumed:
            resumed.load_state_dict(state)
            rest = [batch.clone() for batch in resumed]
        assert rows_checked(rest, fat) == rows_checked(batches[step:], fat)
        assert [len(batch) for batch in rest] == [len(batch) for batch in batches[step:]]


@pytest.mark.parametrize("options", [{}, MIXED], ids=str)
def test_batches_by_cost_end_before_the_row_that_exceeds_the_cap(
    table: tuple[str, FatRows], options: dict[str, Any]
) -> None:
    url, fat = table
    cap = {"max_values": 150, "of": "clicks_item"}
    with make(url, batch=cap, **options) as loader:
        batches = [each.clone() for each in loader]
    assert sorted(rows_checked(batches, fat)) == list(range(NUM_ROWS))
    sizes = [len(each["clicks_item"].values) for each in batches]
    assert max(sizes) <= 150
    for size, batch, after in zip(sizes, batches, batches[1:], strict=False):
        assert len(batch) == 16 or size + len(fat.item[after["row"][0]]) > 150


def test_lists_of_one_history_share_their_offsets_and_combine_as_nested(
    table: tuple[str, FatRows],
) -> None:
    with make(table[0]) as loader:
        batch = next(iter(loader))
        items, ages = batch["clicks_item"], batch["clicks_age"]
        assert items.offsets is ages.offsets
        combined = items.to_nested().float() + ages.to_nested()
        assert combined.values().shape == items.values.shape


def test_rows_from_worker_processes_have_their_histories(
    table: tuple[str, FatRows],
) -> None:
    url, fat = table
    with make(url) as loader:
        batches = [batch.clone() for batch in DataLoader(loader, batch_size=None, num_workers=2)]
    assert sorted(rows_checked(batches, fat)) == list(range(NUM_ROWS))


def test_rows_of_deleted_holders_keep_their_histories(table: tuple[str, FatRows]) -> None:
    url, fat = table
    snapshot = open_snapshot(url)
    gone = {next(iter(snapshot.data_files)).path: [0, 1, 2, 40]}
    with make(with_deleted(snapshot, gone)) as loader:
        rows = rows_checked(loader, fat)
    assert len(rows) == NUM_ROWS - 4


def test_values_are_made_smaller_once_for_all_rows_that_share_them(
    table: tuple[str, FatRows],
) -> None:
    url, fat = table
    slots = ["row", {"name": "clicks_item", "buckets": 50, "dtype": "int32"}]
    slots += [{"name": "clicks_price", "dtype": "float16"}, "clicks_age"]
    with make(url, slots=slots) as loader:
        for batch in loader:
            rows = batch["row"].tolist()
            assert batch["clicks_item"].values.dtype == torch.int32
            assert lists_of(batch, "clicks_item") == [
                [1 + item % 49 for item in fat.item[row]] for row in rows
            ]
            assert lists_of(batch, "clicks_price") == [
                np.array(fat.price[row], np.float16).tolist() for row in rows
            ]


@pytest.mark.parametrize("name", ["clicks_item", "clicks_age"])
def test_one_slot_alone_is_read(table: tuple[str, FatRows], name: str) -> None:
    url, fat = table
    with make(url, slots=["row", name], labels=[]) as loader:
        for batch in loader:
            expected = [fat.columns()[name][row] for row in batch["row"].tolist()]
            assert lists_of(batch, name) == expected


def test_only_histories_may_be_selected(table: tuple[str, FatRows]) -> None:
    url, fat = table
    with make(url, slots=["clicks_item"], labels=[]) as loader:
        items = [each for batch in loader for each in lists_of(batch, "clicks_item")]
    assert sorted(items) == sorted(fat.item)


_CUT = r"found .* in a row of .* with histories: \{clicks: \{max_len: 1\}\}$"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": [{"name": "clicks_item", "pad": 5}]}, "'clicks_item': pad: expected none"),
        ({"slots": [{"name": "clicks_age", "dtype": "float16"}]}, "expected dtype float32 of what"),
        ({"batch": {"max_values": 1, "of": "clicks_item"}}, _CUT),
        ({"histories": ["clicks"]}, "histories: expected {name: {max_len: ...}}, found"),
        ({"histories": {"click": {}}}, "histories: unknown key 'click'; did you mean 'clicks'"),
        ({"histories": {"clicks": 5}}, "histories.clicks: expected keys of HistoryOptions"),
        ({"histories": {"clicks": {"maxlen": 5}}}, "histories.clicks: unknown key 'maxlen'"),
        ({"histories": {"clicks": {"max_len": 0}}}, "^histories.clicks: max_len: expected"),
        (
            {"histories": {"clicks": {"max_len": 21}}},
            "max_len: expected at most 20, as was extracted, found 21: extract the table again",
        ),
        (
            {"histories": {"clicks": {"window": "3x"}}},
            "^histories.clicks: window: expected a time .* '3x'",
        ),
        ({"slots": ["row"], "histories": {"clicks": {}}}, "expected slots of it in `slots`"),
    ],
)
def test_what_histories_do_not_have_is_refused(
    table: tuple[str, FatRows], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message), make(table[0], **options) as loader:
        list(loader)


@pytest.mark.parametrize("options", [{}, MIXED], ids=str)
def test_a_config_shortens_histories(table: tuple[str, FatRows], options: dict[str, Any]) -> None:
    url, fat = table
    shorter = {"clicks": {"max_len": 4, "window": "20m"}}
    with make(url, histories=shorter, **options) as loader:
        state = loader.state_dict()
        for batch in loader:
            for row, ages in zip(batch["row"].tolist(), lists_of(batch, "clicks_age"), strict=True):
                assert ages == [age for age in fat.age[row][-4:] if age <= 20]
    with make(url, **options) as other, pytest.raises(StateError):
        other.load_state_dict(state)


def test_a_longer_window_than_was_extracted_is_refused(tmp_path: Path) -> None:
    history = replace(HISTORY, window_us=14 * 86_400 * US)
    make_table(tmp_path / "table", 7, [[5]], history)
    with pytest.raises(ConfigError, match="at most 14d, as was extracted, found 30d"):
        make(tmp_path / "table", histories={"clicks": {"window": "30d"}})


@pytest.mark.parametrize(
    "options",
    [{}, MIXED, {**MIXED, "where": "clicks_length > 3", "memory_budget": 40_000}],
    ids=str,
)
def test_decoded_columns_have_the_histories_of_their_files(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 7, FILES)
    staging = {"directory": str(tmp_path / "cache"), "decoded": True}
    expected = list(range(NUM_ROWS))
    if "where" in options:
        expected = [row for row in expected if len(fat.item[row]) > 3]
    with make(root, staging=staging, **options) as first:
        assert sorted(rows_checked(first, fat)) == expected
    with make(root, staging=staging, **options) as second:
        for path in root.glob("*.parquet"):
            path.unlink()
        assert sorted(rows_checked(second, fat)) == expected


def test_a_config_with_histories_is_checked(tmp_path: Path, table: tuple[str, FatRows]) -> None:
    config = {"table": table[0], "slots": ["row", "clicks_*"], "batch_size": 8}
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    found = check(str(tmp_path / "train.yaml"))
    assert isinstance(found, TrainCheck)
    stored = {column.name: column.stored_bytes_per_row for column in found.columns}
    read = ["clicks_end", "clicks_length", "clicks_back", "clicks_key", "ts"]
    assert [*stored] == ["row", *ALL, *read]
    assert [column.role for column in found.columns] == ["slot"] * 4 + ["read"] * 5
    with FeatureLoader.from_config(tmp_path / "train.yaml") as loader:
        assert sum(len(batch) for batch in loader) == NUM_ROWS
        num_bytes = loader.stats()["stages"]["decode"]["bytes"]
    assert found.stored_bytes_per_row * NUM_ROWS == pytest.approx(num_bytes)
    assert not found.is_limit
    chunks = chunks_of(table[0])
    for name, column in [("clicks_item", "clicks_item"), ("clicks_age", "clicks_at")]:
        own = [of for of in chunks if of.path_in_schema.split(".")[0] == column]
        num_bytes = sum(of.total_compressed_size for of in own)
        assert stored[name] == pytest.approx(num_bytes / NUM_ROWS)
        assert num_bytes > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        MIXED,
        {**MIXED, "where": "row % 3 = 1"},
        {**MIXED, "where": "ts is not null"},
        {"staging": {"mode": "ranges", "decoded": True}},
    ],
    ids=str,
)
def test_columns_that_histories_and_batches_need_are_read_once(
    tmp_path: Path, table: tuple[str, FatRows], options: dict[str, Any]
) -> None:
    url, fat = table
    if "staging" in options:
        options = {"staging": {"directory": str(tmp_path / "cache"), **options["staging"]}}
    stored = pa.concat_tables([pq.read_table(path) for path in sorted(Path(url).glob("*.parquet"))])
    times, lengths = (stored[name].to_pylist() for name in ("ts", "clicks_length"))
    rows = list[int]()
    with make(url, extras=["ts", "clicks_length"], **options) as loader:
        for batch in loader:
            found = rows_checked([batch], fat)
            assert batch.extras["ts"].to_pylist() == [times[row] for row in found]
            assert batch.extras["clicks_length"].to_pylist() == [lengths[row] for row in found]
            rows += found
        read = loader.stats()["slots"]
    assert len(rows) == (NUM_ROWS // 3 if "row" in options.get("where", "") else NUM_ROWS)
    is_plain = not {"where", "staging"} & options.keys()
    for name in ("ts", "clicks_length", "clicks_end") if is_plain else ():
        own = [chunk for chunk in chunks_of(url) if chunk.path_in_schema == name]
        assert read[name]["bytes"] == sum(chunk.total_compressed_size for chunk in own) > 0


@pytest.mark.parametrize("options", [{}, {"max_len": 3}, {"window": "30m"}], ids=str)
def test_the_bytes_of_histories_are_those_of_the_events_that_rows_have(
    tmp_path: Path, table: tuple[str, FatRows], options: dict[str, Any]
) -> None:
    config = {"table": table[0], "slots": ["clicks_*"], "batch_size": NUM_ROWS}
    config |= {"histories": {"clicks": options}} if options else {}
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    found = check(str(tmp_path / "train.yaml"))
    assert isinstance(found, TrainCheck)
    told = {of.name: of.batch_bytes_per_row for of in found.columns}
    with FeatureLoader.from_config(tmp_path / "train.yaml") as loader:
        num_values = sum(batch["clicks_age"].values.numel() for batch in loader)
    as_extracted = sum(min(len(each), options.get("max_len", 20)) for each in table[1].item)
    assert (num_values < as_extracted) == ("window" in options) == found.is_limit
    assert told["clicks_item"] == pytest.approx(8 + 8 * as_extracted / NUM_ROWS)
    assert told["clicks_age"] == pytest.approx(8 + 4 * as_extracted / NUM_ROWS)
    assert f"{'at most ' * found.is_limit}{told['clicks_age']:,.1f}" in str(found)


@pytest.mark.parametrize("options", [{}, MIXED], ids=str)
def test_a_range_of_another_key_ends_the_epoch_or_leaves_its_file_out(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    def damage(number: int, columns: dict[str, Any]) -> None:
        if number == 1:
            columns["clicks_back"][3] = 9

    root = tmp_path / "table"
    fat, files = write_files(root, 7, [[20, 20], [30]], damage=damage)
    commit(str(root), change(HISTORY, files))
    with pytest.raises(DataFileError, match="row group 1: row 3"), make(root, **options) as loader:
        list(loader)
    with make(root, on_bad_file="skip", **options) as loader:
        rows = rows_checked(loader, fat)
    assert set(range(40, 70)) <= set(rows) <= {*range(20), *range(40, 70)}


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"slots": ["row"]}], ids=str)
def test_rows_by_key_that_are_not_shuffled_are_warned_of(
    table: tuple[str, FatRows], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with make(table[0], **options):
        pass
    said = [text for text in caplog.messages if "by user_id in part-" in text]
    assert len(said) == (not options)
