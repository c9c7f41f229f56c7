"""Files that cannot be read: an error by default, left out with a report where the loader is told
to.
"""

import errno
import itertools
import os
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import featstore
from featstore.base.errors import (
    ConfigError,
    DataFileError,
    MissingValueError,
    StagingError,
    StoreError,
)
from featstore.dispatch.plan import Split
from featstore.dispatch.receipt import receipts
from featstore.dispatch.terms import Claim
from featstore.loader.batches import split_reader
from featstore.loader.batches.bad_files import BadFiles
from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from tests.damaged_files import overwrite
from tests.http_servers import Handler, serving
from tests.loader.conftest import rows_of
from tests.parquet_files import put_parquet
from tests.programs import run_python

ROWS = {"a": range(100), "b": range(100, 200), "c": range(200, 300)}


def write(directory: Path) -> Snapshot:
    for name, rows in ROWS.items():
        put_parquet(
            directory / f"{name}.parquet",
            {"row": pa.array(rows, pa.int64()), "tags": [[row] * 20 for row in rows]},
            row_group_size=25,
            compression="none",
        )
    return featstore.open_table(str(directory)).snapshot


def no_parquet(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def gone(path: Path) -> None:
    path.unlink()


def another_type(path: Path) -> None:
    pq.write_table(pa.table({"row": [str(row) for row in range(100)], "tags": [[1]] * 100}), path)


def fewer_rows(path: Path) -> None:
    pq.write_table(pa.table({"row": range(99), "tags": [[1]] * 99}), path)


def damaged_in_the_middle(path: Path) -> None:
    """The third row group cannot be read."""
    overwrite(path, pq.read_metadata(path).row_group(2).column(1).dictionary_page_offset)


def an_unknown_codec(path: Path) -> None:
    """A footer by which pyarrow ends the process."""
    in_footer(path, b"\x19\x18\x03row\x15\x00", b"\x19\x18\x03row\x15\x12")


def a_name_in_no_encoding(path: Path) -> None:
    in_footer(path, b"\x18\x04tags", b"\x18\x04t\xf4\xecs")


def in_footer(path: Path, known: bytes, other: bytes) -> None:
    data, num_bytes = path.read_bytes(), pq.read_metadata(path).serialized_size
    assert known in data[-num_bytes:]
    path.write_bytes(data[: -num_bytes - 8] + data[-num_bytes - 8 :].replace(known, other))


WAYS = [
    no_parquet,
    gone,
    another_type,
    fewer_rows,
    damaged_in_the_middle,
    an_unknown_codec,
    a_name_in_no_encoding,
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return write(tmp_path)


@pytest.mark.parametrize("damage", WAYS)
def test_a_bad_file_is_an_error_unless_told_otherwise(
    snapshot: Snapshot, tmp_path: Path, damage: Any
) -> None:
    damage(tmp_path / "b.parquet")
    with pytest.raises(DataFileError, match=r"b\.parquet: "):
        rows_of(FeatureLoader(snapshot, slots=["row", "tags"]))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"shuffle": {"window_rows": 25, "interleave": 2}},
        {"order": "static"},
        {"order": "rank"},
        {"dispatch": {"split_rows": 50}},
        {"batch_size": 7, "memory_budget": 1},
    ],
    ids=["dynamic", "interleaved", "static", "rank", "split", "small"],
)
@pytest.mark.parametrize("damage", WAYS)
def test_a_skipped_file_is_counted_and_named_and_all_else_comes_once(
    snapshot: Snapshot, tmp_path: Path, damage: Any, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is fewer_rows and "dispatch" in how:
        pytest.skip("a file that is cut at its row groups tells how many rows it has")
    damage(tmp_path / "b.parquet")
    loader = FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", **{"batch_size": 30, **how}
    )
    rows = rows_of(loader)
    left = {row for row in rows if 100 <= row < 200}
    assert sorted(rows) == sorted({*ROWS["a"], *ROWS["c"], *left})
    assert len(left) == (50 if damage is damaged_in_the_middle else 0)
    stats = loader.stats()
    assert (stats["files_skipped"], stats["rows_skipped"], stats["rows"]) == (
        1,
        100 - len(left),
        len(rows),
    )
    warnings = [
        record.getMessage()
        for record in caplog.records
        if record.name == "featstore.loader.bad_files"
    ]
    assert len(warnings) == 1
    assert "b.parquet" in warnings[0].split(": rows of ")[1]


@pytest.mark.parametrize("mode", ["whole", "ranges"])
@pytest.mark.parametrize("damage", [no_parquet, damaged_in_the_middle])
def test_a_staged_file_is_skipped_too(
    snapshot: Snapshot, tmp_path: Path, damage: Any, mode: str
) -> None:
    damage(tmp_path / "b.parquet")
    with FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", staging={"mode": mode}
    ) as loader:
        rows = rows_of(loader)
        assert {*ROWS["a"], *ROWS["c"]} <= set(rows)
        assert loader.stats()["rows_skipped"] == 300 - len(rows) > 0


def test_the_receipt_has_it_as_quarantined_and_a_second_epoch_tries_it_again(
    snapshot: Snapshot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_in_the_middle(tmp_path / "b.parquet")
    store = f"sqlite://{tmp_path}/x.db"
    dispatch = {"store": store, "run_id": "r", "max_failures": 2}
    loader = FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", dispatch=dispatch, num_epochs=2
    )
    assert len(rows_of(loader)) == 500
    assert (loader.stats()["files_skipped"], loader.stats()["rows_skipped"]) == (2, 100)
    found = list(receipts(store, "r").values())
    assert [[line.split for line in receipt.quarantined] for receipt in found] == [
        ["b.parquet#0-"]
    ] * 2
    assert [receipt.missing for receipt in found] == [50, 50]
    assert (
        "epoch 0: b.parquet#0- from row 50; epoch 1: b.parquet#0- from row 50"
        in caplog.records[-1].getMessage()
    )


@pytest.mark.slow
def test_workers_of_a_dataloader_skip_it(snapshot: Snapshot, tmp_path: Path) -> None:
    no_parquet(tmp_path / "b.parquet")
    loader = FeatureLoader(snapshot, slots=["row"], on_bad_file="skip", batch_size=30)
    rows = rows_of(
        DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    )
    assert sorted(rows) == [*ROWS["a"], *ROWS["c"]]


def test_a_state_goes_on_behind_a_skipped_file(snapshot: Snapshot, tmp_path: Path) -> None:
    no_parquet(tmp_path / "a.parquet")
    arguments: dict[str, Any] = {"slots": ["row"], "on_bad_file": "skip", "batch_size": 40}
    first = FeatureLoader(snapshot, **arguments)
    before = next(iter(first))["row"].tolist()
    first.ack()
    second = FeatureLoader(snapshot, **arguments)
    second.load_state_dict(first.state_dict())
    first.close()
    assert sorted(before + rows_of(second)) == [*ROWS["b"], *ROWS["c"]]


def test_a_file_that_is_read_at_the_next_try_is_not_left_out(
    snapshot: Snapshot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker, or this one, tries it again when all else is delivered."""
    aside = (tmp_path / "b.parquet").rename(tmp_path / "aside")
    with FeatureLoader(snapshot, slots=["row"], on_bad_file="skip", batch_size=100) as loader:
        rows = list[int]()
        for batch in loader:
            rows += batch["row"].tolist()
            if len(rows) == 200:
                aside.rename(tmp_path / "b.parquet")
        assert sorted(rows) == list(range(300))
        assert (loader.stats()["files_skipped"], loader.stats()["rows_skipped"]) == (0, 0)
    assert not caplog.records


FAULTS = [errno.EMFILE, errno.EACCES, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EIO]


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
@pytest.mark.parametrize("number", FAULTS)
def test_a_file_that_the_system_cannot_open_is_an_error_and_never_left_out(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, order: str, number: int
) -> None:
    opened, numbers = Path.open, itertools.count()

    def failing_once(path: Path, *how: Any, **options: Any) -> Any:
        if path.name == "b.parquet" and not next(numbers):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *how, **options)

    monkeypatch.setattr(Path, "open", failing_once)
    with FeatureLoader(snapshot, slots=["row"], on_bad_file="skip", order=order) as loader:
        with pytest.raises(StoreError, match=rf"b\.parquet: .*{os.strerror(number)}") as found:
            rows_of(loader)
        assert found.value.errno == number
        assert (loader.stats()["files_skipped"], loader.stats()["rows_skipped"]) == (0, 0)
        assert next(numbers)


class Store(Handler):
    """The files of a directory, of which some are gone, or fail, from a moment on."""

    directory: Path
    fails: dict[str, int]

    def _answer(self) -> None:
        name = self.path.rpartition("/")[2]
        if status := self.fails.get(name, 0):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = (self.directory / name).read_bytes()
        first, end = 0, len(data)
        if asked := self.headers.get("Range"):
            begin, _, last = asked.partition("=")[2].partition("-")
            first = int(begin) if begin else end - int(last)
            end = min(end, int(last) + 1) if begin and last else end
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - first))
        self.send_header("ETag", f'"{name}"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first:end])


@pytest.mark.parametrize("how", [{}, {"dispatch": {"split_rows": 50}}], ids=["whole", "split"])
@pytest.mark.parametrize(("status", "num_left"), [(404, 100), (503, None), (403, None)])
def test_a_remote_file_is_bad_where_the_store_says_that_it_is_gone(
    tmp_path: Path, status: int, num_left: int | None, how: Any
) -> None:
    write(tmp_path)
    fails = dict[str, int]()
    with serving(Store, directory=tmp_path, fails=fails) as port:
        table = featstore.open_table(f"http://127.0.0.1:{port}/b.parquet")
        fails["b.parquet"] = status
        options: Any = {"slots": ["row"], "staging": {"retry_s": 0.1}, **how}
        if num_left is None:
            with pytest.raises((StoreError, StagingError), match=r"b\.parquet"):
                rows_of(FeatureLoader(table, on_bad_file="skip", **options))
            return
        with pytest.raises(DataFileError, match=r"b\.parquet: expected a data file, found none"):
            rows_of(FeatureLoader(table, **options))
        with FeatureLoader(table, on_bad_file="skip", **options) as loader:
            assert rows_of(loader) == []
            assert loader.stats()["rows_skipped"] == num_left


def test_a_loader_raises_the_limit_of_open_files(tmp_path: Path) -> None:
    files = 150
    for number in range(files):
        put_parquet(tmp_path / f"{number:03}.parquet", {"row": [2 * number, 2 * number + 1]})
    snapshot = featstore.open_table(str(tmp_path)).snapshot
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(list(Path("/dev/fd").iterdir()))
    shuffle: Any = {"interleave": files, "window_rows": 2 * files}
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 100, before[1]))
    try:
        with FeatureLoader(snapshot, slots=["row"], shuffle=shuffle) as loader:
            assert sorted(rows_of(loader)) == list(range(2 * files))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


TOO_FEW = """
import resource, sys
from pathlib import Path
import featstore
snapshot = featstore.open_table(sys.argv[1]).snapshot
loader = featstore.FeatureLoader(
    snapshot, slots=["row"], on_bad_file="skip", shuffle={"interleave": 150, "window_rows": 300}
)
limit = len(list(Path("/dev/fd").iterdir())) + 100
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    print(sum(len(batch) for batch in loader))
except featstore.base.errors.StoreError as error:
    print(error, loader.stats()["rows_skipped"])
"""


def test_a_hard_limit_that_is_too_low_is_told_and_no_file_is_left_out(tmp_path: Path) -> None:
    for number in range(150):
        put_parquet(tmp_path / f"{number:03}.parquet", {"row": [2 * number, 2 * number + 1]})
    found = run_python(TOO_FEW, tmp_path).stdout
    assert re.search(r"parquet: cannot be read: Too many open files; .*ulimit -n.* 0\n", found)


LACK = """
import resource, sys
import featstore
for directory in sys.argv[1:]:
    for budget in ("8GB", "1MB"):
        loader = featstore.FeatureLoader(
            directory, slots=["row"], extras=["text"], order="static", on_bad_file="skip",
            memory_budget=budget,
        )
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 40_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            print(sum(len(batch) for batch in loader), loader.stats()["rows_skipped"])
        except MemoryError as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        loader.close()
"""


def test_a_lack_of_memory_is_the_files_only_where_it_declares_far_more_than_it_stores(
    tmp_path: Path,
) -> None:
    letters = np.full(100_000_000, 97, np.uint8)
    for kind in ("inflated", "sound"):
        for number, texts in enumerate((["a"] * 10, [letters.tobytes().decode()], ["b"] * 10)):
            put_parquet(
                tmp_path / kind / f"{number}.parquet",
                {"row": range(len(texts)), "text": texts},
                compression="zstd" if kind == "inflated" else "none",
                write_statistics=False,
            )
    found = run_python(
        *(LACK, tmp_path / "inflated", tmp_path / "sound"),
        variables={"ARROW_DEFAULT_MEMORY_POOL": "system"},  # Others reserve more than they use.
    )
    lacking = "OutOfMemoryError 1.parquet: there is no memory to read it "
    lines = found.stdout.splitlines()
    assert [line[: len(lacking)] for line in lines] == [lacking, "20 1", lacking, lacking]


def test_rows_that_two_threads_leave_out_of_a_claim_count_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats = Stats()
    bad_files, error = BadFiles(stats), DataFileError("damaged")
    claim = Claim(index=0, split=Split(path="a", num_rows=100), fence=1, start_row=0)
    bad_files.skip(claim, 60, error)
    bad_files.skip(claim, 30, error)
    bad_files.skip(claim, 80, error)
    assert (stats.counts["files_skipped"], stats.counts["rows_skipped"]) == (1, 70)
    assert len(caplog.records) == 1
    bad_files.note(replace(claim, fence=2), 0, error)
    assert stats.counts["rows_skipped"] == 70
    bad_files.give_up(replace(claim, fence=2), 20)
    bad_files.give_up(replace(claim, fence=3))
    assert stats.counts["rows_skipped"] == 90


def test_a_null_label_is_no_bad_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1, 2], "click": [None, 1.0]}), tmp_path / "a.parquet")
    with pytest.raises(MissingValueError, match="label 'click' is null in 1 of 2 rows"):
        rows_of(FeatureLoader(tmp_path, slots=["row"], labels=["click"], on_bad_file="skip"))


def test_other_answers_are_refused(snapshot: Snapshot) -> None:
    with pytest.raises(ConfigError, match="on_bad_file: expected error or skip, found 'ignore'"):
        FeatureLoader(snapshot, slots=["row"], on_bad_file="ignore")


def test_rows_before_a_null_label_come_although_row_groups_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 1 << 15)
    labels = [None if row == 85 else 1.0 for row in range(160)]
    table = {"row": pa.array(range(160), pa.int64()), "click": pa.array(labels, pa.float32())}
    put_parquet(tmp_path / "a.parquet", table, row_group_size=16)
    loader, found = FeatureLoader(str(tmp_path), slots=["row"], labels=["click"], batch_size=8), []

    def read() -> None:
        for batch in loader:
            found.extend(batch["row"].tolist())

    with pytest.raises(MissingValueError, match="null in 1 of 16 rows"):
        read()
    assert found == list(range(80))
    assert loader.stats()["rows_decoded"] == 80


def test_rows_before_a_list_of_the_wrong_length_come_although_row_groups_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 1 << 15)
    for name, first, type_ in (
        ("a", 0, pa.list_(pa.int64(), 2)),
        ("b", 1000, pa.list_(pa.int64())),
    ):
        pairs = [[row] * (3 if first + row == 1085 else 2) for row in range(160)]
        rows = pa.array(range(first, first + 160), pa.int64())
        table = {"row": rows, "pair": pa.array(pairs, type_)}
        put_parquet(tmp_path / f"{name}.parquet", table, row_group_size=16)
    loader = FeatureLoader(str(tmp_path), slots=["row", "pair"], batch_size=8, on_bad_file="skip")
    assert rows_of(loader) == [*range(160), *range(1000, 1080)]
    assert loader.stats()["rows_skipped"] == 80
