from collections import Counter
from typing import Any

import pyarrow as pa

from featstore.ops.columns import clean, read_column, readable
from featstore.ops.maps import lookup

PRICES = pa.map_(pa.string(), pa.float64())
NESTED = pa.map_(pa.string(), PRICES)
NAN = float("nan")


def maps(
    values: list[Any], declared: pa.DataType = PRICES, start: int = 0
) -> tuple[pa.MapArray, Counter[str]]:
    counts: Counter[str] = Counter()
    raw = pa.array(values, declared).slice(start)
    result = clean(read_column(raw, declared=declared, counts=counts), counts=counts)
    result.validate(full=True)
    return result, counts


def test_a_map_is_read_from_narrower_types_and_not_from_others() -> None:
    raw = pa.array([[(b"a", 1)], None], pa.map_(pa.binary(), pa.int32()))
    assert readable(raw.type, PRICES)
    assert read_column(raw, declared=PRICES, counts=Counter()).to_pylist() == [[("a", 1.0)], None]
    assert not readable(pa.map_(pa.int64(), pa.float64()), PRICES)
    assert not readable(pa.list_(pa.float64()), PRICES)
    assert readable(NESTED, NESTED)
    assert not readable(PRICES, NESTED)


def test_entries_without_a_value_are_dropped_and_counted_at_any_depth() -> None:
    cleaned, counts = maps([[("x", 9.0)], [("a", None), ("b", NAN), ("c", -0.0)], None], start=1)
    assert str(cleaned.to_pylist()) == "[[('c', 0.0)], None]"
    assert counts == {"null elements": 1, "nan": 1}
    nested, counts = maps([[("a", [("b", None)]), ("c", None)]], NESTED)
    assert nested.to_pylist() == [[("a", [])]]
    assert counts == {"null elements": 2}


def test_the_last_of_equal_keys_counts() -> None:
    column, _ = maps([[("a", 1.0), ("b", 5.0), ("a", 2.0)]])
    assert lookup(column, pa.array(["a"]), combiner=None, counts=Counter()).to_pylist() == [2.0]


def test_a_key_is_looked_up_in_the_map_of_its_own_row_only() -> None:
    column, _ = maps([[("a", 1.0)], [("b", 2.0)], [], None])
    assert lookup(
        column, pa.array(["b", "b", "a", "a"]), combiner=None, counts=Counter()
    ).to_pylist() == [
        None,
        2.0,
        None,
        None,
    ]


def test_no_rows_give_no_values() -> None:
    column, _ = maps([])
    assert (
        lookup(column, pa.array([], pa.string()), combiner=None, counts=Counter()).to_pylist() == []
    )
