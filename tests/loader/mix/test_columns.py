"""Batches of all tables are alike, or the mixture is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featstore
from featstore.base.errors import ConfigError
from tests.loader.mix.conftest import mixed
from tests.parquet_files import put_parquet


def entries(tmp_path: Path, *columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Tables of one row with these columns."""
    for i, own in enumerate(columns):
        values = {name: pa.array([value]) for name, value in own.items()}
        put_parquet(tmp_path / f"{i}" / "a.parquet", pa.table(values))
    return [{"table": str(tmp_path / f"{i}")} for i in range(len(columns))]


@pytest.mark.parametrize(
    ("first", "second", "keys", "message"),
    [
        (
            {"a": 1, "b": 1},
            {"a": 1},
            {},
            r"slots: 'b' is selected of tables\[0\].*not of tables\[1",
        ),
        (
            {"a": 1},
            {"a": 1, "b": 1},
            {},
            r"slots: 'b' is selected of tables\[1\].*not of tables\[0",
        ),
        ({"a": 1}, {"a": 1.5}, {}, "slots: 'a' differs between tables: expected kind id.*float"),
        ({"a": 1}, {"a": [1]}, {}, "slots: 'a' differs .*shape None.*shape list"),
        ({"a": 1, "b": 1}, {"b": 1, "a": 1}, {}, r"slots: expected the order \['a', 'b'\]"),
        (
            {"a": 1, "n": "x"},
            {"a": 1, "n": 5},
            {"slots": ["a"], "extras": ["n"]},
            "extras: 'n' differs between tables: expected type string",
        ),
    ],
)
def test_different_columns_are_refused_by_name(
    tmp_path: Path, first: Any, second: Any, keys: Any, message: str
) -> None:
    tables = entries(tmp_path, first, second)
    with pytest.raises(ConfigError, match=message):
        mixed(tables, **{"slots": ["*"], "labels": [], **keys})


def test_ids_of_other_slot_numbers_are_refused_since_their_signs_differ(tmp_path: Path) -> None:
    put_parquet(tmp_path / "raw" / "a.parquet", {"user": ["x", "y"]})
    for slot in (1, 2):
        slots = [{"slot": slot, "name": "user", "op": "hash", "of": "user"}]
        spec = featstore.load_spec({"spec": 1, "inputs": {"user": "string"}, "slots": slots})
        featstore.extract(spec, str(tmp_path / "raw"), str(tmp_path / f"t{slot}"))
    tables = [{"table": str(tmp_path / f"t{slot}")} for slot in (1, 2)]
    with pytest.raises(ConfigError, match=r"slots: 'user' differs .* slot 1, .* slot 2"):
        mixed(tables, slots=["user"], labels=[])
