"""`featstore bench`: how fast a table is read by numbers of cores, in processes on these cores."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from featstore.base.errors import ConfigError, SelectionError, TableNotFoundError
from featstore.base.host import num_cores
from featstore.loader import bench as benching
from featstore.loader import stage
from featstore.loader.bench import bench, core_counts, epochs_in_turn
from featstore.loader.speeds import Bench, Speed
from featstore.tensors.batch import Batch
from featstore.tools import cli
from tests.parquet_files import put_parquet

NUM_FILES, FILE_ROWS = 3, 20_000
SECONDS = 0.05


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of three files, a training config of it, and of another table."""
    monkeypatch.chdir(tmp_path)
    row = np.arange(FILE_ROWS)
    for number in range(NUM_FILES):
        columns = {"user": row * 7, "price": row / 2, "click": row % 2, "unread": row}
        put_parquet(tmp_path / "table" / f"{number}.parquet", columns, row_group_size=5_000)
    config(batch_size=512)
    return tmp_path


def config(**keys: Any) -> None:
    given = {"table": "elsewhere", "slots": ["user", "price"], "labels": ["click"], **keys}
    Path("train.yaml").write_text(yaml.safe_dump(given))


@pytest.mark.parametrize(
    ("available", "most", "counts"),
    [
        (1, None, [1]),
        (2, None, [1, 2]),
        (6, None, [1, 2, 4, 6]),
        (8, None, [1, 2, 4, 8]),
        (8, 3, [1, 2, 3]),
    ],
)
def test_one_core_to_all_are_measured(available: int, most: int | None, counts: list[int]) -> None:
    assert core_counts(available, most) == counts


def test_epochs_are_timed_in_turn_for_so_long_and_at_least_thrice() -> None:
    order = list[str]()

    def run(name: str) -> Callable[[], Iterator[object]]:
        def epoch() -> Iterator[object]:
            order.append(name)
            yield from range(100)
            order.append(f"end of {name}")

        return epoch

    taken = epochs_in_turn({"a": run("a"), "b": run("b")}, 1e-9)
    assert [len(epochs) for epochs in taken.values()] == [3, 3]
    assert order == ["a", "end of a", "b", "end of b"] * 3
    started = time.perf_counter()
    taken = epochs_in_turn({"a": run("a"), "b": run("b")}, 0.01)
    assert time.perf_counter() - started >= 0.02
    assert len(taken["a"]) == len(taken["b"]) >= 3


def test_epochs_are_timed_by_the_clock_and_of_all_cores() -> None:
    def sleep() -> Iterator[object]:
        time.sleep(0.05)
        yield None

    for epoch in epochs_in_turn({"sleep": sleep}, 1e-9)["sleep"]:
        assert epoch.seconds >= 0.05 > 2 * epoch.cpu_s


def noted(batch: Batch) -> Batch:
    """A transform that notes on how many cores it runs."""
    Path(os.environ["NOTES"], f"{len(os.sched_getaffinity(0))} cores").touch()
    return batch


def test_figures_of_a_real_table_are_consistent_and_nothing_is_written(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, every = tmp_path_factory.mktemp("notes"), os.sched_getaffinity(0)
    monkeypatch.setenv("NOTES", str(notes))
    store = {"store": f"sqlite:///{here}/x.db", "run_id": "run"}
    config(batch_size=512, shuffle=True, dispatch=store, transform=f"{__name__}:noted")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    asked = ["bench", "table", "--config", "train.yaml", "--seconds", str(SECONDS)]
    done = CliRunner().invoke(cli.cli, [*asked, "--rows-per-s", "1e12", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before
    assert os.sched_getaffinity(0) == every
    cores = core_counts(num_cores(), None)
    assert {path.name for path in notes.iterdir()} == {f"{number} cores" for number in cores}
    assert (found["num_files"], found["num_all_files"]) == (NUM_FILES, NUM_FILES)
    assert (found["num_rows"], found["batch_size"]) == (NUM_FILES * FILE_ROWS, 512)
    assert found["is_shuffled"] is True
    assert [each["num_cores"] for each in found["speeds"]] == cores
    require_consistent(found)
    made = {key: found[key] for key in found if key not in ("floor", "speeds")}
    speeds = tuple(Speed(**each) for each in found["speeds"])
    text = str(Bench(**made, floor=Speed(**found["floor"]), speeds=speeds))
    assert f"{found['num_cores_needed']:,} cores, if each reads as much as one of" in text
    assert "60,000 rows of 3 of 3 files, shuffled, in batches of 512" in text


def require_consistent(found: dict[str, Any]) -> None:
    """Shares and the cores that are needed follow from speeds, which are positive."""
    floor, last = found["floor"], found["speeds"][-1]
    assert floor["share_of_floor"] == pytest.approx(1)
    for each in (floor, *found["speeds"]):
        assert 0 < each["least_rows_per_s"] <= each["rows_per_s"] <= each["most_rows_per_s"]
        assert each["num_epochs"] >= 3
        assert 0 < each["cpu_share"] < 1.1
        of_core = each["rows_per_s"] / each["num_cores"]
        assert each["share_of_floor"] == pytest.approx(of_core / floor["rows_per_s"])
        assert each["share_of_limit"] == pytest.approx(of_core / found["limit_rows_per_s"])
        assert 0 < each["share_of_limit"] < 1
    needed = found["wanted_rows_per_s"] * last["num_cores"] / last["rows_per_s"]
    assert found["num_cores_needed"] == pytest.approx(needed, rel=1e-6)


def test_of_a_mixture_the_table_alone_is_read_and_stays_in_the_cache_as_it_says(
    here: Path,
) -> None:
    mixture: dict[str, Any] = {"table": None, "tables": [{"table": "elsewhere"}], "order": "rank"}
    config(**mixture, staging={"mode": "ranges", "directory": "cache"})
    told = list[str]()
    found = bench("table", config="train.yaml", seconds=SECONDS, max_cores=1, tell=told.append)
    assert found.num_rows == NUM_FILES * FILE_ROWS
    assert told == ["1 of 1 cores, 0.05 s and more"]
    assert "3 files" in stage.list("cache")


def test_the_first_files_are_read_as_many_as_hold_the_bytes_of_a_private_cache(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_parquet(here / "table" / "00.parquet", {"user": np.arange(0), "price": np.zeros(0)})
    config(labels=[], staging={"mode": "whole"})
    (here / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(here / "private"))
    monkeypatch.setattr(benching, "_CORE_BYTES", 1)
    found = bench("table", config="train.yaml", seconds=SECONDS, max_cores=1)
    assert (found.num_files, found.num_all_files, found.num_rows) == (1, 4, FILE_ROWS)
    assert list((here / "private").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"config": "train.yaml", "table": "nowhere"}, TableNotFoundError, "nowhere"),
        ({"config": "none.yaml"}, ConfigError, "no such file"),
        ({"slots": ["usr"]}, SelectionError, "usr"),
        ({"slots": []}, ConfigError, "slot"),
        ({"slots": ["user"], "max_cores": 10_000}, ConfigError, "expected at most the"),
        ({"slots": ["user"], "table": "empty"}, ConfigError, "expected rows to read, found none"),
        ({"config": "filtered.yaml"}, ConfigError, "expected rows to read, found none in 3 files"),
    ],
)
def test_bad_input_is_one_clear_line(
    here: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    put_parquet(here / "empty" / "a.parquet", {"user": np.arange(0)})
    config(where="user < 0")
    Path("train.yaml").rename("filtered.yaml")
    config()
    with pytest.raises(error, match=said):
        bench(**{"table": "table", "max_cores": 1, "seconds": SECONDS, **options})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table"], "one of the arguments --config --slots is required"),
        (["table", "--slots", "user", "--config", "a.yaml"], "not allowed with"),
        (["--slots", "user"], "Missing option '--table'"),
        (["nowhere", "--slots", "user"], "nowhere"),
        (["table", "--slots", "usr"], "'usr'"),
    ],
)
def test_the_command_ends_with_2_on_bad_input(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["featstore", "bench", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
