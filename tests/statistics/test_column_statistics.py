import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore.base.errors import DataFileError, StoreError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.spec.parse import load_spec
from featstore.statistics.column_statistics import (
    Statistics,
    StatisticsGatherer,
    merge_statistics,
)
from featstore.statistics.sketches import SAMPLE_ROWS, mix, quantiles_of
from featstore.statistics.statistics_file import (
    FORMAT,
    StoredStatistics,
    find_statistics,
    read_statistics,
    write_statistics,
)
from featstore.statistics.summary import QUANTILES, summarize
from featstore.table.snapshot import DataFile, files_digest
from tests.short_reads import FailingFile

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1),
        Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=2),
        Slot(name="price", kind=SlotKind.FLOAT, number=3),
        Slot(name="place", kind=SlotKind.FLOAT, shape=(2,), number=4),
    ),
    labels=(pa.field("click", pa.int64()), pa.field("note", pa.string())),
)


def batch_of(
    users: list[int], tags: list[list[int]], prices: list[float], clicks: list[int | None]
) -> pa.RecordBatch:
    fields = SCHEMA.to_arrow()
    places = [[price, math.nan] for price in prices]
    columns = [users, tags, prices, places, clicks, [None] * len(users)]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], schema=fields
    )


def gathered(*batches: pa.RecordBatch) -> Statistics:
    gatherer = StatisticsGatherer(SCHEMA)
    for batch in batches:
        gatherer.update(batch)
    return gatherer.finish()


SMALL = batch_of(
    [7, 7, 0, 9], [[1, 2, 1], [0], [], [5]], [1.0, math.nan, 3.0, 2.0], [0, 1, None, 1]
)


def test_missing_values_are_not_counted_and_empty_lists_are_known() -> None:
    found = gathered(SMALL).columns
    assert list(found) == ["user", "tags", "price", "place", "click"]
    user, tags, price, place, click = found.values()
    assert (user.num_rows, user.num_present, user.num_values, user.distinct.estimate()) == (
        4,
        3,
        3,
        2,
    )
    assert (tags.num_present, tags.num_values, tags.length_sum, tags.length_max) == (3, 4, 4, 3)
    assert quantiles_of(*tags.lengths, (0.5, 0.99)) == [1.0, 3.0]
    assert (price.num_present, price.sum, price.min, price.max) == (3, 6.0, 1.0, 3.0)
    assert quantiles_of(*price.points, (0.0, 0.5, 1.0)) == [1.0, 2.0, 3.0]
    assert (place.num_present, place.num_values) == (3, 3)
    assert (click.num_present, click.sum, click.role) == (3, 2.0, "label")
    assert [user.top.values.tolist(), user.top.counts.tolist()] == [[7, 9], [2.0, 1.0]]


def test_a_slice_of_a_batch_counts_its_own_rows() -> None:
    assert gathered(SMALL.slice(1, 2)).columns["tags"].num_present == 1
    sliced, whole = (
        gathered(SMALL.slice(0, 1), SMALL.slice(1)).to_table(),
        gathered(SMALL).to_table(),
    )
    assert sliced == whole


def many(num_rows: int, seed: int = 0) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    tags = [draw.integers(1, 50, draw.integers(0, 6)).tolist() for _ in range(num_rows)]
    users = np.where(draw.random(num_rows) < 0.3, 5, draw.integers(1, 1 << 62, num_rows))
    return batch_of(users.tolist(), tags, draw.random(num_rows).tolist(), [1] * num_rows)


def test_quantiles_and_top_values_of_many_rows_come_from_a_sample() -> None:
    batches = [many(8_000, seed) for seed in range(5)]
    found = gathered(*batches).columns
    quantiles = quantiles_of(*found["price"].points, (0.25, 0.5, 0.75))
    assert quantiles is not None
    assert np.allclose(quantiles, (0.25, 0.5, 0.75), atol=5 / math.sqrt(4 * SAMPLE_ROWS))
    assert found["user"].top.values[0] == 5
    assert abs(found["user"].top.counts[0] / 40_000 - 0.3) < 0.05
    assert abs(found["user"].distinct.estimate() / 28_000 - 1) < 0.1
    assert found["price"].points[1].sum() == pytest.approx(40_000, rel=0.1)


@settings(max_examples=10)
@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=4))
def test_batch_sizes_do_not_change_statistics(cuts: list[int]) -> None:
    batch, first, parts = MANY, 0, []
    for cut in cuts:
        parts.append(batch.slice(first, cut))
        first += cut
    assert gathered(*parts, batch.slice(first)).to_table().drop_columns(
        ["sum"]
    ) == WHOLE.drop_columns(["sum"])


MANY = many(9_000)
WHOLE = gathered(MANY).to_table()


def test_merged_parts_have_the_counts_of_the_whole() -> None:
    parts = [MANY.slice(0, 4_000), MANY.slice(4_000)]
    merged = merge_statistics(gathered(part) for part in parts)
    exact = [
        "num_rows",
        "num_present",
        "num_values",
        "length_sum",
        "length_max",
        "min",
        "max",
        "bits",
        "smallest",
    ]
    assert merged.to_table().select(exact) == WHOLE.select(exact)
    quantiles = quantiles_of(*merged.columns["price"].points, (0.5,))
    assert quantiles is not None
    assert abs(quantiles[0] - 0.5) < 0.06


def test_a_renamed_slot_is_merged_by_its_number_and_a_new_one_is_missing_before() -> None:
    old, new = gathered(SMALL), gathered(SMALL)
    new.columns["user"].column = "person"
    extra = replace(new.columns["price"], column="extra", number=9)
    merged = merge_statistics([old, replace(new, columns={**new.columns, "extra": extra})])
    assert (merged.num_rows, merged.columns["user"].num_rows, merged.columns["extra"].num_rows) == (
        8,
        8,
        4,
    )
    assert "person" not in merged.columns


def test_statistics_come_back_from_their_file_only_for_their_own_files(tmp_path: Path) -> None:
    tag = "0a0a0a0a-1b1b1b1b"
    file = DataFile(
        path=f"dt=1/part-00000-{tag}-0.parquet",
        url="",
        size_bytes=1,
        num_rows=4,
        partition={"dt": "1"},
    )
    stored = StoredStatistics(
        statistics=gathered(SMALL), data_digest=files_digest([file]), counts={"price: nan": 1}
    )
    write_statistics(str(tmp_path), f"_stats/dt=1/{tag}.statistics", stored)
    found = find_statistics(str(tmp_path), {"dt": "1"}, [file])
    assert found is not None
    assert (found.counts, found.statistics.num_rows) == ({"price: nan": 1}, 4)
    assert found.statistics.to_table() == gathered(SMALL).to_table()
    assert find_statistics(str(tmp_path), {"dt": "1"}, [replace(file, num_rows=5)]) is None
    other = replace(file, path=file.path.replace("0a", "0c"))
    assert find_statistics(str(tmp_path), {"dt": "1"}, [other]) is None
    assert find_statistics(str(tmp_path), {"dt": "1"}, [file, other]) is None
    assert (
        find_statistics(str(tmp_path), {"dt": "1"}, [replace(file, path="theirs.parquet")]) is None
    )


def test_a_file_that_the_system_cannot_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.statistics").write_bytes(b"PAR1")
    with pytest.raises(DataFileError, match=r"x\.statistics: statistics cannot be read: "):
        read_statistics(str(tmp_path), "x.statistics")
    monkeypatch.setattr("featstore.statistics.statistics_file.open_read", FailingFile)
    with pytest.raises(StoreError, match=r"x\.statistics: cannot be read: Input/output error"):
        read_statistics(str(tmp_path), "x.statistics")


def test_statistics_of_a_newer_format_are_refused_and_older_ones_are_as_if_there_were_none(
    tmp_path: Path,
) -> None:
    tag = "0a0a0a0a-1b1b1b1b"
    file = DataFile(
        path=f"part-00000-{tag}-0.parquet", url="", size_bytes=1, num_rows=4, partition={}
    )
    path = tmp_path / "_stats" / f"{tag}.statistics"
    path.parent.mkdir()
    for number in (FORMAT - 1, FORMAT + 1):
        pq.write_table(
            pa.table({"column": ["user"]}).replace_schema_metadata(
                {"featstore": f'{{"format": {number}}}'}
            ),
            path,
        )
        with pytest.raises(DataFileError, match=rf"statistics: statistics of format {number}, "):
            read_statistics(str(tmp_path), f"_stats/{tag}.statistics")
        if number < FORMAT:
            assert find_statistics(str(tmp_path), {}, [file]) is None
        else:
            with pytest.raises(
                DataFileError, match=rf"format {number}, this featstore reads {FORMAT}; upgrade it"
            ):
                find_statistics(str(tmp_path), {}, [file])


def test_the_statistics_file_matches_the_golden_file(tmp_path: Path) -> None:
    """Golden: what other versions read. Parts that another zlib or numpy may write differently are
    left out.
    """
    gatherer = StatisticsGatherer(SCHEMA)
    gatherer.update(SMALL)
    witnesses = {"user": pa.array([1, 2, 0, 3], pa.int64())}
    found = gatherer.finish({"user": {"filled": 1, "null elements": 2}}, witnesses)
    write_statistics(
        str(tmp_path),
        "x.statistics",
        StoredStatistics(statistics=found, data_digest="da", counts={"a: nan": 1}),
    )
    table = pq.read_table(tmp_path / "x.statistics")
    rows = [
        {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]
    for row in rows:
        row["bits"] = [i for i, byte in enumerate(bytes.fromhex(row["bits"])) if byte]
    said = {
        "columns": [f"{field.name}: {field.type}" for field in table.schema],
        "footer": json.loads(table.schema.metadata[b"featstore"]),
        "rows": rows,
    }
    assert json.dumps(said, indent=1) + "\n" == (GOLDEN / "statistics.json").read_text()


@pytest.mark.parametrize("num_rows", [1, 20, 64, 500, 4_096])
@pytest.mark.parametrize("num_distinct", [1, 8, 16, 64, 128, 10**9])
@pytest.mark.parametrize("kind", ["hash", "log1p"])
def test_statistics_of_few_rows_are_smaller_than_their_data_file(
    num_rows: int, num_distinct: int, kind: str, tmp_path: Path
) -> None:
    num_slots, random = 30, np.random.default_rng(num_rows)
    declared = "string" if kind == "hash" else "double"
    columns = {
        f"c{i}": pa.array(random.integers(0, num_distinct, num_rows) / 3).cast(
            pa.string() if kind == "hash" else pa.float64()
        )
        for i in range(num_slots)
    }
    pq.write_table(pa.table(columns), tmp_path / "raw.parquet")
    slots = [{"slot": i + 1, "name": f"s{i}", "op": kind, "of": f"c{i}"} for i in range(num_slots)]
    document = {"spec": 1, "inputs": dict.fromkeys(columns, declared), "slots": slots}
    table = tmp_path / "table"
    report = featstore.extract(
        load_spec(document), tmp_path / "raw.parquet", table, partition={"dt": "1"}
    )
    (path,) = (table / "_stats" / "dt=1").glob("*.statistics")
    assert path.stat().st_size < report.size_bytes


def id_batch(ids: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({"item": pa.array(ids.astype(np.int64))})


def gathered_ids(ids: np.ndarray, num_indices: int | None = None) -> Statistics:
    slot = Slot(name="item", kind=SlotKind.ID, number=1, num_indices=num_indices)
    gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
    for part in np.array_split(ids, 3):
        gatherer.update(id_batch(part))
    return gatherer.finish()


@pytest.mark.parametrize("num_indices", [None, 2_000])
def test_few_ids_are_counted_exactly_also_after_storing_and_merging(
    tmp_path: Path, num_indices: int | None
) -> None:
    draw = np.random.default_rng(2)
    days = [draw.zipf(1.3, 20_000) % 17 for _ in range(3)]  # 0 is missing
    parts = []
    for day in days:
        stored = StoredStatistics(statistics=gathered_ids(day, num_indices))
        write_statistics(str(tmp_path), "x.statistics", stored)
        parts.append(read_statistics(str(tmp_path), "x.statistics").statistics)
    [item] = merge_statistics(parts).columns.values()
    truth = np.bincount(np.concatenate(days), minlength=17)
    assert item.exact is not None
    assert item.exact.values.tolist() == list(range(1, 17))
    assert item.exact.counts.tolist() == truth[1:].tolist()
    assert (item.num_present, item.num_values) == (60_000 - truth[0],) * 2
    assert not item.top.count_errors(60_000).any()
    assert item.top.values[0] == np.argmax(truth[1:]) + 1


def test_ids_that_become_many_are_sketched_as_if_they_had_always_been() -> None:
    ids = np.random.default_rng(4).integers(1, 1 << 62, 5_000)
    slot = Slot(name="item", kind=SlotKind.ID, number=1)
    gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
    gatherer.update(id_batch(ids[:900]))
    gatherer.update(id_batch(ids[900:]))
    [found] = gatherer.finish().columns.values()
    [whole] = gathered_ids(ids).columns.values()
    assert found.exact is None
    assert found.distinct.bits.tolist() == whole.distinct.bits.tolist()
    assert found.distinct.smallest.tolist() == whole.distinct.smallest.tolist()


def test_more_ids_than_are_kept_after_merging_are_estimates_with_an_error() -> None:
    ids = mix(np.arange(1_600, dtype=np.int64))
    few, others = ids[:800].repeat(30), ids[800:].repeat(20)
    [one] = gathered_ids(few).columns.values()
    [other] = gathered_ids(others).columns.values()
    assert one.exact is not None
    assert other.exact is not None
    one.merge(other)
    assert one.exact is None
    assert one.top.missed >= 20.0  # any id of one side may have been on the other
    assert abs(one.distinct.estimate() - 1_600) <= one.distinct.error() * 1_600


def test_sampled_shares_and_ranks_are_within_their_errors_in_95_of_100_tables() -> None:
    """Three files of 30,000 rows, merged; their sizes make each sampled row count for eight."""
    held_shares, held_ranks = [], []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        files = [draw.zipf(1.3, 30_000) % 5_000 + 1 for _ in range(3)]
        [item] = merge_statistics(gathered_ids(ids) for ids in files).columns.values()
        truth = np.bincount(np.concatenate(files), minlength=5_002)
        errors = item.top.count_errors(90_000)
        assert errors[0] > 0
        held_shares += (np.abs(truth[item.top.values] - item.top.counts) <= errors)[:10].tolist()
        numbers = [draw.normal(size=30_000).astype(np.float32) for _ in range(3)]
        parts = []
        for file in numbers:
            slot = Slot(name="price", kind=SlotKind.FLOAT, number=1)
            gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
            gatherer.update(pa.record_batch({"price": pa.array(file)}))
            parts.append(gatherer.finish())
        found = summarize(merge_statistics(parts), [slot])["price"]
        assert found.quantiles is not None
        assert 0 < found.rank_error < 0.05
        everything = np.sort(np.concatenate(numbers))
        ranks = np.searchsorted(everything, found.quantiles) / len(everything)
        held_ranks.append(np.abs(ranks - QUANTILES).max() <= found.rank_error)
    assert np.mean(held_shares) >= 0.93
    assert np.mean(held_ranks) >= 0.95
