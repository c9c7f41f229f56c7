"""Epochs of loaders, and other readers of rows."""

import json
import os
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import featstore
from featstore.base.errors import FeatstoreError
from tests.faults.failing_calls import reader
from tests.faults.failing_calls.commands import day, extract, put_day, write_specs
from tests.faults.failing_calls.forked import Ending
from tests.faults.failing_calls.reader import Content
from tests.faults.failing_calls.scenario import Rows, Scenario, in_any_order, in_order
from tests.parquet_files import put_parquet

BATCH_ROWS = 16
COLUMNS = ["row", "c2"]
WIDE, NUM_FILES, FILE_ROWS = 12, 3, 60


def _table(root: Path) -> None:
    """A Delta table of three days of two files."""
    write_specs(root)
    for number in range(3):
        put_day(root, number)
        extract(root, *day(number))


def _directory(root: Path) -> None:
    """A plain directory of files of three row groups."""
    for file in range(NUM_FILES):
        rows = range(file * FILE_ROWS, (file + 1) * FILE_ROWS)
        columns: dict[str, Any] = {"row": list(rows)}
        columns |= {f"c{i}": [row * i for row in rows] for i in range(WIDE)}
        path = root / "table" / f"part={file}" / "rows.parquet"
        put_parquet(path, columns, row_group_size=20)


def _read_nothing(root: Path) -> Content:
    """A reader leaves nothing: what is in a cache shows at the next epoch."""
    return reader.parquet(root / "table")


def _epoch(root: Path, rows: Rows, pause_s: float = 0.0, **options: Any) -> None:
    with _loader(root, **options) as loader:
        for batch in loader:
            rows.extend(_pairs(batch))
            time.sleep(pause_s)


def _loader(root: Path, **options: Any) -> featstore.FeatureLoader:
    return featstore.FeatureLoader(
        str(root / "table"), slots=COLUMNS, batch_size=BATCH_ROWS, seed=3, **options
    )


def _pairs(batch: featstore.Batch) -> list[list[int]]:
    return [list(row) for row in zip(*(batch[name].tolist() for name in COLUMNS), strict=True)]


def _of_delta(root: Path, rows: Rows) -> None:
    options: dict[str, Any] = {"slots": ["user", "cost"], "labels": ["click"], "extras": ["row"]}
    with featstore.FeatureLoader(str(root / "table"), batch_size=BATCH_ROWS, **options) as loader:
        for batch in loader:
            ids, costs = batch["user"].tolist(), batch["cost"].tolist()
            keys = batch.extras["row"].to_pylist()
            rows.extend(map(list, zip(keys, ids, costs, strict=True)))


def _staged(root: Path, **options: Any) -> dict[str, Any]:
    return {"directory": str(root / "cache"), **options}


def _samples(root: Path, rows: Rows) -> None:
    staging = _staged(root)
    with featstore.SampleDataset(str(root / "table"), slots=COLUMNS, staging=staging) as dataset:
        for indices in ([5, 170, 64, 5], range(len(dataset))):
            rows.extend(_pairs(dataset[list(indices)]))


def _resumed(root: Path, rows: Rows) -> None:
    """From a state of a run that was stopped in the middle of its epoch."""
    with _loader(root, shuffle=True, staging=_staged(root, mode="whole")) as loader:
        loader.load_state_dict(json.loads((root / "state.json").read_text()))
        for batch in loader:
            rows.extend(_pairs(batch))


def _stopped(root: Path) -> None:
    _directory(root)
    with _loader(root, shuffle=True) as loader:
        for _ in zip(range(4), loader, strict=False):
            state = loader.state_dict()
        (root / "state.json").write_text(json.dumps(state))


def _two(root: Path, rows: Rows) -> None:
    """Two processes on one store; the first entry says how each of them ended."""
    store = f"sqlite://{root}/store.sqlite"
    dispatch = {"store": store, "run_id": uuid.uuid4().hex, "lease_s": 2.0, "split_rows": 20}
    options: dict[str, Any] = {"dispatch": dispatch, "staging": _staged(root, mode="whole")}
    source, target = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(source)
        with os.fdopen(target, "w") as file:
            json.dump(_told(root, options), file)
        os._exit(0)
    os.close(target)
    mine = _told(root, options)
    with os.fdopen(source) as file:
        text = file.read()
    os.waitpid(other, 0)
    rows.extend([mine, json.loads(text) if text else [["ended by a signal"], []]])


def _told(root: Path, options: dict[str, Any]) -> list[Any]:
    """How an epoch ended, nothing where it came to its end, and its rows."""
    rows: Rows = []
    try:
        _epoch(root, rows, pause_s=0.02, **options)  # else one of them reads all
    except FeatstoreError as error:
        return [[str(error)], rows]
    except BaseException:  # noqa: BLE001  a process's boundary
        return [[traceback.format_exc()], rows]
    return [[], rows]


def _of_two(clean: Rows, ending: Ending) -> str | None:
    """No row is missing where one process came to the end; each comes once where both did."""
    if len(ending.delivered) != 2:
        return None if ending.code else "nothing was delivered"
    wanted = sorted(row for _, rows in clean for row in rows)
    got = sorted(row for _, rows in ending.delivered for row in rows)
    errors = [error for errors, _ in ending.delivered for error in errors]
    if not errors and got != wanted:
        return f"{len(got)} rows of {len(wanted)}"
    missing = len(wanted) - len({tuple(row) for row in got})
    if len(errors) == 1 and missing:
        nums = [len(rows) for _, rows in ending.delivered]
        return f"{missing} rows are missing, delivered {nums}, after: {errors[0][-300:]}"
    return None


def _of_epoch(name: str, prepare: Callable[[Path], None] = _directory, **options: Any) -> Scenario:
    """A scenario of a loader with these options; those of staging are made by the directory."""

    def act(root: Path, rows: Rows) -> None:
        given = {key: make(root) if callable(make) else make for key, make in options.items()}
        _epoch(root, rows, **given)

    # Who goes on without a file tries it again at the end, and staged files come first.
    is_ordered = not {"on_bad_file", "staging"} & options.keys()
    judge = in_order if is_ordered else in_any_order
    return Scenario(name=name, prepare=prepare, act=act, read=_read_nothing, judge=judge)


def _with(**options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda root: _staged(root, **options)


EPOCHS = (
    Scenario(name="epoch-delta", prepare=_table, act=_of_delta, read=_read_nothing, judge=in_order),
    _of_epoch("epoch-in-place"),
    _of_epoch("epoch-whole", staging=_with(mode="whole")),
    _of_epoch("epoch-ranges", staging=_with(mode="ranges")),
    _of_epoch("epoch-shuffled", shuffle={"window_rows": 40, "interleave": 2}, num_epochs=2),
    _of_epoch("epoch-skip", on_bad_file="skip"),
    _of_epoch("epoch-skip-whole", on_bad_file="skip", staging=_with(mode="whole")),
    _of_epoch("epoch-decoded", num_epochs=2, staging=_with(decoded=True)),
    Scenario(name="epoch-two", prepare=_directory, act=_two, read=_read_nothing, judge=_of_two),
    Scenario(
        name="epoch-samples", prepare=_directory, act=_samples, read=_read_nothing, judge=in_order
    ),
    Scenario(
        name="epoch-resumed", prepare=_stopped, act=_resumed, read=_read_nothing, judge=in_any_order
    ),
)
