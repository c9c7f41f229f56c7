"""Equal numbers of steps on all ranks, though they get different numbers of batches."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError, DispatchError, DispatchUnavailableError
from featstore.dispatch.stores.address import bind
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.step_agreement import Agreed, Announcement, decide, tail_of
from featstore.loader.iteration.worker import LoaderWorker
from featstore.tensors.batch import Batch
from tests.dispatch.cut_off import CutOff
from tests.dispatch.simulated_clock import SimulatedClock
from tests.parquet_files import put_row_files

ROWS = (
    10,
    0,
    400,
    30,
)  # Of the files: one has most of the rows, and a single row group, which cannot be shared.


@pytest.fixture(scope="module")
def uneven_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(put_row_files(tmp_path_factory.mktemp("uneven"), ROWS, floats=["weight"]))


class InStep:
    """What an all-reduce does: a step ends when all have made it; a rank that never comes is an
    error.
    """

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks)

    def step(self) -> None:
        self.barrier.wait(timeout=60)


def loaders(
    url: str, directory: Any, num_ranks: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[Any]:
    """Of ranks in this process, each iterated already: (loader, its batches)."""
    dispatch = {"store": f"sqlite://{directory}/store.sqlite", "run_id": "a", "lease_s": 30.0}
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    found = []
    for rank in range(num_ranks):
        monkeypatch.setenv("RANK", str(rank))
        loader = FeatureLoader(
            url, **{"slots": ["row"], "batch_size": 7, "dispatch": dispatch, **options}
        )
        found.append((loader, iter(loader)))
    return found


def train_in_step(ranks: list[Any]) -> list[list[Any]]:
    """The batches of each rank, as (rows, is_padding)."""
    barrier = InStep(len(ranks))

    def train(batches: Any) -> list[Any]:
        seen = []
        for batch in batches:
            barrier.step()
            seen.append((batch["row"].tolist(), batch.is_padding))
        return seen

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(train, [batches for _, batches in ranks]))


def weight_of(batch: Batch) -> torch.Tensor:
    assert batch.weight is not None
    return batch.weight


def real_rows(seen: list[list[Any]]) -> list[int]:
    return [
        row for batches in seen for rows, is_padding in batches if not is_padding for row in rows
    ]


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_padded_ranks_make_equally_many_steps_and_every_row_counts_once(
    uneven_url: str, order: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranks = loaders(uneven_url, tmp_path, num_ranks, monkeypatch, tail="pad", order=order)
    seen = train_in_step(ranks)
    assert len({len(batches) for batches in seen}) == 1
    assert sorted(real_rows(seen)) == list(range(sum(ROWS)))
    assert any(is_padding for batches in seen for _, is_padding in batches) or (
        order,
        num_ranks,
    ) == ("static", 3)
    for batches in seen:
        padding = [rows for rows, is_padding in batches if is_padding]
        last = [rows for rows, is_padding in batches if not is_padding][-1:] or padding[:1]
        assert padding == last * len(padding)


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_ranks_that_drop_stop_together_and_no_row_comes_twice(
    uneven_url: str, order: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranks = loaders(uneven_url, tmp_path, 2, monkeypatch, tail="drop", order=order)
    seen = train_in_step(ranks)
    assert len(seen[0]) == len(seen[1])
    rows = real_rows(seen)
    assert len(rows) == len(set(rows)) < sum(ROWS)
    dropped = sum(loader.stats()["rows_dropped_tail"] for loader, _ in ranks)
    assert len(rows) + dropped == sum(ROWS)
    for loader, _ in ranks:
        assert loader.state_dict()["epoch"] == 1


def test_ranks_that_join_end_apart(
    uneven_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranks = loaders(uneven_url, tmp_path, 2, monkeypatch, tail="join", order="rank")
    one, other = (list(batches) for _, batches in ranks)
    assert len(one) != len(other)


def test_padding_weighs_nothing_on_its_way_and_in_a_copy(
    uneven_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranks = loaders(uneven_url, tmp_path, 2, monkeypatch, tail="pad", order="rank", weight="weight")
    found = []
    with ThreadPoolExecutor(2) as threads:
        read: list[list[Batch]] = list(threads.map(list, [batches for _, batches in ranks]))
        for batches in read:
            found += [batch for batch in batches if batch.is_padding]
    assert found
    for batch in found:
        assert [
            float(weight_of(one).abs().sum()) for one in (batch, batch.clone(), batch.to("cpu"))
        ] == [0.0] * 3
        assert batch.clone().is_padding
        assert batch.to("cpu")["row"].tolist() == batch["row"].tolist()


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_the_rank_that_leaves_its_loop_early_is_named_where_others_wait(
    uneven_url: str,
    tail: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (one, first), (_, second) = loaders(
        uneven_url, tmp_path, 2, monkeypatch, tail=tail, order="rank"
    )
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(next, [first, second]))
    one.close()
    assert "rank 0 left its loop at step 1, before the end of the epoch" in caplog.text
    with pytest.raises(
        DispatchUnavailableError,  # It may have failed, and the run continue from a checkpoint.
        match=r"rank 0 left its loop at step 1, .* rank 1 waits for it at step \d+: with tail",
    ):
        list(second)


def test_a_rank_that_says_nothing_is_named_in_the_end(
    uneven_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dispatch = {
        "store": f"sqlite://{tmp_path}/store.sqlite",
        "run_id": "a",
        "lease_s": 0.2,
        "stall_s": 0.3,
    }
    (_, first), _ = loaders(
        uneven_url, tmp_path, 2, monkeypatch, tail="drop", order="rank", dispatch=dispatch
    )
    with pytest.raises(
        DispatchError, match=r"waited \d+ s at step 1 for rank 1 \(step 0\), which made no progress"
    ):
        next(first)


def test_an_iteration_begun_before_is_refused(
    uneven_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"tail": "pad", "order": "rank"}
    (_, first), _ = loaders(uneven_url, tmp_path, 2, monkeypatch, **options)
    first.state_dict()  # It begins.
    (_, again), _ = loaders(uneven_url, tmp_path, 2, monkeypatch, **options)
    with pytest.raises(DispatchError, match="tail pad: this iteration was begun before"):
        next(again)


def test_a_single_rank_needs_no_agreement_and_an_exhausted_one_stays_so(
    uneven_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = iter(FeatureLoader(uneven_url, slots=["row"], batch_size=7, tail="pad"))
    assert len(list(batches)) == 63
    (tmp_path / "two").mkdir()
    ranks = loaders(uneven_url, tmp_path / "two", 2, monkeypatch, tail="pad")
    train_in_step(ranks)
    assert all(list(batches) == [] for _, batches in ranks)


@pytest.mark.parametrize(
    ("tail", "expected"), [("drop", [31, 31]), ("pad", [32, 32]), ("join", [32, 31])]
)
def test_in_static_order_the_length_counts_the_tail(
    uneven_url: str, tail: str, expected: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranks = loaders(uneven_url, tmp_path, 2, monkeypatch, tail=tail, order="static")
    lengths = []
    for rank, (loader, _) in enumerate(ranks):
        monkeypatch.setenv("RANK", str(rank))
        loader.set_epoch(0)
        lengths.append(len(loader))
    assert lengths == expected


def test_an_unknown_tail_is_refused(uneven_url: str) -> None:
    with pytest.raises(ConfigError, match="tail: expected one of drop, pad, join, found 'cut'"):
        FeatureLoader(uneven_url, slots=["row"], tail="cut")


TOLD = st.builds(Announcement, st.sampled_from(["goes", "ended"]), st.integers(0, 5))


@given(st.integers(1, 5), st.lists(TOLD, min_size=1, max_size=4), st.booleans())
def test_an_answer_never_changes_as_others_go_on(
    step: int, others: list[Any], is_mine: bool
) -> None:
    """Who goes says so again with more steps, or ends after what it promised: whatever it says, a
    decision holds.
    """
    before = decide(step, others, is_mine=is_mine)
    for more in range(3):
        later = [
            told if told.what == "ended" else Announcement("goes", told.steps + more)
            for told in others
        ]
        if before is not None:
            assert decide(step, later, is_mine=is_mine) is before
    ended = [Announcement("ended", told.steps) for told in others]
    final = decide(step, ended, is_mine=is_mine)
    assert final is not None
    assert before in (final, None)


def test_padding_keeps_tensors_of_other_columns(uneven_url: str) -> None:
    batch = next(iter(FeatureLoader(uneven_url, slots=["row"], batch_size=7)))
    assert not batch.is_padding
    assert torch.equal(batch["row"], torch.arange(7))


def test_a_rank_that_was_cut_off_itself_waits_on_for_others() -> None:
    address = bind(f"memory://{uuid.uuid4().hex}")
    worker = LoaderWorker(index=0, num_workers=2, session="s", is_dataloader=False, num_ranks=2)
    with closing(address.open()) as store:
        cut_off: Any = CutOff(
            store, SimulatedClock(), "tail/1", lambda: store.set("p/tail/1", "goes 5")
        )
        steps = Agreed(tail_of("drop"), cut_off, "p/", worker, 100.0, cut_off.clock)
        assert steps.makes(1, 0)
