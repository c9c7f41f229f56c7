"""Column chunks checked by the kernel and by numpy give the same numbers, or the same error."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.native import checks, kernels
from featstore.native.file_schema import FileSchema
from featstore.native.footers import read_checked
from featstore.native.format import ABSENT, CHUNKS, FILE, ROW_GROUPS, FooterError, Numbers
from tests.native.oracles import footer_checks as oracle

TABLE = pa.table({"id": [1, 2, 3], "tags": [[1.5], None, []], "text": ["a", "b", None]})
NUMBERS = st.sampled_from([ABSENT, -1, 0, 1, 2, 3, 8, 1 << 10, 1 << 48, 1 << 62, 2**63 - 1])


@pytest.fixture(scope="module")
def whole(written: Callable[..., bytes]) -> tuple[tuple[Numbers, ...], FileSchema, int]:
    data = written(TABLE, row_group_size=2)
    footer = read_checked(io.BytesIO(data))
    return footer.tables, footer.file_schema, len(data) - len(footer.data) - 8


def outcome(by: Callable[..., Numbers], *of: Any) -> object:
    try:
        return by(*of).tolist()
    except FooterError as error:
        return str(error)


@given(st.data())
def test_damaged_chunks_are_refused_with_the_same_words(whole: Any, data: st.DataObject) -> None:
    tables, schema, end = whole
    tables = tuple(table.copy() for table in tables)
    changed = data.draw(st.sampled_from([FILE, ROW_GROUPS, CHUNKS, CHUNKS, CHUNKS]))
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(tables[changed]) - 1))
        slot = data.draw(st.integers(0, tables[changed].shape[1] - 1))
        tables[changed][row, slot] = data.draw(NUMBERS)
    given_up = outcome(oracle.checked_chunks, tables, schema, end)
    assert outcome(checks.checked_chunks, tables, schema, end) == given_up


@pytest.mark.parametrize("name", [name for name in checks.CHUNK if name not in ("begin", "end")])
@pytest.mark.parametrize("number", [ABSENT, -1, 1 << 40, 2**63 - 1])
def test_each_number_of_a_chunk_is_checked_as_by_numpy(whole: Any, name: str, number: int) -> None:
    tables, schema, end = whole
    for row in range(6):
        found = [table.copy() for table in tables]
        found[CHUNKS][row, checks.CHUNK[name]] = number
        expected = outcome(oracle.checked_chunks, tuple(found), schema, end)
        assert outcome(checks.checked_chunks, tuple(found), schema, end) == expected


def test_a_file_without_row_groups_has_no_chunks(written: Callable[..., bytes]) -> None:
    footer = read_checked(io.BytesIO(written(TABLE.slice(0, 0), row_group_size=2)))
    assert footer.numbers.shape[1:] == (3, 7)
    assert footer.chunks_of(range(len(footer.numbers)), [0, 1]).num_values.sum() == 0


@pytest.mark.parametrize("what", range(9))
def test_what_does_not_fit_is_refused(whole: Any, what: int) -> None:
    tables, schema, end = whole
    low, high = checks.bounds(schema)
    taken = np.zeros((2, 3, 7), np.int64)
    of: list[Any] = [
        *(tables[ROW_GROUPS], tables[CHUNKS], tables[ROW_GROUPS].shape[1]),
        *(tables[CHUNKS].shape[1], checks.LAYOUT, checks.OF_RANGES, low, high, schema.levels),
        *(3, end, taken),
    ]
    assert kernels.check_chunks(*of) == (0, 0, 0)
    beyond, below = checks.LAYOUT.copy(), checks.OF_RANGES.copy()
    beyond[3], below[1, 0] = tables[CHUNKS].shape[1], -1
    changes: list[tuple[int, Any]] = [
        (1, tables[CHUNKS][:5]),
        (2, 0),
        (3, tables[CHUNKS].shape[1] + 1),
        (4, beyond),
        (4, checks.LAYOUT[:-1].copy()),
        (5, below),
        (6, low[:2].copy()),
        (8, schema.levels[:, :2].copy()),
        (11, taken[..., :6].copy()),
    ]
    place, value = changes[what]
    changed = [*of[:place], value, *of[place + 1 :]]
    with pytest.raises(ValueError, match="expected a layout within the rows of the tables"):
        kernels.check_chunks(*changed)
