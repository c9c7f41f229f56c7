"""Reads bytes by a format, as a whole."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from featstore.formats.parsed import RowFormat


@dataclass(frozen=True, kw_only=True)
class WholeFile:
    """What a format reads of a file.

    Attributes:
        bad: The examples of bad rows, as text.
    """

    schema: pa.Schema
    rows: list[dict[str, Any]]
    num_bad: int
    bad: list[str]
    unknown: dict[str, int]


Read = Callable[..., WholeFile]


def read_whole(of: RowFormat, data: bytes, schema: pa.Schema | None = None) -> WholeFile:
    if schema is None:
        schema = of.infer(of.sample(io.BytesIO(data), 1_000))
    parsed = list(of.read(io.BytesIO(data), schema))
    unknown: dict[str, int] = {}
    for one in parsed:
        for name, rows in one.unknown.items():
            unknown[name] = unknown.get(name, 0) + rows
    return WholeFile(
        schema=schema,
        rows=[row for one in parsed for row in one.batch.to_pylist()],
        num_bad=sum(one.num_bad for one in parsed),
        bad=[str(bad) for one in parsed for bad in one.examples],
        unknown=unknown,
    )


@pytest.fixture(scope="session")
def read() -> Read:
    return read_whole
