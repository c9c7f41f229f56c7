"""How the processes of a host share its cores and memory."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import FeatureLoader
from featstore.base.errors import ConfigError
from featstore.loader.iteration import worker
from featstore.loader.iteration.worker import HostShare, LoaderWorker
from tests.loader.conftest import source_of

ALONE = LoaderWorker(index=0, num_workers=1, session="s", is_dataloader=False)
ONE_OF_EIGHT = replace(ALONE, num_workers=8, num_ranks=8, ranks_on_host=8)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen cores and 64 GB."""
    monkeypatch.setattr(worker, "num_cores", lambda: 16)
    monkeypatch.setattr(worker, "memory_bytes", lambda: 64_000_000_000)


@pytest.mark.parametrize(("is_shuffled", "budget_bytes"), [(False, 10**9), (True, 512 * 10**6)])
def test_a_process_that_is_alone_takes_all_cores_and_a_gigabyte_or_half_of_it(
    is_shuffled: bool, budget_bytes: int
) -> None:
    share = HostShare.of(ALONE, is_shuffled=is_shuffled)
    assert share == HostShare(num_threads=16, budget_bytes=budget_bytes)


def test_the_ranks_of_a_host_divide_its_cores() -> None:
    assert HostShare.of(ONE_OF_EIGHT).num_threads == 2
    assert HostShare.of(replace(ONE_OF_EIGHT, ranks_on_host=4)).num_threads == 4
    assert HostShare.of(replace(ONE_OF_EIGHT, ranks_on_host=32)).num_threads == 1


def test_a_worker_of_a_dataloader_decodes_in_one_thread() -> None:
    assert HostShare.of(replace(ALONE, num_workers=2, is_dataloader=True)).num_threads == 1


def test_all_workers_of_a_host_together_take_a_quarter_of_its_memory_at_most() -> None:
    workers = replace(ONE_OF_EIGHT, num_workers=8 * 8, is_dataloader=True)
    assert workers.num_on_host == 64
    assert HostShare.of(workers).budget_bytes == 64_000_000_000 // 4 // 64
    assert HostShare.of(ONE_OF_EIGHT).budget_bytes == 1_000_000_000


def test_the_number_of_ranks_on_a_host_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert LoaderWorker.here().num_on_host == 8


@pytest.mark.parametrize("value", [0, -1, True, "many", 1.5])
def test_a_number_of_threads_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    pq.write_table(pa.table({"row": range(4)}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="decode_threads: expected an integer of 1 or more"):
        FeatureLoader(str(tmp_path), slots=["row"], decode_threads=value)  # type: ignore[arg-type]


def test_what_a_job_says_comes_before_the_share(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": range(4)}), tmp_path / "a.parquet")
    loader = FeatureLoader(str(tmp_path), slots=["row"], decode_threads=3, memory_budget="1MB")
    share = source_of(loader).job.share_of_host(ONE_OF_EIGHT)
    assert share == HostShare(num_threads=3, budget_bytes=1_000_000)
    assert [row for batch in loader for row in batch["row"].tolist()] == [0, 1, 2, 3]
