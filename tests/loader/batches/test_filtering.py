"""Row groups that statistics rule out, and columns read only where rows pass: no row is lost, and
work is saved.
"""

import io
import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.base.schema import ROLE, SlotSchema
from featstore.loader.batches.filtering import FilteredReader
from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.request.decode import passing
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import resolve
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from tests.damaged_files import overwrite

LABEL = {ROLE: b"label"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.float32()),
        pa.field("y", pa.int64(), metadata=LABEL),
        pa.field("z", pa.float64(), metadata=LABEL),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.int64())),
        pa.field("row", pa.int32()),
    ]
)
TIMES = [datetime(2026, 11, day) for day in (1, 2, 3)]
MAYBE = {
    "id": st.sampled_from([None, 0, 1, 2, 3, -1, 2**53 + 1, 2**63 - 1]),
    "x": st.sampled_from([None, 0.0, -0.0, 0.1, 1.0, math.nan, math.inf]),
    "y": st.sampled_from([None, 0, 1, 2, 2**53 + 1]),
    "z": st.sampled_from([None, 0.0, 0.1, 1.0, math.nan]),
    "s": st.sampled_from([None, "", "a", "b", "ä"]),
    "t": st.sampled_from([None, *TIMES]),
    "tags": st.sampled_from([None, [], [0], [1, 2]]),
}
LITERALS = {
    "id": ["0", "1", "2", "9", "-1", "1.5", str(2**53), str(2**63 - 1), str(-(2**63))],
    "x": ["0", "0.1", "1", "-1.5", str(2**25 + 1)],
    "y": ["0", "1", "1.5", str(2**53)],
    "z": ["0", "0.1", "2", str(-(2**63))],
    "s": ["''", "'a'", "'b'"],
    "t": ["'2026-11-02'", "'2026-11-02 12:00:00'"],
    "dt": ["'2026-11-01'", "'2026-11-02'"],
}
COLUMNS = st.sampled_from(sorted(LITERALS))
COMPARISONS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


@st.composite
def leaves(draw: Any) -> Any:
    name = draw(COLUMNS)
    one, two = (draw(st.sampled_from(LITERALS[name])) for _ in "ab")
    texts = [
        f"{name} {draw(COMPARISONS)} {one}",
        f"{one} {draw(COMPARISONS)} {name}",
        f"{name} between {one} and {two}",
        f"{name} in ({one}, {two})",
        f"{name} is null",
        f"{name} is not null",
        f"tags is null and {name} = {one}",
        "sample(id, 0.5, 7)",
        "id % 2 = 1",
        "y = id",
        "x = id",
        "not (z < x)",
    ]
    return draw(st.sampled_from(texts))


WHERE = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda a: f"not ({a})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: "({}) {} ({})".format(*parts)
        ),
    ),
    max_leaves=4,
)
ROWS = st.lists(st.fixed_dictionaries(MAYBE), max_size=24).map(
    lambda rows: [{**row, "row": number} for number, row in enumerate(rows)]
)


def footer_of(
    rows: Any, *, schema: Any = SCHEMA, row_group_size: int = 4, **options: Any
) -> OpenFile:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(
        table.sort_by("id") if options.pop("is_sorted", False) else table,
        sink,
        row_group_size,
        **options,
    )
    sink.seek(0)
    return OpenFile(sink, "a.parquet")


def asked(
    where: Any, *, slots: Any = ("id", "tags", "row"), labels: Any = (), **arguments: Any
) -> Any:
    schema = SlotSchema.from_arrow(pa.schema([*SCHEMA, pa.field("dt", pa.string())]), ["dt"])
    return resolve(schema, slots=slots, labels=labels, where=where, **arguments)


DAY = Partition(values={"dt": "2026-11-01"}, is_decided=False)


@given(
    rows=ROWS,
    where=WHERE,
    is_sorted=st.booleans(),
    statistics=st.sampled_from([True, ["id", "s"], False]),
)
def test_pruning_loses_no_row_and_lets_none_in(
    rows: Any, where: Any, is_sorted: bool, statistics: Any
) -> None:
    request = asked(where)
    with footer_of(rows, is_sorted=is_sorted, write_statistics=statistics) as footer:
        everything = RowGroupReader(footer, request.selection).read(
            range(len(footer.row_group_rows))
        )
        mask = passing(everything, 0, request, DAY, Counter())
        expected = np.asarray(everything.table["row"])[mask].tolist()

        stats = Stats()
        reader = FilteredReader(footer, [], request, DAY, stats)
        rows, passed = reader.read(range(len(footer.row_group_rows)))
        order = np.arange(len(mask))[::-1]
        for given_order, in_order in ((None, expected), (order, expected[::-1])):
            index, places = (given_order, None) if passed is None else passed.select(given_order)
            found = rows if index is None else rows.take(index)
            assert np.asarray(found.table["row"]).tolist() == in_order
            assert found.num_rows == len(in_order)
            assert places is None or len(places) == len(in_order)
        assert stats.counts["rows_filtered"] == len(mask) - len(expected)


def counted(footer: Any, request: Any) -> Any:
    counts = (stats := Stats()).counts
    FilteredReader(footer, [], request, DAY, stats).read(range(len(footer.row_group_rows)))
    return counts["row_groups_pruned"], counts["row_groups_skipped"]


SIMPLE = [
    {
        "id": n + 1,
        "x": float(n),
        "y": n % 2,
        "z": 1.0,
        "s": chr(97 + n),
        "t": TIMES[n // 8],
        "row": n,
    }
    for n in range(24)
]


@pytest.mark.parametrize(
    ("where", "pruned", "skipped"),
    [
        ("id > 20", 5, 0),
        ("id = 6", 5, 0),
        ("id is null", 6, 0),
        ("x < 4", 5, 0),
        ("x is null", 0, 6),
        ("s >= 'u' and id > 0", 5, 0),
        ("t = '2026-11-03'", 4, 0),
        ("not (id <= 20 or dt != '2026-11-01')", 5, 0),
        ("dt = '2026-11-02' or id = 1", 5, 0),
        ("id % 24 = 0", 0, 5),
        ("y = 2", 6, 0),
        ("sample(id, 0.5, 7) and id > 20", 5, 0),
    ],
)
def test_what_is_ruled_out_is_not_read(where: str, pruned: int, skipped: int) -> None:
    with footer_of(SIMPLE) as footer:
        assert counted(footer, asked(where)) == (pruned, skipped)


def write_damaged(path: Any, ids: Any) -> None:
    """64 rows in 4 row groups; the lists of the second row group cannot be read."""
    lists = pa.array([[n] * 50 for n in range(64)], pa.list_(pa.int64()))
    pq.write_table(pa.table({"id": ids, "tags": lists}), path, 16, compression="none")
    overwrite(path, pq.read_metadata(path).row_group(1).column(1).dictionary_page_offset)


@pytest.mark.parametrize(
    ("where", "saved"), [("id = 6", "row_groups_pruned"), ("id % 7 = 6", "row_groups_skipped")]
)
def test_other_columns_are_not_read_where_no_row_passes(
    tmp_path: Path, where: str, saved: str
) -> None:
    write_damaged(tmp_path / "a.parquet", [n % 7 for n in range(64)])
    with pytest.raises(
        DataFileError, match=r"a\.parquet: column 'tags': row group 1 cannot be read"
    ):
        list(FeatureLoader(tmp_path, slots=["tags"], where=where))

    write_damaged(tmp_path / "a.parquet", [1 if 16 <= n < 32 else n % 7 for n in range(64)])
    loader = FeatureLoader(tmp_path, slots=["tags"], where=where)
    rows = [n for n in range(64) if n % 7 == 6 and not 16 <= n < 32]
    assert [row[0].item() for batch in loader for row in batch["tags"]] == rows
    assert (loader.stats()[saved], loader.stats()["rows_filtered"]) == (1, 64 - len(rows))


@pytest.mark.parametrize(
    "shuffle", [None, {"window_rows": 40}, {"window_rows": 100, "interleave": 2}]
)
def test_a_state_among_pruned_row_groups_goes_on_with_the_next_row(
    table_url: str, shuffle: Any
) -> None:
    arguments = {
        "slots": ["row"],
        "where": "(row between 20 and 30 or row between 200 and 260) and row % 3 != 0",
        "batch_size": 5,
        "shuffle": shuffle,
    }

    def rows(loader: Any) -> Any:
        return [batch["row"].tolist() for batch in loader]

    whole = FeatureLoader(table_url, **arguments)
    batches = rows(whole)
    assert sorted(row for rows_of_one in batches for row in rows_of_one) == [
        n for n in range(280) if (20 <= n <= 30 or 200 <= n <= 260) and n % 3
    ]
    assert whole.stats()["row_groups_pruned"] > 0
    for taken in range(len(batches)):
        first = FeatureLoader(table_url, **arguments)
        iteration = iter(first)
        before = [next(iteration)["row"].tolist() for _ in range(taken)]
        if taken:
            first.ack()
        second = FeatureLoader(table_url, **arguments)
        second.load_state_dict(first.state_dict())
        assert before + rows(second) == batches
        first.close()


def test_a_column_that_the_file_lacks_or_has_in_another_type_is_judged_as_it_is_read() -> None:
    rows = [{"id": n + 1, "row": n} for n in range(8)]
    narrow = pa.schema([pa.field("id", pa.int32()), pa.field("row", pa.int32())])
    with footer_of(rows, schema=narrow) as footer:
        assert counted(footer, asked("id > 4")) == (1, 0)
        assert counted(footer, asked("s = 'a' and id > 0")) == (2, 0)
        assert counted(footer, asked("s is null and id > 4")) == (1, 0)
    doubles = pa.schema([pa.field("x", pa.float64()), pa.field("row", pa.int32())])
    with footer_of([{"x": 0.1, "row": 0}], schema=doubles) as footer:
        assert counted(footer, asked("x > 0.1")) == (0, 0)  # As float32 it is above.
