import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.tools import job_extract
from tests.parquet_files import put_parquet

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "tags": "list<string>", "price": "double", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["user"],
    "slots": [
        {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
        {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
        {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    ],
    "output": {"rows_per_row_group": 100, "rows_per_file": 250},
}

WriteRaw = Callable[..., Path]


@pytest.fixture
def document() -> dict[str, Any]:
    """A small spec, to be changed by a test: two id slots, one a list, and a float slot."""
    return copy.deepcopy(DOCUMENT)


@pytest.fixture
def spec(document: dict[str, Any]) -> Spec:
    return load_spec(document)


def run_job(spec: Spec, spark: Any, arguments: list[str]) -> Any:
    """Runs what options of the job `extract` describe, on a session that is there or in threads."""
    options = job_extract.job.make_context("extract", list(arguments)).params
    job_extract.check_options(options)
    del options["spec"], options["register"]
    return job_extract.extract(spec, spark, **options)


def raw_rows(num_rows: int, first: int = 0, **more: Any) -> pa.Table:
    rows = range(first, first + num_rows)
    columns = {
        "user": pa.array([None if row % 11 == 0 else f"u{row % 50}" for row in rows], pa.string()),
        "tags": pa.array(
            [None if row % 13 == 0 else [f"t{row % 7}"] * (row % 5) for row in rows],
            pa.list_(pa.string()),
        ),
        "price": pa.array([row / 3 for row in rows]),
        "clicked": pa.array([row % 2 for row in rows]),
        "unused": pa.array(["x"] * num_rows),
    }
    return pa.table(columns | {name: pa.array([value] * num_rows) for name, value in more.items()})


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Where raw files lie."""
    return tmp_path / "raw"


@pytest.fixture
def write_raw(raw: Path) -> WriteRaw:
    """Writes one raw file of 40-row row groups; `more` are constant columns."""

    def write(name: str, num_rows: int, first: int = 0, **more: Any) -> Path:
        return put_parquet(raw / name, raw_rows(num_rows, first, **more), row_group_size=40)

    return write
