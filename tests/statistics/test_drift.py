"""Drift from statistics: against the index of all rows, and within the error that it states."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.statistics.column_statistics import StatisticsGatherer
from featstore.statistics.drift import DriftMethod, drift
from featstore.statistics.measures import jensen_shannon, psi
from featstore.statistics.summary import SlotSummary, summarize

IDS = Slot(name="x", number=1, kind=SlotKind.ID, op="hash")
NUMBERS = Slot(name="x", number=1, kind=SlotKind.FLOAT, op="identity")


def of_rows(values: np.ndarray, slot: Slot) -> SlotSummary:
    """What the statistics of rows with one value each know."""
    schema = SlotSchema(slots=(slot,))
    gatherer = StatisticsGatherer(schema)
    kind = np.int64 if slot.kind is SlotKind.ID else np.float32
    for start in range(0, len(values), 10_000):
        column = pa.array(values[start : start + 10_000].astype(kind), slot.arrow_type())
        gatherer.update(pa.RecordBatch.from_arrays([column], names=["x"]))
    return summarize(gatherer.finish(), [slot])["x"]


def zipf(rng: np.random.Generator, num_rows: int, num_ids: int, shift: int = 0) -> np.ndarray:
    weights = 1 / np.arange(1, num_ids + 1) ** 1.1
    ids = rng.choice(num_ids, num_rows, p=weights / weights.sum()) + 1 + shift
    # Signs are spread over 63 bits.
    return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).astype(np.int64)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=200),
    st.lists(st.integers(0, 6), min_size=1, max_size=200),
)
def test_of_few_rows_and_ids_it_is_the_index_of_all_rows(
    before: list[int], after: list[int]
) -> None:
    found = drift([of_rows(np.array(before), IDS)], of_rows(np.array(after), IDS))
    counts = [[rows.count(value) for value in range(7)] for rows in (before, after)]
    assert found is not None
    assert found.index == pytest.approx(psi(*counts), abs=1e-9)
    assert found.jensen_shannon == pytest.approx(jensen_shannon(*counts), abs=1e-9)
    assert found.method is DriftMethod.EXACT
    assert (found.error > 0.0) == (len({*before, *after}) > 1)


@pytest.mark.parametrize("num_ids", [5, 60, 200, 5_000])
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_distribution_stay_within_the_stated_error(num_ids: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [of_rows(zipf(rng, 30_000, num_ids), IDS) for _ in range(3)]
    found = drift(parts[:2], parts[2])
    assert found is not None
    assert 0 <= found.index <= found.error < 0.12


@pytest.mark.parametrize("seed", range(5))
def test_the_error_holds_the_index_of_all_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = [rng.dirichlet(np.full(20, 2.0)) for _ in range(2)]
    rows = [rng.choice(20, 50_000, p=share) + 1 for share in shares]
    found = drift([of_rows(rows[0], IDS)], of_rows(rows[1], IDS))
    exact = psi(*(np.bincount(side, minlength=21) for side in rows))
    assert found is not None
    assert exact is not None
    assert found.error > 0
    assert abs(found.index - exact) <= found.error


def test_ids_that_moved_are_beyond_the_error() -> None:
    rng = np.random.default_rng(0)
    before, after = zipf(rng, 20_000, 300), zipf(rng, 20_000, 300, shift=20)
    found = drift([of_rows(before, IDS)], of_rows(after, IDS))
    assert found is not None
    assert found.index - found.error > 0.25


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_compared_by_deciles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, same, moved = (rng.normal(mean, 1, 20_000) for mean in (0, 0, 1))
    parts = [of_rows(rows, NUMBERS) for rows in (before, same, moved)]
    still, far = drift([parts[0]], parts[1]), drift([parts[0]], parts[2])
    assert still is not None
    assert far is not None
    assert still.index <= still.error
    # The index of two normal distributions a standard deviation apart is 1; deciles see most of it.
    assert far.index == pytest.approx(0.93, abs=0.15)
    assert far.index - far.error > 0.5


def test_missing_rows_are_a_cell_of_their_own() -> None:
    rng = np.random.default_rng(0)
    for slot, missing in ((IDS, 0), (NUMBERS, np.nan)):
        rows = rng.integers(1, 5, 4_000).astype(np.float64)
        holes = np.where(rng.random(4_000) < 0.5, missing, rows)
        found = drift([of_rows(rows, slot)], of_rows(holes, slot))
        assert found is not None
        assert found.index - found.error > 0.25, slot


def test_a_value_beyond_the_list_counts_as_little_as_it_may() -> None:
    """A list of 64 of 2,000 equally frequent ids names others on each side, though none moved."""
    rng = np.random.default_rng(0)
    before, after = (of_rows(rng.integers(1, 2_001, 60_000), IDS) for _ in range(2))
    assert set(before.values) != set(after.values)
    found = drift([before], after)
    assert found is not None
    assert found.index <= found.error
    assert found.method is DriftMethod.AT_LEAST


@pytest.mark.parametrize("parts", [[], [[]]])
def test_no_rows_have_no_drift(parts: Sequence[list[int]]) -> None:
    rows = of_rows(np.array([1, 2]), IDS)
    assert drift([of_rows(np.array(part), IDS) for part in parts], rows) is None
    assert drift([rows], of_rows(np.array([]), IDS)) is None
