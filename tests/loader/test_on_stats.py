"""When the user's function gets the metrics."""

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import FeatureLoader
from featstore.base.errors import ConfigError
from featstore.loader.batches.stats import OnStats, StatsCalls
from featstore.loader.iteration.worker import host_name
from tests.loader.conftest import rows_of
from tests.process import our_threads

NUM_ROWS = 100


@pytest.fixture
def url(tmp_path: Path) -> str:
    pq.write_table(pa.table({"row": range(NUM_ROWS)}), tmp_path / "a.parquet")
    return str(tmp_path)


def test_it_is_called_for_the_first_batch_then_after_its_seconds_and_at_the_end() -> None:
    seen: list[float] = []
    now = [100.0]
    calls = StatsCalls(
        OnStats(call=lambda stats: seen.append(stats["at"]), every_s=10), lambda: now[0]
    )
    for now[0] in (100.0, 105.0, 109.9, 111.0, 112.0, 121.5):
        calls.tell(lambda: {"at": now[0]}, is_last=False)
    assert seen == [100.0, 111.0, 121.5]
    now[0] = 122.0
    calls.tell(lambda: {"at": now[0]}, is_last=True)
    assert seen == [100.0, 111.0, 121.5, 122.0]


def test_without_a_function_no_metrics_are_made() -> None:
    StatsCalls(None).tell(lambda: pytest.fail("made metrics"), is_last=True)


def test_the_metrics_that_it_gets_are_those_of_the_batches_so_far(url: str) -> None:
    seen: list[dict[str, Any]] = []
    on_stats = OnStats(call=seen.append, every_s=0)
    with FeatureLoader(url, slots=["row"], batch_size=30, on_stats=on_stats) as loader:
        for number, batch in enumerate(loader, 1):
            assert seen[-1]["batches"] == number == len(seen)
            assert batch.num_rows
    assert [stats["rows"] for stats in seen] == [30, 60, 90, 100, 100]
    worker = {"host": host_name(), "rank": 0, "index": 0, "num_workers": 1}
    assert seen[0]["worker"] == worker


def test_an_error_that_it_raises_ends_the_iteration_and_its_batch_is_not_delivered(
    url: str,
) -> None:
    def raises(stats: dict[str, Any]) -> None:
        if stats["batches"] == 2:
            raise OSError("no space left on the dashboard")

    on_stats = {"call": raises, "every_s": 0}
    with FeatureLoader(url, slots=["row"], batch_size=30, on_stats=on_stats) as loader:
        batches = iter(loader)
        rows = next(batches)["row"].tolist()
        with pytest.raises(OSError, match="no space left on the dashboard"):
            next(batches)
        assert not our_threads()
        state = loader.state_dict()
    with FeatureLoader(url, slots=["row"], batch_size=30) as loader:
        loader.load_state_dict(state)
        rows += [row for batch in loader for row in batch["row"].tolist()]
    assert rows == list(range(NUM_ROWS))


@pytest.mark.parametrize("step", range(1, 6))
def test_a_device_feed_gives_the_batches_before_such_an_error_and_then_raises_it(
    url: str, step: int
) -> None:
    """At the fifth call the iteration has ended."""
    calls = count(1)

    def raises(stats: dict[str, Any]) -> None:
        if next(calls) == step:
            raise OSError("no space left on the dashboard")

    on_stats = {"call": raises, "every_s": 0}
    rows: list[int] = []
    with FeatureLoader(url, slots=["row"], batch_size=30, on_stats=on_stats) as loader:
        feed = iter(loader.to_device("cpu"))
        hung = threading.Event()

        def end_hanging() -> None:
            hung.set()
            loader.close()

        timer = threading.Timer(60.0, end_hanging)
        timer.start()
        try:
            with pytest.raises(OSError, match="no space left on the dashboard"):
                rows.extend(row for batch in feed for row in batch["row"].tolist())
        finally:
            timer.cancel()
            timer.join()
        assert not hung.is_set()
        assert not our_threads()
        state = loader.state_dict()
    assert rows == list(range(min(30 * (step - 1), NUM_ROWS)))
    with FeatureLoader(url, slots=["row"], batch_size=30) as loader:
        loader.load_state_dict(state)
        rest = rows_of(loader)
    assert rest == list(range(len(rows) % NUM_ROWS, NUM_ROWS))


def test_a_function_may_be_named_in_a_config(url: str) -> None:
    config = {"table": url, "slots": ["row"], "on_stats": "builtins:repr"}
    with FeatureLoader.from_config(config) as loader:
        assert sum(batch.num_rows for batch in loader) == NUM_ROWS


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"call": len, "every_s": -1}, "on_stats.every_s: expected seconds, 0 or more, found -1"),
        ({"call": len, "every_s": "1s"}, "on_stats.every_s: expected seconds"),
        ({"call": len, "every_s": float("nan")}, "on_stats.every_s: expected seconds"),
        ({"call": len, "every": 1}, "on_stats: unknown key 'every'"),
        ("json:no_such", "on_stats.call: expected 'package.module:function'"),
        (3, "on_stats: expected keys of OnStats, found"),
    ],
)
def test_what_is_no_such_function_is_refused(url: str, option: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureLoader(url, slots=["row"], on_stats=option)
