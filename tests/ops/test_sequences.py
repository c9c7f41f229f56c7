from collections import Counter

import pyarrow as pa

from featstore.ops.lists import align, aligned_type, column_of

ITEMS = pa.array([["a", "b"], ["c"], None, [], ["d", None, "", "e"], ["f"]])
PRICES = pa.array([[1.0, -0.0], [2.0, 3.0], None, [], [4.0, 5.0, 6.0, 1e300], None])


def test_events_are_cut_and_dropped_together_and_counted() -> None:
    counts: Counter[str] = Counter()
    events = align(ITEMS, PRICES, max_len=2, truncate="head", empty_as_null=True, counts=counts)
    events.validate(full=True)
    assert events.type == aligned_type([ITEMS.type, PRICES.type])
    assert column_of(events, position=0).to_pylist() == [["a", "b"], None, None, [], ["d"], None]
    assert (
        str(column_of(events, position=1).to_pylist())
        == "[[1.0, 0.0], None, None, [], [4.0], None]"
    )
    assert counts == {"lengths differ": 2, "incomplete elements": 3}


def test_a_slice_of_rows_gives_its_own_events() -> None:
    whole = align(
        ITEMS, PRICES, max_len=None, truncate="head", empty_as_null=False, counts=Counter()
    )
    part = align(
        ITEMS.slice(3),
        PRICES.slice(3),
        max_len=None,
        truncate="head",
        empty_as_null=False,
        counts=Counter(),
    )
    assert part.to_pylist() == whole.to_pylist()[3:]
