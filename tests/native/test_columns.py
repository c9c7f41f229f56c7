"""Windows planned by the kernels from the numbers of a footer: compared with numpy on random ones,
and the arguments they refuse.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.native import kernels
from featstore.native.bounds import COLUMN, NUMBERS_OF_CHUNK
from featstore.native.footers import Chunks
from tests.native.oracles.windows import planned

PLACES = [COLUMN[name] for name in ("offsets_in", "offsets_at", "values_in", "values_at")]
KNOWN_ENCODINGS = 0b1_0001_1101
MOST = 1 << 48
COUNTS = st.one_of(st.integers(0, 1 << 20), st.sampled_from([2**30, 2**31 - 1, 2**31, 2**40, MOST]))


@st.composite
def footers(draw: st.DrawFn) -> np.ndarray:
    """Numbers of the chunks of a few row groups and leaf columns, sound or not."""
    num_groups, num_leaves = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    is_sound, few = draw(st.booleans()), st.integers(0, 1 << 20)
    of_chunk = st.tuples(
        st.sampled_from([0, 1, 6] if is_sound else [0, 1, 6, 2, 7]),
        st.integers(0, KNOWN_ENCODINGS).map(lambda of: of & KNOWN_ENCODINGS)
        if is_sound
        else st.integers(0, 1 << 10),
        *[few if is_sound else COUNTS] * 3,
        *[st.integers(0, 2**62)] * 2,
    )
    count = num_groups * num_leaves
    chunks = draw(st.lists(of_chunk, min_size=count, max_size=count))
    return np.array(chunks, np.int64).reshape(num_groups, num_leaves, len(Chunks._fields))


@given(footers(), st.booleans(), st.booleans(), st.data())
def test_windows_are_planned_as_by_numpy(
    footer: np.ndarray, together: bool, ordered: bool, data: st.DataObject
) -> None:
    num_groups, num_leaves, _ = footer.shape
    groups = data.draw(st.lists(st.integers(0, num_groups - 1), max_size=5))
    kind = st.tuples(
        st.integers(0, num_leaves - 1), st.sampled_from([0, 1, 4, 8, 12]), st.integers(0, 1)
    )
    kinds = np.array(data.draw(st.lists(kind, max_size=4)), np.int64).reshape(-1, 3)
    rows = np.array([data.draw(st.integers(0, 2**28)) for _ in groups], np.int64)
    columns = np.full((len(kinds), len(COLUMN)), data.draw(st.integers(-(2**63), 2**63 - 1)))
    columns[:, [COLUMN[name] for name in ("leaf", "width", "repetition")]] = kinds
    chunks = np.full((len(kinds), len(groups), NUMBERS_OF_CHUNK), -7)
    before = columns.copy()
    of_groups = np.array(groups, np.int64)
    room_bytes, memory_bytes = kernels.plan_columns(
        footer, num_leaves, of_groups, rows, columns, chunks, together, ordered
    )
    of_columns = footer[of_groups[:, None], kinds[:, 0]]
    expected = planned(
        Chunks._make(np.moveaxis(of_columns, -1, 0)),
        kinds[:, 1],
        kinds[:, 2].astype(bool).tolist(),
        int(rows.sum()),
        together=together,
        ordered=ordered,
    )
    assert columns[:, COLUMN["found"]].tolist() == expected.num_values
    assert list(map(tuple, columns[:, PLACES].tolist())) == expected.places
    assert chunks.tolist() == expected.chunks.tolist()
    assert (room_bytes, memory_bytes) == (expected.room_bytes, expected.memory_bytes)
    given_numbers = [COLUMN[name] for name in list(COLUMN)[: COLUMN["offsets_in"]]]
    assert (columns[:, given_numbers] == before[:, given_numbers]).all()


def plan(**changed: Any) -> tuple[int, int]:
    """Plans two columns of two row groups of a file of three, but for what is given."""
    footer = np.tile(np.array([0, 1, 2, 100, 100, 4, 104]), (3, 2, 1))
    columns = np.zeros((2, len(COLUMN)), np.int64)
    columns[:, COLUMN["leaf"]], columns[:, COLUMN["width"]] = (0, 1), 8
    of: dict[str, Any] = {
        "footer": footer,
        "num_leaves": 2,
        "row_groups": np.array([2, 0]),
        "rows": np.array([1, 1]),
        "columns": columns,
        "chunks": np.zeros((2, 2, NUMBERS_OF_CHUNK), np.int64),
    } | changed
    for name in ("leaf", "width"):
        if name in changed:
            columns[1, COLUMN[name]] = changed[name]
    for place, number in of.get("of_footer", {}).items():
        footer[2, 1, place] = number
    of_file = of["footer"], of["num_leaves"], of["row_groups"], of["rows"]
    return kernels.plan_columns(*of_file, of["columns"], of["chunks"], True, False)


FAR = (-(2**63), -1, 2**31, 2**62, 2**63 - 1)


@pytest.mark.parametrize(
    "changed",
    [
        *({"leaf": leaf} for leaf in (*FAR, 2)),
        *({"width": width} for width in (*FAR, 17)),
        *({"row_groups": np.array([0, group])} for group in (*FAR, 3)),
        *({"rows": np.array([1, rows])} for rows in (*FAR, 2**31 - 1)),
        *({"num_leaves": leaves} for leaves in (*FAR, 0)),
        *(
            {"of_footer": {Chunks._fields.index(name): number}}
            for name in ("num_values", "stored_bytes", "raw_bytes")
            for number in (-(2**63), -1, MOST + 1, 2**63 - 1)
        ),
        {"rows": np.array([2])},
        {"row_groups": np.array([2])},
        {"row_groups": b"", "rows": b""},
        {"columns": np.zeros(21, np.int64)},
        {"columns": np.zeros((3, len(COLUMN)), np.int64)},
        {"columns": bytearray()},
        {"chunks": np.zeros(19, np.int64)},
        {"chunks": np.zeros(21, np.int64)},
        {"chunks": bytearray()},
        {"footer": b""},
        {"footer": np.zeros((2, 2, 7), np.int64)},
    ],
    ids=str,
)
def test_numbers_that_no_checked_footer_has_are_refused(changed: dict[str, Any]) -> None:
    assert plan()[1] == 128
    with pytest.raises(ValueError, match="expected row groups and leaf columns of the footer"):
        plan(**changed)


def test_more_memory_than_there_can_be_is_refused() -> None:
    """Many columns of as many values as offsets can count."""
    footer = np.array([[[0, 1, 2**31 - 1, 100, 100, 4, 104]]])
    columns = np.zeros((1 << 14, len(COLUMN)), np.int64)
    columns[:, COLUMN["width"]] = 16
    chunks, one = np.zeros((len(columns), 1, NUMBERS_OF_CHUNK), np.int64), np.zeros(1, np.int64)
    fewer, of_fewer = columns[: 1 << 12], chunks[: 1 << 12]
    assert kernels.plan_columns(footer, 1, one, one, fewer, of_fewer, True, False)[1] == 1 << 47
    with pytest.raises(ValueError, match="expected row groups and leaf columns of the footer"):
        kernels.plan_columns(footer, 1, one, one, columns, chunks, True, False)


def test_buffers_are_let_go() -> None:
    columns, chunks = bytearray(2 * 8 * len(COLUMN)), bytearray(2 * 2 * 8 * NUMBERS_OF_CHUNK)
    plan(columns=columns, chunks=chunks)
    with pytest.raises(ValueError, match="expected row groups"):
        plan(columns=columns, chunks=chunks, footer=b"")
    with pytest.raises(TypeError, match="read-write"):
        plan(columns=columns, chunks=bytes(chunks))
    columns.clear()  # BufferError if it was held.
    chunks.clear()
