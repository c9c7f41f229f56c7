"""The metrics of a stager."""

import threading
from dataclasses import asdict

import pytest

from featstore.staging.counts import Counts, StagingStats
from tests.threads import run_together


def test_counts_begin_at_zero() -> None:
    assert set(asdict(Counts().stats(num_evicted=0)).values()) == {0}


def test_counts_add_up_by_name() -> None:
    counts = Counts()
    counts.add(num_staged=1, staged_bytes=100, wait_s=0.5)
    counts.add(num_staged=2, wait_s=0.25)
    assert counts.stats(0) == StagingStats(num_staged=3, staged_bytes=100, wait_s=0.75)


def test_evictions_are_those_of_the_cache() -> None:
    counts = Counts()
    assert counts.stats(num_evicted=7).num_evicted == 7
    assert counts.stats(num_evicted=9).num_evicted == 9


def test_stats_are_a_copy() -> None:
    counts = Counts()
    before = counts.stats(0)
    counts.add(num_hits=1)
    assert (before.num_hits, counts.stats(0).num_hits) == (0, 1)


def test_an_unknown_name_is_an_error_and_changes_nothing() -> None:
    counts = Counts()
    with pytest.raises(AttributeError, match="num_stagd"):
        counts.add(num_stagd=1)
    assert counts.stats(0) == StagingStats()


def test_no_count_of_any_thread_is_lost() -> None:
    counts, barrier = Counts(), threading.Barrier(4)

    def count() -> None:
        barrier.wait()
        for _ in range(2000):
            counts.add(fetched_bytes=1)

    run_together(*[count] * 4)
    assert counts.stats(0).fetched_bytes == 8000
