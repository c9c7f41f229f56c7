"""In a row where some lists of a sequence are missing, each of them has a mark for each event."""

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.loader.request.sequences import aligned
from featstore.reading.buffers import Ragged

SLOTS = (
    Slot(name="item", kind=SlotKind.ID, shape=(None,), sequence="clicks"),
    Slot(name="age", kind=SlotKind.FLOAT, shape=(None,), sequence="clicks"),
    Slot(name="user_x_item", kind=SlotKind.ID, shape=(None,), sequence="clicks"),
)
# The number of events of a row, and which of the three lists are missing. An operator may have
# dropped the last event of the second one.
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.booleans(), min_size=3, max_size=3), st.booleans()),
    max_size=6,
)


def ragged(slot: Slot, rows: list[list[float]], dtype: Any, before: int) -> Ragged:
    """Lists whose first begins at `before`, as views of a file's columns may."""
    values = [slot.missing] * before + [value for row in rows for value in row]
    of_float = np.float32 if slot.kind is SlotKind.FLOAT else np.int64
    offsets = before + np.cumsum([0, *map(len, rows)])
    return Ragged(np.array(values, of_float), offsets.astype(dtype))


def plain(of: Ragged) -> list[list[float | None]]:
    rows = [of.values[of.offsets[row] : of.offsets[row + 1]].tolist() for row in range(len(of))]
    return [[None if math.isnan(value) else value for value in row] for row in rows]


@given(rows=ROWS, dtype=st.sampled_from([np.int32, np.int64]), before=st.integers(0, 2))
def test_a_missing_list_has_a_mark_for_each_event(rows: Any, dtype: Any, before: int) -> None:
    stored, expected = list[list[list[float]]](), list[list[list[float | None]]]()
    for at, slot in enumerate(SLOTS):
        mark = None if slot.kind is SlotKind.FLOAT else 0
        stored.append([])
        expected.append([])
        for num_events, missing, is_dropped in rows:
            lengths = [num_events, max(0, num_events - is_dropped), num_events]
            known = [n for n, is_missing in zip(lengths, missing, strict=True) if not is_missing]
            list_: list[float] = [slot.missing] if missing[at] else [7] * lengths[at]
            stored[-1].append(list_)
            expected[-1].append([mark] * (max(known) if known else 1) if missing[at] else [*list_])
    columns = {
        slot.name: ragged(slot, of, dtype, before) for slot, of in zip(SLOTS, stored, strict=True)
    }
    found = aligned([SLOTS], lambda slot: columns[slot.name])
    assert [plain(found.get(slot.name, columns[slot.name])) for slot in SLOTS] == expected
    for name, of in found.items():
        assert plain(of) != plain(columns[name])  # What need not change is not made anew.
        assert of.values.dtype == columns[name].values.dtype


def test_sequences_do_not_look_at_each_other() -> None:
    [item, age, _] = SLOTS
    columns = {
        "item": ragged(item, [[1, 2]], np.int64, 0),
        "age": ragged(age, [[math.nan]], np.int64, 0),
    }
    assert aligned([[item], [age]], lambda slot: columns[slot.name]) == {}
    assert plain(aligned([[item, age]], lambda slot: columns[slot.name])["age"]) == [[None, None]]
