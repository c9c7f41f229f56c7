"""What a loader says of itself: stages, slots, a progress bar."""

import io
import time
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.hand_over import RowBar
from featstore.staging.counts import StagingStats
from tests.parquet_files import put_parquet
from tests.process import await_that
from tests.terminal import Terminal


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("telling")
    random = np.random.default_rng(1)
    for number in range(3):
        lists = pa.ListArray.from_arrays(
            pa.array(np.arange(0, 200_001, 10)), pa.array(random.integers(0, 1 << 60, 200_000))
        )
        put_parquet(
            root / f"{number}.parquet",
            {
                "id": random.integers(0, 1 << 60, 20_000),
                "tags": lists,
                "y": np.arange(20_000) % 2,
                "idle": [1] * 20_000,
            },
            row_group_size=5000,
        )
    return str(root)


def stored_bytes(url: str, name: Any, row_groups: int = 4) -> Any:
    files = [pq.ParquetFile(f"{url}/{number}.parquet") for number in range(3)]
    found = [
        (column.path_in_schema.split(".")[0], column.total_compressed_size)
        for file in files
        for group in range(row_groups)
        for column in (
            file.metadata.row_group(group).column(i) for i in range(file.metadata.num_columns)
        )
    ]
    return sum(size for path, size in found if path == name)


@pytest.mark.parametrize("where", [None, "y = 1"])
def test_each_slot_has_its_bytes_and_its_share_of_the_time(url: str, where: str | None) -> None:
    loader = FeatureLoader(url, slots=["id", "tags"], labels=["y"], where=where)
    assert loader.stats()["slots"] == {}
    num_rows = sum(batch.num_rows for batch in loader)
    stats = loader.stats()
    assert {name: told["bytes"] for name, told in stats["slots"].items()} == {
        name: stored_bytes(url, name) for name in ("id", "tags", "y")
    }
    assert all(told["decode_s"] > 0 for told in stats["slots"].values())
    if where is None:  # Read side by side, so that the shares are those of the bytes.
        assert stats["slots"]["tags"]["decode_s"] > stats["slots"]["y"]["decode_s"]
    require_parts(stats)
    assert stats["stages"]["decode"]["bytes"] == sum(
        told["bytes"] for told in stats["slots"].values()
    )
    assert stats["stages"]["decode"]["rows"] == stats["stages"]["delivery"]["rows"] == num_rows


def require_parts(stats: Any) -> None:
    """Times of slots lie within those of the stages, on the same clock, so that it does not matter
    how fast the machine is.
    """
    for name in ("decode_s", "assemble_s"):
        assert sum(told[name] for told in stats["slots"].values()) <= stats[name] * (1 + 1e-9)


def test_what_converting_a_slot_takes_is_no_part_of_decoding(url: str) -> None:
    loader = FeatureLoader(url, slots=["id", {"name": "tags", "pad": 200}], labels=["y"])
    assert sum(batch.num_rows for batch in loader) == 60_000
    stats = loader.stats()
    require_parts(stats)
    assert stats["slots"]["tags"]["assemble_s"] > 0
    assert stats["slots"]["y"]["assemble_s"] == 0  # a label


def test_row_groups_that_are_ruled_out_cost_no_bytes(url: str) -> None:
    loader = FeatureLoader(url, slots=["id", "tags"], where="idle = 2")
    assert list(loader) == []
    assert loader.stats()["slots"] == {}
    assert loader.stats()["row_groups_pruned"] == 12


def test_stages_say_what_they_did_and_what_they_waited_for(url: str) -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return {}

    arguments: dict[str, Any] = {
        "slots": ["id"],
        "batch_size": 1000,
        "staging": {"mode": "whole"},
        "memory_budget": 1,
    }
    with FeatureLoader(url, transform=slow, **arguments) as loader:
        num_batches = len(list(loader))
        stages = loader.stats()["stages"]
    assert stages["staging"]["files"] == 3
    assert stages["staging"]["retries"] == 0
    assert stages["transform"]["busy_s"] >= 0.01 * num_batches
    assert all(stages["decode"][name] > 0 for name in ("busy_s", "wait_for_room_s"))
    assert stages["transform"]["wait_for_blocks_s"] > 0
    assert stages["delivery"]["wait_s"] > 0
    assert stages["delivery"]["batches"] == num_batches == 60


def test_queues_say_what_is_made_and_reserved_ahead_of_the_loop(url: str) -> None:
    nothing = dict.fromkeys(
        ("decoded", "assembled", "transformed", "pending_batches", "made_rows", "reserved_rows"), 0
    )
    with FeatureLoader(url, slots=["id"], batch_size=1000, transform=lambda _: {}) as loader:
        assert loader.stats()["queues"] == nothing
        batches = iter(loader)
        next(batches)
        await_that(lambda: loader.stats()["queues"]["transformed"] >= 3)
        queues = loader.stats()["queues"]
        assert (queues["transformed"], queues["pending_batches"], queues["made_rows"]) == (
            3,
            1,
            4000,
        )
        assert queues["decoded"] <= 1
        assert queues["assembled"] <= 2
        assert 4000 <= queues["reserved_rows"] <= 20_000
        assert len(list(batches)) == 59
        assert loader.stats()["queues"] == nothing
    static: dict[str, Any] = {"order": "static", "slots": ["id"], "batch_size": 1000}
    with FeatureLoader(url, **static) as loader:
        next(iter(loader))
        queues = loader.stats()["queues"]
        assert (queues["pending_batches"], queues["made_rows"], queues["reserved_rows"]) == (
            1,
            0,
            0,
        )


def test_each_stage_tells_seconds_of_its_own() -> None:
    names = (
        "decode_s",
        "decode_room_s",
        "assemble_s",
        "transform_s",
        "transform_wait_s",
        "transform_room_s",
        "wait_s",
        "others_wait_s",
    )
    stats = Stats()
    stats.seconds.update({name: float(number) for number, name in enumerate(names)})
    stages = stats.stages({"wait_s": 8.0})
    told = {
        (stage, name): value
        for stage, of in stages.items()
        for name, value in of.items()
        if name.endswith("_s")
    }
    assert told == {
        ("decode", "busy_s"): 0.0,
        ("decode", "wait_for_room_s"): 1.0,
        ("assemble", "busy_s"): 2.0,
        ("transform", "busy_s"): 3.0,
        ("transform", "wait_for_blocks_s"): 4.0,
        ("transform", "wait_for_room_s"): 5.0,
        ("delivery", "wait_s"): 6.0,
        ("delivery", "wait_for_others_s"): 7.0,
        ("decode", "wait_for_files_s"): 8.0,
    }


def test_the_time_until_an_item_is_taken_is_counted() -> None:
    stats = Stats()
    closed = []

    def items() -> Generator[int, None, None]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    found = stats.paced(items(), "room_s")
    assert next(found) == 0
    started = time.perf_counter()
    torch.ones(100_000).sum()
    taken_s = time.perf_counter() - started
    assert list(found) == [1, 2]
    assert stats.seconds["room_s"] >= taken_s
    assert closed == [True]


def test_a_bar_shows_rows_waiting_and_staged_bytes() -> None:
    terminal, stats = Terminal(), Stats()
    stager: Any = SimpleNamespace(stats=lambda: StagingStats(staged_bytes=3_000_000))
    bar = RowBar(stats, stager, 1000, file=terminal)
    stats.seconds["wait_s"] = 1e9
    bar.show(500)
    bar.close()
    assert "train:  50%" in terminal.getvalue()
    assert "500/1.00k" in terminal.getvalue()
    assert "waited 100%, 3 MB staged" in terminal.getvalue()


def test_a_bar_is_silent_where_nobody_looks() -> None:
    nowhere = io.StringIO()
    bar = RowBar(Stats(), file=nowhere)
    bar.show(500)
    bar.close()
    assert nowhere.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"num_epochs": 2}, "train: 100%"),
        ({"where": "y = 1"}, "30.0k rows"),
        ({"progress": False}, None),
    ],
)
def test_a_loader_shows_a_bar_if_asked(
    url: str, monkeypatch: pytest.MonkeyPatch, arguments: Any, shown: str | None
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    config = {"table": url, "slots": ["id"], "progress": True, **arguments}
    for _ in FeatureLoader.from_config(config):
        pass
    assert (shown or "") in terminal.getvalue()
    assert (terminal.getvalue() == "") == (shown is None)


def test_workers_of_a_dataloader_show_none_where_nobody_looks(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = FeatureLoader(url, slots=["id"], progress=True)
    for _ in DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork"):
        pass
    assert capfd.readouterr().err == ""
