import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.column_ids import stored_schema
from featstore.base.errors import InputError
from featstore.base.schema import FIELD_ID, Slot, SlotKind, SlotSchema, slot_number

GOLDEN = Path(__file__).parent / "golden"
LAST = 2**31 - 201  # the greatest id that Iceberg leaves to columns
SCHEMA = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1),
        Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=102),
        Slot(name="place", kind=SlotKind.FLOAT, shape=(2,), number=2**28 - 1),
        Slot(name="far", kind=SlotKind.FLOAT, shape=(None,), number=2**28),
        Slot(name="last", kind=SlotKind.ID, number=2**31 - 1),
    ),
    labels=(pa.field("click", pa.int64()),),
    weight=pa.field("importance", pa.float64()),
    kept=(
        pa.field("größe", pa.string()),
        pa.field("words", pa.large_list(pa.string())),
        pa.field("query", pa.struct([("text", pa.string()), ("hits", pa.list_(pa.int64()))])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ),
    partition_keys=(pa.field("dt", pa.string()),),
)


def ids(fields: pa.Schema | pa.StructType, path: str = "") -> Iterator[tuple[str, int]]:
    """The id of each column and of what lies within it, by its path."""
    for field in fields:
        own, type_ = f"{path}{field.name}", field.type
        yield own, int(field.metadata[FIELD_ID])
        if pa.types.is_struct(type_):
            yield from ids(type_, f"{own}.")
        elif pa.types.is_map(type_):
            yield from ids(pa.schema([type_.key_field, type_.item_field]), f"{own}.")
        elif pa.types.is_nested(type_):
            yield from ids(pa.schema([type_.value_field.with_name("element")]), f"{own}.")


def test_ids_are_frozen() -> None:
    found = dict(ids(stored_schema(SCHEMA.to_arrow(partition_keys=True))))
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    assert text == (GOLDEN / "column_ids.json").read_text()


numbers = st.integers(1, 2**31 - 1)
slots = st.builds(
    Slot,
    name=st.text(min_size=1),
    kind=st.sampled_from(SlotKind),
    shape=st.sampled_from([(), (3,), (None,)]),
    number=st.one_of(numbers, st.integers(1, 500), st.integers(2**28 - 9, 2**28 + 9)),
)
columns = st.builds(
    lambda name, type_: pa.field(name, type_),
    st.text(min_size=1),
    st.sampled_from([pa.int64(), pa.string(), pa.list_(pa.list_(pa.int8()))]),
)
schemas = st.builds(
    SlotSchema,
    slots=st.lists(slots, unique_by=(lambda slot: slot.name, lambda slot: slot.number)).map(tuple),
    labels=st.lists(columns, unique_by=lambda column: column.name).map(tuple),
)


@given(schemas)
def test_every_column_and_element_has_an_id_of_its_own_that_iceberg_allows(
    schema: SlotSchema,
) -> None:
    found = [number for _, number in ids(stored_schema(schema.to_arrow()))]
    names = {column.name for column in schema.labels}
    if names.isdisjoint(schema.names):  # As in a table, where names are unique.
        assert len(found) == len({*found})
    assert all(2**30 < number <= LAST for number in found)


@given(schemas, st.text(min_size=1))
def test_a_slot_keeps_its_ids_under_another_name_beside_other_columns(
    schema: SlotSchema, name: str
) -> None:
    for column in stored_schema(schema.to_arrow()):
        if slot_number(column) is not None:
            (alone,) = stored_schema(pa.schema([column.with_name(name)]))
            assert alone.equals(column.with_name(name), check_metadata=True)


@given(schemas)
def test_ids_are_those_of_the_columns_as_they_are_stored(schema: SlotSchema) -> None:
    stored = stored_schema(schema.to_arrow())
    assert stored_schema(stored).equals(stored, check_metadata=True)


def test_names_whose_hashes_are_one_id_are_refused() -> None:
    found = dict[int, str]()
    for number in range(200_000):
        schema = pa.schema([(f"c{number}", pa.int64())])
        (column,) = stored_schema(schema)
        other = found.setdefault(int(column.metadata[FIELD_ID]), column.name)
        if other != column.name:
            with pytest.raises(InputError, match=f"of both {other} and {column.name}, by a hash"):
                stored_schema(pa.schema([(other, pa.int64()), *schema]))
            return
    raise AssertionError("expected two names with one id")


def test_a_data_file_has_the_ids_where_readers_of_parquet_look(tmp_path: Path) -> None:
    stored = stored_schema(SCHEMA.to_arrow())
    pq.write_table(stored.empty_table(), tmp_path / "a.parquet", store_schema=False)
    shown = str(pq.ParquetFile(tmp_path / "a.parquet").schema)
    for path, number in ids(stored):
        name = path.rpartition(".")[2]
        assert any(f"field_id={number} {name}" in line for line in shown.splitlines()), path
