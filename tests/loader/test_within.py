"""`shuffle: {within: day}` from a table to batches: days come in their order."""

from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from torch.utils.data import DataLoader

from featstore import FeatureLoader
from featstore.base.errors import ConfigError, StateError
from tests.loader.conftest import merged_state, rows_of

DAYS, FILES_OF_DAY, FILE_ROWS = (2, 3, 10), 4, 50
DAY_ROWS = FILES_OF_DAY * FILE_ROWS
WITHIN = {"window_rows": 80, "interleave": 4, "within": "day"}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Delta table of three days, whose numbers as text are in another order. Of each, four files
    of 50 rows, which are written in turn; `row // 200` is the number of the day.
    """
    url = str(tmp_path_factory.mktemp("days") / "table")
    for part in range(FILES_OF_DAY):
        for number, day in reversed(list(enumerate(DAYS))):
            first = number * DAY_ROWS + part * FILE_ROWS
            rows = pa.array(range(first, first + FILE_ROWS), pa.int64())
            values = pa.table({"row": rows, "day": pa.array([day] * FILE_ROWS, pa.int32())})
            write_deltalake(url, values, mode="append", partition_by=["day"])
    return url


def loader_of(url: str, **options: Any) -> FeatureLoader:
    return FeatureLoader(
        url, **{"slots": ["row"], "batch_size": 23, "seed": 3, "shuffle": WITHIN, **options}
    )


def days_of(rows: Sequence[int]) -> list[int]:
    return [row // DAY_ROWS for row in rows]


def is_ascending(values: Sequence[int]) -> bool:
    return list(values) == sorted(values)


@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_days_come_in_the_order_of_their_numbers_and_rows_of_each_are_mixed(
    days: str, order: str
) -> None:
    with loader_of(days, order=order, num_epochs=2) as loader:
        rows = rows_of(loader)
    one, two = rows[:600], rows[600:]
    assert sorted(one) == sorted(two) == list(range(600))
    assert is_ascending(days_of(one))
    assert is_ascending(days_of(two))
    assert one != two
    # In a stretch of 25 rows at the begin of each day are rows of its four files.
    for first in range(0, 600, DAY_ROWS):
        assert len({row // FILE_ROWS for row in one[first : first + 25]}) == 4


def test_without_it_days_are_mixed(days: str) -> None:
    with loader_of(days, shuffle={**WITHIN, "within": None}) as loader:
        assert not is_ascending(days_of(rows_of(loader)))


@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_a_loader_that_resumes_at_any_batch_gives_the_same_rest(days: str, order: str) -> None:
    with loader_of(days, order=order) as loader:
        states, batches = [], list[list[int]]()
        for batch in loader:
            batches.append(batch["row"].tolist())
            states.append(loader.state_dict())  # Before this batch is delivered.
    for number, state in enumerate(states):
        with loader_of(days, order=order) as loader:
            loader.load_state_dict(state)
            assert [batch["row"].tolist() for batch in loader] == batches[number:]


def test_each_of_several_workers_goes_through_the_days_in_order(days: str) -> None:
    with loader_of(days) as loader:
        found = dict[int, list[int]]()
        feed = DataLoader(loader, batch_size=None, num_workers=2)
        # A DataLoader asks its workers in turn.
        for number, batch in enumerate(feed):
            found.setdefault(number % 2, []).extend(batch["row"].tolist())
    assert sorted(chain(*found.values())) == list(range(600))
    # At the end, where one worker has ended, the other one's batches come at each turn.
    assert all(is_ascending(days_of(rows[:200])) for rows in found.values())


def test_workers_that_share_a_store_claim_the_days_in_order_and_their_states_merge(
    days: str, tmp_path: Path
) -> None:
    dispatch = {"store": f"sqlite:///{tmp_path}/s.db", "run_id": "r"}
    loaders = [loader_of(days, dispatch=dispatch) for _ in range(2)]
    feeds, found = [iter(loader) for loader in loaders], [list[int](), list[int]()]
    for turn in range(12):
        found[turn % 2] += next(feeds[turn % 2])["row"].tolist()
    assert all(is_ascending(days_of(rows)) for rows in found)
    # A worker holds at most four splits, so neither begins the last day while others wait in the
    # first.
    assert max(days_of([*found[0], *found[1]])) < 2
    for loader in loaders:
        loader.close()


def test_a_state_is_refused_by_a_loader_that_orders_days_otherwise(days: str) -> None:
    with loader_of(days) as loader:
        next(iter(loader))
        state = merged_state([loader])
    with (
        loader_of(days, shuffle={**WITHIN, "within": None}) as other,
        pytest.raises(StateError, match=r"another division of the files \(shuffle\.within"),
    ):
        other.load_state_dict(state)


def test_a_recorded_epoch_is_replayed_in_the_order_of_days(days: str) -> None:
    with loader_of(days) as loader:
        rows = rows_of(loader)
        recording = loader.recorded_order()
    order = {"kind": "replay", "recording": recording}
    with loader_of(days, order=order) as loader:
        assert rows_of(loader) == rows
    with (
        loader_of(days, order=order, shuffle={**WITHIN, "within": None}) as loader,
        pytest.raises(ConfigError, match=r"shuffle\.within and split sizes must be those"),
    ):
        rows_of(loader)


def test_a_followed_table_orders_the_days_that_come_together(days: str) -> None:
    with loader_of(days, follow={"until": "day = 10", "every_s": 0.01}) as loader:
        rows = rows_of(loader)
    assert is_ascending(days_of(rows))
    assert len(rows) == 600


def test_a_training_config_names_the_key(days: str) -> None:
    config = {"table": days, "slots": ["row"], "shuffle": {"within": "day"}}
    with FeatureLoader.from_config(config) as loader:
        assert is_ascending(days_of(rows_of(loader)))
    with pytest.raises(ConfigError, match=r"found 'dya'; did you mean 'day'\?; it has day$"):
        FeatureLoader.from_config({**config, "shuffle": {"within": "dya"}})


def test_a_plain_directory_orders_its_keys_as_text(table_url: str) -> None:
    options: dict[str, Any] = {"slots": ["row"], "batch_size": 50}
    with FeatureLoader(table_url, shuffle={"within": "dt"}, **options) as loader:
        rows = rows_of(loader)
    ends = [0, 70, 115, 216, 280]
    assert all(sorted(rows[first:end]) == list(range(first, end)) for first, end in pairwise(ends))
    with pytest.raises(ConfigError, match="expected a partition key of the table, found 'row'"):
        FeatureLoader(table_url, shuffle={"within": "row"}, **options)
    with pytest.raises(ConfigError, match="found rank, in which each worker has a part"):
        FeatureLoader(table_url, shuffle={"within": "dt"}, order="rank", **options)
