"""Statistics of histories are those of lists that each row would have of its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore.extraction.units import unit_statistics
from featstore.extraction.units.unit_statistics import (
    history_statistics,
    history_summaries,
    merged_histories,
)
from featstore.histories.file_format import HistoryRanges
from featstore.statistics.column_statistics import Statistics, merge_statistics
from tests.history_tables import HISTORY

LATE = replace(HISTORY, logged_at="arrived")
CUT = replace(LATE, window_us=15_000_000)


@st.composite
def row_groups(draw: st.DrawFn, history: Any) -> tuple[HistoryRanges, np.ndarray]:
    """Ranges in events of one key, and times of rows."""
    at = draw(st.lists(st.integers(-9_000_000, 9_000_000), min_size=1, max_size=12))
    at = sorted(at) if history is HISTORY else at
    place = st.integers(0, len(at))
    rows = draw(st.lists(st.tuples(place, place, st.integers(9_000_001, 99_000_000)), max_size=12))
    begin = np.array([min(row[:2]) for row in rows], np.int64)
    end = np.array([max(row[:2]) for row in rows], np.int64)
    as_of = np.array([row[2] for row in rows], np.int64)
    # In pieces, as extraction has them.
    cut = draw(place)
    pieces = [np.array(at[:cut], np.int64), np.array(at[cut:], np.int64)]
    keys = np.ones(len(rows), np.int64)
    ranges = HistoryRanges(
        history=history,
        keys=keys,
        sharing=keys,
        begin=begin,
        end=end,
        values={history.times.name: pieces},
    )
    return ranges, as_of


@pytest.mark.parametrize("history", [HISTORY, LATE, CUT], ids=["plain", "late", "window"])
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_figures_are_those_of_all_events_that_rows_see(
    history: Any, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_statistics, "_EVENTS_AT_ONCE", 7)  # So that rows are cut into parts.
    groups = data.draw(st.lists(row_groups(history), min_size=1, max_size=3))
    ages, lengths, num_rows = list[float](), list[int](), 0
    for ranges, as_of in groups:
        at = np.concatenate(ranges.values["clicks_at"])
        num_rows += len(as_of)
        for begin, end, time in zip(ranges.begin, ranges.end, as_of, strict=True):
            oldest = time - (history.window_us or 2**62)
            seen = [each for each in at[begin:end].tolist() if each >= oldest]
            ages += [(time - each) / 1e6 for each in seen]
            lengths += [len(seen)] if seen else []
    merged = merged_histories(one for group in groups for one in history_statistics(*group))
    assert merged.num_rows == 0
    of_rows = Statistics(num_rows=num_rows)
    stored = merge_statistics([of_rows, merged])
    again = Statistics.from_table(stored.to_table(), stored.num_rows)
    found = history_summaries(again, [history])["clicks"]
    assert (found.num_rows, found.num_present) == (num_rows, len(lengths))
    assert found.num_values == sum(lengths)
    if lengths:
        assert found.length_mean == pytest.approx(np.mean(lengths))
        assert found.length_max == max(lengths)
        assert found.mean == pytest.approx(np.mean(ages))
        assert (found.min, found.max) == pytest.approx((min(ages), max(ages)))
        assert found.quantiles is not None
        expected = np.quantile(ages, [0.01, 0.25, 0.5, 0.75, 0.99], method="inverted_cdf")
        assert found.quantiles == pytest.approx(expected.tolist())
        assert found.rank_error == 0
    else:
        assert (found.length_mean, found.mean, found.quantiles) == (None, None, None)


def test_quantiles_of_many_events_are_within_their_error() -> None:
    random = np.random.default_rng(3)
    at = np.sort(random.integers(0, 10**12, 30_000))
    begin = random.integers(0, 29_000, 2_000)
    end = begin + random.integers(0, 1_000, 2_000)
    as_of = at[np.maximum(end, 1) - 1] + 10**9
    keys = np.ones(2_000, np.int64)
    values = {"clicks_at": [at]}
    ranges = HistoryRanges(
        history=HISTORY, keys=keys, sharing=keys, begin=begin, end=end, values=values
    )
    found = history_summaries(merged_histories(history_statistics(ranges, as_of)), [HISTORY])
    ages = np.sort(
        np.concatenate(
            [(time - at[b:e]) / 1e6 for b, e, time in zip(begin, end, as_of, strict=True)]
        )
    )
    one = replace(found["clicks"], num_rows=2_000)
    assert one.num_values == len(ages) > 500_000
    assert one.mean == pytest.approx(ages.mean())
    assert one.quantiles is not None
    for share, age in zip([0.01, 0.25, 0.5, 0.75, 0.99], one.quantiles, strict=True):
        assert abs(np.searchsorted(ages, age) / len(ages) - share) < 0.03


def test_a_history_without_statistics_is_left_out() -> None:
    assert history_summaries(Statistics(num_rows=5), [HISTORY]) == {}
