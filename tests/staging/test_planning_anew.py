"""The first request of a file measures its remote, which may change the plan for the rest: holes
that are expensive to skip are bridged, but never beyond the reserved room, and never by waiting for
room.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

from featstore.files.transfer import RangeResponse
from featstore.staging import remote as remotes
from featstore.staging.fetcher import Source, StageItem
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from tests.threads import run_together

SIZE_BYTES, LATENCY_S = 100_000_000, 0.015
TAIL_BYTES = 64 << 10


class Remote:
    """A store that answers after a latency, and then as fast as it can. Keeps the requested spans."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def read(
        self, url: str, first: int, end: int, *, size_bytes: int, tag: str = ""
    ) -> RangeResponse:
        time.sleep(LATENCY_S)
        self.asked.append((first, end))
        slices = [min(512 << 10, end - at) for at in range(first, end, 512 << 10)]
        return RangeResponse(size_bytes=size_bytes, tag="v", blocks=map(bytes, slices))


def spans_of(count: int, num_bytes: int, hole_bytes: int) -> tuple[tuple[int, int], ...]:
    return tuple(
        (at, at + num_bytes)
        for at in range(0, count * (num_bytes + hole_bytes), num_bytes + hole_bytes)
    )


def stager_of(tmp_path: Path, spans: Any, *, budget_bytes: int, remote: Remote) -> Stager:
    options = Staging(directory=str(tmp_path), budget_bytes=budget_bytes, mode="auto")
    return Stager(options, Source(read=remote.read, plan_ranges=lambda tail, size, name: spans))


def stage(stager: Stager, name: str) -> tuple[tuple[int, int], ...] | None:
    """Stages the file and returns its held spans; None for all of it."""
    with next(
        stager.stage([StageItem(key=name, url=f"http://{name}/f.parquet", size_bytes=SIZE_BYTES)])
    ) as staged:
        return staged.held


def test_holes_are_bridged_once_the_line_is_known_to_be_fast(tmp_path: Path) -> None:
    """The prior is 1 MB/s, so that any machine is faster: 27 MB/s are enough for these holes."""
    spans, remote = spans_of(12, 5_000_000, 100_000), Remote()
    with stager_of(tmp_path, spans, budget_bytes=10**9, remote=remote) as stager:
        stager.fetcher._remotes["http://quick"] = remotes.Remote(bytes_per_s=1e6)
        held = stage(stager, "quick")
    assert remote.asked[:2] == [(SIZE_BYTES - TAIL_BYTES, SIZE_BYTES), spans[0]]
    assert len(remote.asked) < len(spans)
    assert held is None or len(held) < len(spans)


def test_requests_are_short_while_the_bandwidth_is_a_guess(tmp_path: Path) -> None:
    remote = Remote()
    with stager_of(tmp_path, ((0, 60_000_000),), budget_bytes=10**9, remote=remote) as stager:
        stage(stager, "guess")
    assert max(end - first for first, end in remote.asked[:2]) <= 8 << 20
    assert len(remote.asked) <= 4  # one more was asked for before the first one was all there


def test_two_files_that_want_more_room_do_not_wait_for_each_other(
    tmp_path: Path,
) -> None:
    spans = spans_of(12, 5_000_000, 3_000_000)
    stagers = [
        stager_of(tmp_path, spans, budget_bytes=140_000_000, remote=Remote()) for _ in range(2)
    ]
    held: dict[int, object] = {}

    def work(number: int) -> None:
        held[number] = stage(stagers[number], f"host{number}")

    run_together(*(partial(work, number) for number in range(2)))
    assert sorted(held) == [0, 1]
    for stager in stagers:
        stager.close()


def test_a_file_is_not_fetched_whole_if_only_its_ranges_fit(tmp_path: Path) -> None:
    spans = spans_of(60, 1_000_000, 660_000)
    with stager_of(tmp_path, spans, budget_bytes=70_000_000, remote=Remote()) as stager:
        held = stage(stager, "large")
    assert held is not None
    assert sum(end - first for first, end in held) <= 70_000_000
