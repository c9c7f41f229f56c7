"""Histories of which a batch has each event once: expanded, they are those of any other loader."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError
from featstore.loader.train_check import TrainCheck, check
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged, SharedJagged
from tests.history_tables import HISTORY, US, FatRows, make_table
from tests.loader.test_histories import FILES, MIXED, make, rows_checked

LISTS = ["clicks_item", "clicks_price"]
UNIQUE = {"histories": {"clicks": {"unique": True}}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, FatRows]:
    root = tmp_path_factory.mktemp("unique") / "table"
    return str(root), make_table(root, 7, FILES)


def require_equal(found: Batch, expected: Batch) -> None:
    """The batch, expanded, is the other one."""
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        own = found[name].expand() if name in LISTS else found[name]
        assert isinstance(own, type(column))
        if isinstance(own, Jagged):
            assert torch.equal(own.offsets, column.offsets)
            own, column = own.values, column.values
        assert own.dtype == column.dtype
        assert torch.equal(own.nan_to_num(7), column.nan_to_num(7))


def num_seen(batch: Batch, fat: FatRows, files: list[list[int]]) -> int:
    """How many events the rows see, those of one key in one row group once."""
    sizes = [size for file in files for size in file]
    group_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    rows = batch["row"].tolist()
    return len({(group_of[row], fat.keys[row], item) for row in rows for item in fat.item[row]})


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_tables_give_their_rows_with_and_without_unique(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sizes = st.lists(st.integers(0, 50), min_size=1, max_size=3)
    files = data.draw(st.lists(sizes, min_size=1, max_size=3))
    root = tmp_path_factory.mktemp("random") / "table"
    window = data.draw(st.none() | st.integers(1, 5_000))
    history = replace(
        HISTORY,
        max_len=data.draw(st.integers(1, 70)),
        window_us=None if window is None else window * US,
        logged_at=data.draw(st.sampled_from([None, "arrived"])),
    )
    fat = make_table(root, data.draw(st.integers(0, 1 << 30)), files, history)
    shuffle = data.draw(st.sampled_from([False, True, MIXED["shuffle"]]))
    max_len = data.draw(st.none() | st.integers(1, history.max_len))
    options: dict[str, Any] = {"batch_size": data.draw(st.integers(1, 60)), "shuffle": shuffle}
    options |= data.draw(st.sampled_from([{}, {"where": "row % 3 = 1"}, {"order": "static"}]))
    if data.draw(st.booleans()):
        options["batch"] = {"max_values": 90, "of": "clicks_item"}
    shorter = {"clicks": {} if max_len is None else {"max_len": max_len}}
    unique = {"clicks": {**shorter["clicks"], "unique": True}}
    with make(root, **options, histories=shorter) as other:
        expected = [batch.clone() for batch in other]
    if max_len is None:
        rows = rows_checked(expected, fat)
        is_whole = "where" not in options
        assert sorted(rows) == [row for row in range(len(fat.keys)) if is_whole or row % 3 == 1]
    with make(root, **options, histories=unique) as loader:
        found = [batch.clone() for batch in loader]
    for batch, same in zip(found, expected, strict=True):
        require_equal(batch, same)
        has_own_lists = window is not None and history.logged_at is not None
        if max_len is None and not has_own_lists:
            assert len(batch["clicks_item"].values) == num_seen(batch, fat, files)


@pytest.mark.parametrize(
    "options",
    [{}, {**MIXED, "where": "row % 3 = 1"}, {"staging": {"decoded": True}}],
    ids=str,
)
def test_values_lie_alike_wherever_mixtures_and_loaders_end(
    table: tuple[str, FatRows], options: dict[str, Any]
) -> None:
    with make(table[0], **options, **UNIQUE) as loader:
        states, batches = [loader.state_dict()], []
        for batch in loader:
            batches.append(batch.clone())
            loader.ack()
            states.append(json.loads(json.dumps(loader.state_dict())))
    for step, state in enumerate(states[:-1]):
        with make(table[0], **options, **UNIQUE) as resumed:
            resumed.load_state_dict(state)
            rest = [batch.clone() for batch in resumed]
        require_alike(rest, batches[step:])
    # A state does not say in which form events come.
    with make(table[0], **options) as without:
        without.load_state_dict(states[2])
        for batch, same in zip(batches[2:], without, strict=True):
            require_equal(batch, same)


def require_alike(found: Iterable[Batch], expected: Iterable[Batch]) -> None:
    for batch, other in zip(found, expected, strict=True):
        for name in LISTS:
            assert torch.equal(batch[name].values, other[name].values)
            assert torch.equal(batch[name].ranges[:, :2], other[name].ranges[:, :2])


def test_rows_of_batches_that_move_keep_their_lists(table: tuple[str, FatRows]) -> None:
    with make(table[0]) as other, make(table[0], **UNIQUE) as loader:
        expected = [batch.clone() for batch in other]
        found = [batch.clone() for batch in loader]
    require_equal(found[0][3:9], expected[0][3:9])
    require_equal(found[0][3:9].clone(), expected[0][3:9])
    require_equal(found[0].to("cpu"), expected[0])
    require_equal(
        Batch.concat([*found[:3], found[3][2:5]]), Batch.concat([*expected[:3], expected[3][2:5]])
    )
    with pytest.raises(
        ValueError, match=r"slot 'clicks_item': expected shared lists, torch\.int64"
    ):
        Batch.concat([found[0], expected[0]])
    with pytest.raises(TypeError, match=r"dense\(\): slot 'clicks_price' is a list"):
        found[0].dense(["clicks_price"])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_and_arrays_have_the_same_lists(
    table: tuple[str, FatRows], method: str
) -> None:
    options = {"order": "static", "debug": True}
    workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    with make(table[0], **options) as other, make(table[0], **options, **UNIQUE) as loader:
        expected = [batch.clone() for batch in other]
        for batch, same in zip(
            DataLoader(loader, batch_size=None, **workers), expected, strict=True
        ):
            require_equal(batch, same)
        for arrays, same in zip(loader.numpy(), expected, strict=True):
            values, ranges = arrays.slots["clicks_item"]
            lists = [values[begin:end].tolist() for begin, end, _ in ranges]
            assert lists == [row.tolist() for row in same["clicks_item"]]


def test_rows_of_a_transform_and_of_a_cap_have_their_lists(table: tuple[str, FatRows]) -> None:
    def first_rows(batch: Batch) -> Batch:
        found: Batch = batch[: max(1, len(batch) // 2)]
        return found

    options = {"transform": first_rows, "batch": {"max_values": 150, "of": "clicks_item"}}
    with make(table[0], **options) as other, make(table[0], **options, **UNIQUE) as loader:
        for batch, same in zip(loader, other, strict=True):
            require_equal(batch, same)


def test_values_are_made_smaller_and_slots_share_their_ranges(table: tuple[str, FatRows]) -> None:
    slots = ["row", {"name": "clicks_item", "buckets": 50, "dtype": "int32"}]
    slots += [{"name": "clicks_price", "dtype": "bfloat16"}]
    with make(table[0], slots=slots) as other, make(table[0], slots=slots, **UNIQUE) as loader:
        for batch, same in zip(loader, other, strict=True):
            require_equal(batch, same)
            items, prices = batch["clicks_item"], batch["clicks_price"]
            assert isinstance(items, SharedJagged)
            assert items.ranges.data_ptr() == prices.ranges.data_ptr()


def test_a_config_with_unique_is_checked(tmp_path: Path, table: tuple[str, FatRows]) -> None:
    config = {"table": table[0], "slots": ["row", "clicks_*"], "batch_size": 8, **UNIQUE}
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    found = check(str(tmp_path / "train.yaml"))
    assert isinstance(found, TrainCheck)
    batches = {of.name: of.batch for of in found.columns if of.role != "read"}
    assert batches == {
        "row": "[B]", "clicks_item": "unique", "clicks_price": "unique", "clicks_age": "jagged"
    }  # fmt: skip
    assert {of.name for of in found.columns if of.is_limit} == set(LISTS)
    mean = sum(map(len, table[1].item)) / len(table[1].keys)
    [most] = (of.batch_bytes_per_row for of in found.columns if of.name == "clicks_item")
    assert most == pytest.approx(8 * mean + 24)
    assert f"at most {most:,.1f}" in str(found)
    with make(table[0], **UNIQUE) as loader:
        for_rows = [(batch["clicks_item"], len(batch)) for batch in loader]
        num_bytes = sum(of.values.nbytes + of.ranges.nbytes for of, _ in for_rows)
    assert num_bytes < most * sum(num_rows for _, num_rows in for_rows)


def test_what_cannot_have_unique_lists_is_refused(table: tuple[str, FatRows]) -> None:
    with pytest.raises(ConfigError, match="unique: expected true or false, found 'yes'"):
        make(table[0], histories={"clicks": {"unique": "yes"}})
    with make(table[0], **UNIQUE) as loader, pytest.raises(ConfigError, match=r"to_tf.*unique"):
        loader.to_tf()
