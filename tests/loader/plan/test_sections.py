from collections.abc import Mapping

import pyarrow as pa
import pytest

from featstore.base.errors import ConfigError
from featstore.base.schema import SlotSchema
from featstore.dispatch.plan import Split
from featstore.loader.plan.ordering import Ordering, in_sections, section_key, section_sizes
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.matching import Partition, SelectedFiles
from featstore.table.snapshot import DataFile

SCHEMA = SlotSchema.from_arrow(
    pa.schema([("row", pa.int64()), ("dt", pa.date32()), ("hour", pa.int32())]), ["dt", "hour"]
)
WITHIN_DT = Shuffle(within="dt")


def files_of(**values: str | None) -> SelectedFiles:
    """Files of these hours, by path."""
    return SelectedFiles.of(
        (
            DataFile(path=path, url=path, size_bytes=1, num_rows=1, partition={"hour": hour}),
            Partition(values={"hour": hour}, is_decided=False),
        )
        for path, hour in sorted(values.items())
    )


def test_the_key_is_a_partition_key_of_the_table() -> None:
    assert section_key(None, SCHEMA, Ordering()) is None
    assert section_key(Shuffle(), SCHEMA, Ordering()) is None
    assert section_key(WITHIN_DT, SCHEMA, Ordering()) == pa.field("dt", pa.date32())


@pytest.mark.parametrize("name", ["row", "day"])
def test_what_is_no_partition_key_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"^shuffle\.within: expected a partition key of the table, found '{name}'.*; it "
        "has dt, hour$",
    ):
        section_key(Shuffle(within=name), SCHEMA, Ordering())


def test_a_table_without_partitions_has_no_sections() -> None:
    schema = SlotSchema.from_arrow(pa.schema([("row", pa.int64())]))
    with pytest.raises(ConfigError, match=r"found 'dt'; it has none$"):
        section_key(WITHIN_DT, schema, Ordering())


def test_order_rank_would_begin_with_all_partitions_at_once_and_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"shuffle\.within: expected order dynamic, static or replay, found rank"
    ):
        section_key(WITHIN_DT, SCHEMA, Ordering(kind="rank"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int32(), {"d": None, "b": "2", "c": "02", "e": "9", "a": "10"}),
        (pa.string(), {"d": None, "c": "02", "a": "10", "b": "2", "e": "9"}),
    ],
)
def test_sections_are_in_the_order_of_typed_values_and_null_is_the_first(
    kind: pa.DataType, expected: Mapping[str, str | None]
) -> None:
    files = files_of(a="10", b="2", c="02", d=None, e="9")
    key = pa.field("hour", kind)
    found = in_sections(files, key)
    assert list(found) == list(expected)
    splits = [Split(path=path, num_rows=1) for path in found for _ in range(2)]
    sizes = (2, 4, 2, 2) if kind == pa.int32() else (2, 2, 2, 2, 2)
    assert section_sizes(splits, found, key) == sizes


def test_without_a_key_files_keep_their_order_and_there_are_no_sections() -> None:
    files = files_of(a="2", b="1")
    assert list(in_sections(files, None)) == ["a", "b"]
    assert section_sizes([Split(path="b", num_rows=1)], files, None) == ()
