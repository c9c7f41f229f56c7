"""Tables on WebHDFS: the log that delta-rs works on in a local copy, and who wins a version."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import featstore
from featstore.base.errors import CommitConflictError, StoreError, TableNotFoundError
from featstore.base.schema import SlotSchema
from featstore.extraction.job import ExtractJob, extract_files
from featstore.files.listings import FileEntry
from featstore.spec.parse import load_spec
from featstore.table.delta import Change, commit, history, is_delta, open_delta
from featstore.table.log_files import LogMirror, VersionTakenError, changed, log_mirror
from featstore.table.metadata import CommitMetadata
from featstore.table.snapshot import DataFile, Snapshot, files_digest
from featstore.table.vacuum import vacuum
from tests.parquet_files import put_parquet
from tests.store_clients import clients_of
from tests.threads import run_together
from tests.webhdfs_server import Cluster, hdfs_cluster

LOG = "/warehouse/t/_delta_log"
SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {"id": "string", "user": "string", "price": "double"},
    "keep": ["id"],
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "price", "op": "log1p", "of": "price"},
    ],
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with hdfs_cluster() as cluster, clients_of({"HADOOP_USER_NAME": "ann"}):
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"webhdfs://127.0.0.1:{cluster.name_ports[0]}/warehouse/t"


def change(
    schema: SlotSchema, months: Iterable[str], run_id: str, base: Snapshot | None = None
) -> Change:
    files = tuple(
        DataFile(
            path=f"month={month}/part-00000-{run_id}.parquet",
            url="",
            size_bytes=1,
            num_rows=1,
            partition={"month": month},
        )
        for month in months
    )
    partitions = tuple({"month": month} for month in months)
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash="s1",
        spec_version=1,
        input_digest="i1",
        data_digest=files_digest(files),
        partitions=partitions,
        num_files=len(files),
        num_rows=len(files),
        size_bytes=len(files),
    )
    return Change(
        base=base,
        schema=replace(schema, partition_keys=(pa.field("month", pa.string()),)),
        partitions=partitions,
        files=files,
        metadata=metadata,
    )


def log_names(cluster: Cluster) -> list[str]:
    paths = sorted(path for path in cluster.files() if path.startswith(f"{LOG}/"))
    return [path.removeprefix(f"{LOG}/") for path in paths]


def run_ids(url: str) -> list[str]:
    return [c.metadata.run_id for c in reversed(history(url)) if c.metadata is not None]


def test_commits_are_files_of_the_log_and_every_version_opens(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    assert not is_delta(url)
    with pytest.raises(TableNotFoundError, match="no table at"):
        open_delta(url)
    assert commit(url, change(schema, "12", "r1")) == 0
    assert commit(url, change(schema, "1", "r2", open_delta(url))) == 1
    assert is_delta(url)
    assert log_names(cluster) == [f"{0:020d}.json", f"{1:020d}.json"]
    assert [file.path for file in open_delta(url).data_files] == [
        "month=1/part-00000-r2.parquet",
        "month=2/part-00000-r1.parquet",
    ]
    assert {file.url for file in open_delta(url, 0).data_files} == {
        f"{url}/month={month}/part-00000-r1.parquet" for month in "12"
    }
    assert run_ids(url) == ["r1", "r2"]


def test_of_two_writers_of_one_partition_the_second_is_refused_and_leaves_nothing(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    """The other writer commits while the first one's rename is on its way to the name node."""
    commit(url, change(schema, "1", "r0"))
    base = open_delta(url)
    cluster.fail("name", "RENAME", None, lambda: commit(url, change(schema, "2", "winner", base)))
    with pytest.raises(CommitConflictError, match="another writer committed month=2"):
        commit(url, change(schema, "2", "loser", base))
    assert run_ids(url) == ["r0", "winner"]
    assert log_names(cluster) == [f"{0:020d}.json", f"{1:020d}.json"]


def test_of_two_writers_of_one_version_the_second_commits_the_next(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r0"))
    base = open_delta(url)
    cluster.fail("name", "RENAME", None, lambda: commit(url, change(schema, "2", "first", base)))
    assert commit(url, change(schema, "3", "second", base)) == 2
    assert run_ids(url) == ["r0", "first", "second"]
    assert len(open_delta(url).data_files) == 3


def test_of_two_writers_of_a_new_table_both_are_committed(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    cluster.fail("name", "RENAME", None, lambda: commit(url, change(schema, "1", "first")))
    assert commit(url, change(schema, "2", "second")) == 1
    assert run_ids(url) == ["first", "second"]


def test_writers_of_one_process_each_get_a_version(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "0", "r0"))
    base = open_delta(url)
    versions: list[int] = []

    def write(month: str) -> None:
        versions.append(commit(url, change(schema, month, f"r{month}", base)))

    run_together(*(partial(write, month) for month in "12345"))
    assert sorted(versions) == [1, 2, 3, 4, 5]
    assert sorted(run_ids(url)) == [f"r{index}" for index in range(6)]
    assert log_names(cluster) == [f"{version:020d}.json" for version in range(6)]


@pytest.mark.parametrize("fault", ["lost", "drop", 503])
def test_a_commit_whose_reply_is_lost_is_one_commit(
    cluster: Cluster, url: str, schema: SlotSchema, fault: object
) -> None:
    cluster.fail("name", "RENAME", None, fault)
    assert commit(url, change(schema, "1", "r1")) == 0
    assert log_names(cluster) == [f"{0:020d}.json"]


def test_a_reply_that_is_lost_after_the_commit_is_recognised_by_the_run(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    """The rename is made, its reply is lost, and all that would say so is refused for a while."""
    cluster.fail("name", "RENAME", None, "lost", *(4 * ["drop"]))
    cluster.fail("name", "DELETE", *(5 * ["drop"]))
    assert commit(url, change(schema, "1", "r1")) == 0
    assert not cluster.faults["name", "DELETE"]
    assert run_ids(url) == ["r1"]


def test_a_store_that_stays_broken_commits_nothing(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    cluster.fail("name", "RENAME", None, *(5 * ["drop"]))
    with pytest.raises(StoreError, match=rf"{url}/_delta_log"):
        commit(url, change(schema, "1", "r1"))
    assert log_names(cluster) == []
    assert commit(url, change(schema, "1", "r1")) == 0


def test_a_checkpoint_is_published_with_its_commit_and_read_without_the_commits_before(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r0"))
    commit(url, change(schema, "2", "r1", open_delta(url)))
    log_mirror(url).refresh()
    with log_mirror(url).attempt() as root:
        DeltaTable(str(root)).create_checkpoint()
        (root / "_delta_log" / f"{0:020d}.json").unlink()  # as delta-rs removes old commits
    assert log_names(cluster) == [
        f"{1:020d}.checkpoint.parquet",
        f"{1:020d}.json",
        "_last_checkpoint",
    ]
    assert len(open_delta(url).data_files) == 2
    assert len(DeltaTable(str(LogMirror(url).refresh())).file_uris()) == 2


def test_a_table_that_is_written_anew_is_copied_anew(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r1"))
    commit(url, change(schema, "2", "r2", open_delta(url)))
    cluster.delete("/warehouse/t", recursive=True)
    assert not is_delta(url)
    other = url.replace("/t", "/other")
    commit(other, change(schema, "3", "r1"))
    cluster.rename("/warehouse/other", "/warehouse/t", "")
    assert [file.partition for file in open_delta(url).data_files] == [{"month": "3"}]


def test_each_file_of_the_log_is_copied_once(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r1"))
    mirror = LogMirror(url)
    mirror.refresh()
    cluster.asked.clear()
    mirror.refresh()
    assert cluster.queries("name", "LISTSTATUS")
    assert not cluster.queries("name", "OPEN")


def test_a_file_of_the_log_that_is_cut_while_it_is_copied_is_an_error(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r1"))
    path = f"{LOG}/{0:020d}.json"
    longer = cluster.files()[path] + b" "
    # The directory's status is asked for before it is listed, the file's when it is copied.
    mirror = LogMirror(url)
    cluster.asked.clear()
    mirror.refresh()
    num_before = [query["op"] for _, _, query in cluster.asked].index("OPEN") - 1
    ops = [op for _, op, _ in cluster.asked[:num_before]]
    cluster.fail("name", "GETFILESTATUS", *(ops.count("GETFILESTATUS") * [None]))
    cluster.fail("name", "GETFILESTATUS", lambda: cluster.put(path, longer))
    with pytest.raises(OSError, match=r"json: [\d,]+ bytes were read, expected .*try again"):
        LogMirror(url).refresh()


def test_a_version_that_is_taken_is_no_success(
    cluster: Cluster, url: str, schema: SlotSchema
) -> None:
    commit(url, change(schema, "1", "r1"))

    def attempt() -> None:
        with LogMirror(url).attempt() as root:
            (root / "_delta_log").mkdir()
            (root / "_delta_log" / f"{0:020d}.json").write_text("{}")

    with pytest.raises(VersionTakenError, match=rf"{0:020d}\.json exists"):
        attempt()


def test_the_mirror_of_a_table_is_one_for_all_threads(url: str) -> None:
    found: list[LogMirror] = []
    run_together(*(8 * [lambda: found.append(log_mirror(url))]))
    assert len({id(mirror) for mirror in found}) == 1


def _entry(name: str, size_bytes: int, modified_ns: int) -> FileEntry:
    return FileEntry(
        url=f"webhdfs://nn/{name}", name=name, size_bytes=size_bytes, modified_ns=modified_ns
    )


def test_changed_files_are_new_ones_and_those_of_another_size_or_time() -> None:
    copied = {name: _entry(name, 1, 1) for name in "abcd"}
    listed = {
        "a": _entry("a", 1, 1),
        "b": _entry("b", 2, 1),
        "c": _entry("c", 1, 2),
        "e": _entry("e", 1, 1),
    }
    assert [entry.name for entry in changed(copied, listed)] == ["b", "c", "e"]
    assert changed({}, listed) == list(listed.values())
    assert changed(copied, {}) == []


def _job(raw: Path, url: str, day: str, run_id: str) -> ExtractJob:
    return ExtractJob(
        spec=load_spec(SPEC),
        input_url=str(raw),
        table_url=url,
        partition={"day": day},
        run_id=run_id,
    )


def _write_raw(raw: Path, num_rows: int) -> None:
    users = [f"u{row}" for row in range(num_rows)]
    put_parquet(
        raw / "log.parquet",
        {
            "id": [f"{num_rows}-{row}" for row in range(num_rows)],
            "user": pa.array(users, pa.string()),
            "price": [float(row) for row in range(num_rows)],
        },
    )


def test_a_table_lives_on_hdfs_from_extraction_to_batches_and_vacuum(
    cluster: Cluster, url: str, tmp_path: Path
) -> None:
    _write_raw(tmp_path / "raw", 20)
    for day in "12":
        report = extract_files(_job(tmp_path / "raw", url, day, f"r{day}"))
        assert report.version == int(day) - 1
    _write_raw(tmp_path / "raw", 30)
    assert extract_files(_job(tmp_path / "raw", url, "1", "r3")).version == 2
    again = extract_files(_job(tmp_path / "raw", url, "1", "r4"))
    assert again.version == 2  # the input is the same
    loader = featstore.FeatureLoader(
        url,
        slots=["user", "price"],
        batch_size=7,
        num_epochs=1,
        staging=featstore.Staging(directory=str(tmp_path / "ssd")),
    )
    with loader:
        assert sum(batch.num_rows for batch in loader) == 50
    now_s = 1_900_000_000.0
    removed = vacuum(url, retain_s=0, now_s=now_s).removed
    assert [leftover.kind for leftover in removed].count("replaced") == 1
    assert open_delta(url).num_rows == 50
    assert not [path for path in cluster.files() if path.endswith(".partial")]
