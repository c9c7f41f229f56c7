"""Ranges of histories, from columns that fit. What damaged ones give: `tests/reading/test_histories.py`."""

from typing import Any

import numpy as np
import pytest

from featstore.native import kernels

# Of two keys in row groups of 3 and 2 rows, of which the first has a list of 3 events; and one that
# has no key.
FITTING: dict[str, Any] = {
    "end": np.array([2, 1, 3, 0, 2], np.int32),
    "length": np.array([1, 1, 3, 0, 2], np.int32),
    "back": np.array([0, 0, 2, 0, 0], np.int32),
    "keys": np.array([7, 9, 7, 0, 9]),
    "sizes": np.array([3, 2]),
    "offsets": np.array([0, 3, 4, 4, 4, 6]),
    "offset_width": 8,
    "num_events": 6,
    "as_of": np.array([12, 14, 13, -100, 16]),
    "at": np.arange(10, 16),
    "most_us": 99,
    "max_len": 2,
    "ranges": np.zeros((5, 2), np.int64),
}


def test_the_newest_events_of_each_row() -> None:
    for offsets in (FITTING["offsets"], FITTING["offsets"].astype(np.int32)):
        ranges = np.zeros((5, 2), np.int64)
        of = {**FITTING, "offsets": offsets, "offset_width": offsets.itemsize, "ranges": ranges}
        assert kernels.history_ranges(*of.values()) == (0, 4)
        assert ranges.tolist() == [[1, 2], [3, 4], [1, 3], [4, 4], [4, 6]]


@pytest.mark.parametrize(
    "change",
    [
        {"offset_width": 2},
        {"end": FITTING["end"][1:]},
        {"length": FITTING["length"][1:]},
        {"back": FITTING["back"][1:]},
        {"keys": FITTING["keys"][1:]},
        {"sizes": np.array([3, 1])},
        {"offsets": FITTING["offsets"][1:]},
        {"num_events": -1},
        {"num_events": 7},
        {"as_of": FITTING["as_of"][1:]},
        {"most_us": -1},
        {"max_len": -1},
        {"ranges": np.zeros((4, 2), np.int64)},
    ],
    ids=lambda change: "-".join(change),
)
def test_sizes_that_do_not_match(change: Any) -> None:
    with pytest.raises(ValueError, match="expected what each row and event has, row groups of all"):
        kernels.history_ranges(*{**FITTING, **change}.values())
