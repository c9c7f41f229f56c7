"""Which rows a run, or the model of a checkpoint, has seen: compared with what its loop was given."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from featstore.base.errors import (
    ConfigError,
    DispatchError,
    SelectionError,
    StateError,
)
from featstore.dispatch.receipt import receipts
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.row_history import EpochRows, FileRows, RowHistory
from featstore.loader.receipt_rows import receipt_rows
from featstore.tools.cli import cli
from tests.loader.conftest import ROWS_PER_FILE, merged_state, rows_of, rows_table

WHERE = "row % 3 = 1"
MATCHING = {row for row in range(sum(ROWS_PER_FILE)) if row % 3 == 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "files": {},
    "windows of row groups": {"shuffle": {"window_rows": 1}},
    "mixed windows": {"shuffle": {"window_rows": 80, "interleave": 2}},
    "splits": {"shuffle": {"window_rows": 80, "interleave": 2}, "dispatch": {"split_rows": 32}},
    "filters": {
        "where": "row % 4 != 1 and dt != '2026-11-04'",
        "labels": [{"name": "ripe", "null": "drop"}],
        "shuffle": {"window_rows": 40},
    },
    "negatives": {"labels": ["click"], "negatives": {"label": "click", "rate": 0.5}},
}


class Run:
    """A run of one config, and what to ask of it."""

    def __init__(self, directory: Path, table: str, **options: Any) -> None:
        self.store, self._config = f"sqlite://{directory}/store.sqlite", directory / "train.yaml"
        dispatch = {"store": self.store, "run_id": "run", **options.pop("dispatch", {})}
        self.config = {
            "table": table,
            "slots": ["row"],
            "batch_size": 10,
            "seed": 3,
            **options,
            "dispatch": dispatch,
        }
        self._config.write_text(yaml.safe_dump(self.config))

    @property
    def command(self) -> list[str]:
        """The command, without its condition."""
        about = ["--store", self.store, "--run-id", "run", "--config", str(self._config)]
        return ["dispatch", "receipt", *about]

    def loader(self) -> FeatureLoader:
        return FeatureLoader(**self.config)

    def ask(self, where: str = WHERE, **options: Any) -> RowHistory:
        return receipt_rows(str(self._config), where, store=self.store, run_id="run", **options)

    def ask_of_state(self, state: Any) -> RowHistory:
        path = self._config.with_name("state.json")
        path.write_text(json.dumps(state))
        return self.ask(state=str(path))


def numbers(files: Iterable[FileRows]) -> list[int]:
    """The rows' numbers in the table of `table_url`, each as often as it is named."""
    firsts = [*itertools.accumulate(ROWS_PER_FILE, initial=0)]
    return [
        firsts[int(each.path[len("dt=2026-11-0") :][0]) - 1] + row
        for each in files
        for first, end in each.rows
        for row in range(first, end)
    ]


def rows_with(epoch: EpochRows, fate: str) -> set[int]:
    return set(numbers(each for each in epoch.files if each.fate == fate))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rows_are_delivered_where_the_loop_was_given_them(
    tmp_path: Path, table_url: str, options: dict[str, Any]
) -> None:
    run = Run(tmp_path, table_url, **options)
    with run.loader() as loader:
        batches = iter(loader)
        given = set(rows_of(itertools.islice(batches, 6)))
        loader.ack()
        state = loader.state_dict()
    found = run.ask()
    [epoch] = found.epochs
    assert len(given) == 60
    assert rows_with(epoch, "delivered") == given & MATCHING
    [of_state] = run.ask_of_state(state).epochs
    assert rows_with(of_state, "delivered") == given & MATCHING
    # Every row is somewhere, once: those that an epoch leaves out are known from an epoch.
    with FeatureLoader(**{**run.config, "dispatch": "auto"}) as loader:
        whole = set(rows_of(loader))
    assert rows_with(epoch, "not delivered") == (whole - given) & MATCHING
    assert set(numbers(found.left_out)) == MATCHING - whole
    assert sorted(numbers((*epoch.files, *found.left_out))) == sorted(MATCHING)
    assert found.num_rows == len(MATCHING)


@pytest.mark.parametrize("options", [{}, OPTIONS["splits"]], ids=["files", "splits"])
def test_a_state_counts_what_its_model_has_seen_and_the_run_what_was_delivered_since(
    tmp_path: Path, table_url: str, options: dict[str, Any]
) -> None:
    run = Run(tmp_path, table_url, num_epochs=2, **options)
    with run.loader() as loader:
        batches = iter(loader)
        seen = rows_of(itertools.islice(batches, 35))
        loader.ack()
        state = loader.state_dict()
        since = rows_of(itertools.islice(batches, 3))
        loader.ack()
    assert state["epoch"] == 1
    of_second = set(seen[sum(ROWS_PER_FILE) :])
    first, second = run.ask_of_state(state).epochs
    assert rows_with(first, "delivered") == MATCHING
    assert rows_with(second, "delivered") == of_second & MATCHING
    assert rows_with(run.ask(epoch=1).epochs[0], "delivered") == (of_second | {*since}) & MATCHING

    with run.loader() as restored:
        restored.load_state_dict(state)
        batches = iter(restored)
        rest = rows_of(itertools.islice(batches, 4))
        restored.ack()
        later = restored.state_dict()
    *_, last = run.ask().epochs
    assert len(run.ask().epochs) == 3
    assert rows_with(last, "delivered") == {*rest} & MATCHING
    # Of splits that nobody has claimed since, only the state knew.
    before = rows_with(last, "delivered before a restore")
    assert before <= of_second & MATCHING <= before | rows_with(last, "perhaps delivered")
    assert rows_with(run.ask_of_state(later).epochs[-1], "delivered") == (
        (of_second | {*rest}) & MATCHING
    )


def test_rows_that_are_reserved_and_not_acknowledged_are_perhaps_delivered(
    tmp_path: Path, table_url: str
) -> None:
    run = Run(tmp_path, table_url)
    with run.loader() as loader:
        batches = iter(loader)
        given = set(rows_of(itertools.islice(batches, 3)))
        [epoch] = run.ask().epochs
        acknowledged = rows_with(epoch, "delivered")
        assert given & MATCHING <= acknowledged | rows_with(epoch, "perhaps delivered")
        assert acknowledged < given & MATCHING  # The batch that the loop works on is in neither.


@pytest.mark.parametrize("is_vacuumed", [False, True])
def test_the_version_that_the_run_has_read_is_found_and_files_that_are_gone_are_named(
    tmp_path: Path, is_vacuumed: bool
) -> None:
    table = str(tmp_path / "table")
    for first in (0, 40):
        deltalake.write_deltalake(table, rows_table(first, 40), mode="append")
    paths = deltalake.DeltaTable(table).file_uris()
    run = Run(tmp_path, table)
    with run.loader() as loader:
        rows_of(loader)
    deltalake.write_deltalake(table, rows_table(0, 5), mode="overwrite")
    if is_vacuumed:
        [gone] = [path for path in paths if pq.read_table(path)["row"][0].as_py() == 40]
        Path(gone).unlink()
    found = run.ask("row = 7 or row = 41")
    assert found.version == 1
    [epoch] = found.epochs
    known = {each.rows for each in epoch.files if each.rows}
    assert known == ({((7, 8),)} if is_vacuumed else {((7, 8),), ((1, 2),)})
    if is_vacuumed:
        assert found.gone == (Path(gone).name,)
        assert [(each.fate, each.num_rows) for each in epoch.files if not each.rows] == [
            ("delivered", 40)
        ]
        assert "is not known: the file is gone" in str(found)
        assert "40 rows, which of them is not known" in str(found)


def test_a_version_whose_splits_are_in_files_that_are_gone_is_named(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    deltalake.write_deltalake(table, rows_table(0, 40))
    run = Run(tmp_path, table, dispatch={"split_rows": 16})
    with run.loader() as loader:
        rows_of(loader)
    assert run.ask("row = 7").num_rows == 1
    [path] = deltalake.DeltaTable(table).file_uris()
    Path(path).unlink()
    with pytest.raises(DispatchError, match=rf"cannot be read: .*{Path(path).name}"):
        run.ask("row = 7")


def test_the_command_names_files_rows_and_workers(tmp_path: Path, table_url: str) -> None:
    run = Run(tmp_path, table_url, where="row != 72")
    with run.loader() as loader:
        rows_of(loader)
    done = CliRunner().invoke(cli, [*run.command, "--rows", "row in (3, 4, 5, 71, 72)"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[:3] == [
        f"5 rows of {table_url} where row in (3, 4, 5, 71, 72)",
        "left out 1, by the filters of the loader",
        "  dt=2026-11-03/part.parquet: rows 2",
    ]
    assert lines[4] == "delivered 4"
    assert lines[5].startswith("  dt=2026-11-01/part.parquet: rows 3-5; ")
    assert lines[6].startswith("  dt=2026-11-03/part.parquet: rows 1; ")
    done = CliRunner().invoke(cli, [*run.command, "--rows", "row = 3", "--json"])
    content = json.loads(done.output)
    [of_epoch] = content.pop("epochs")
    assert content == {
        "table": table_url,
        "version": None,
        "where": "row = 3",
        "num_rows": 1,
        "left_out": [],
        "gone": [],
        "unrecorded": [],
    }
    assert of_epoch.keys() == {"name", "epoch", "files"}
    [of_file] = of_epoch["files"]
    assert of_file.pop("worker") in lines[5]
    assert of_file == {
        "path": "dt=2026-11-01/part.parquet",
        "fate": "delivered",
        "num_rows": 1,
        "rows": [[3, 4]],
        "num_twice_at_most": 0,
    }
    done = CliRunner().invoke(cli, [*run.command, "--rows", "row = 1000"])
    assert done.output.splitlines()[-1] == "no such row"


def test_what_cannot_be_answered_is_refused(tmp_path: Path, table_url: str) -> None:
    run = Run(tmp_path, table_url, shuffle={"window_rows": 40, "interleave": 2})
    with run.loader() as loader:
        rows_of(loader)
        state = loader.state_dict()
    with pytest.raises(SelectionError, match="rowe"):
        run.ask("rowe = 1")
    with pytest.raises(ConfigError, match="expected an epoch or a state, found both"):
        run.ask(epoch=0, state="state.json")
    with pytest.raises(StateError, match="seed"):
        run.ask_of_state({**state, "seed": 4})
    with pytest.raises(StateError, match=r"worker \[1\] missing"):
        run.ask_of_state({**state, "num_workers": 2})
    (tmp_path / "torch.pt").write_bytes(b"PK")
    with pytest.raises(StateError, match="as JSON, found"):
        run.ask(state=str(tmp_path / "torch.pt"))
    other = Run(tmp_path, table_url, shuffle={"window_rows": 40, "interleave": 4})
    with pytest.raises(
        ConfigError, match=r"expected windows of 10 rows .*, found that the run had 20"
    ):
        other.ask()
    other = Run(tmp_path, table_url, where="row > 3")
    with pytest.raises(DispatchError, match=r"expected epochs of a loader of .*train\.yaml, found"):
        other.ask()
    with pytest.raises(DispatchError, match=r"has no epoch 7 of run 'run': is it the run_id"):
        run.ask(epoch=7)
    in_order = Run(tmp_path, table_url, order="static", dispatch={"run_id": "static"})
    with in_order.loader() as loader:
        rows_of(loader)
    with pytest.raises(
        DispatchError, match=r"'static': .*Orders other than dynamic have no receipts"
    ):
        receipts(run.store, "static")
    run = Run(tmp_path, table_url, shuffle={"window_rows": 40, "interleave": 2})
    (tmp_path / "train.yaml").write_text(yaml.safe_dump({**run.config, "follow": True}))
    with pytest.raises(ConfigError, match="expected the config of one table that is not followed"):
        other.ask()
    done = CliRunner().invoke(cli, [*run.command, "--state", "state.json"])
    assert (done.exit_code, "--rows and --config go together" in done.output) == (2, True)


def test_a_state_of_all_workers_counts_as_one(tmp_path: Path, table_url: str) -> None:
    run = Run(tmp_path, table_url)
    with run.loader() as loader:
        given = rows_of(itertools.islice(loader, 4))
        state = merged_state([loader])
    assert rows_with(run.ask_of_state(state).epochs[0], "delivered") == {*given} & MATCHING


def test_a_state_of_workers_in_two_epochs_counts_both(
    tmp_path: Path, table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 7 batches of an epoch one rank has 4 and the other 3."""
    run = Run(tmp_path, table_url, num_epochs=2, order="static", batch_size=40)
    monkeypatch.setenv("WORLD_SIZE", "2")
    states, given = [], list[int]()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with run.loader() as loader:
            given += rows_of(itertools.islice(loader, 4))
            loader.ack()
            states.append(loader.state_dict())
    assert [state["epoch"] for state in states] == [0, 1]
    first, second = run.ask_of_state(FeatureLoader.merge_states(states)).epochs
    assert (first.epoch, second.epoch) == (0, 1)
    assert rows_with(first, "delivered") == MATCHING
    assert rows_with(second, "delivered") == {*given[-40:]} & MATCHING
