"""The mapping between slots and Arrow fields."""

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from featstore.base.errors import SelectionError
from featstore.base.schema import Role, Slot, SlotKind, SlotSchema

SLOTS = (
    Slot(name="user", kind=SlotKind.ID, number=101, op="hash(user_id)"),
    Slot(name="price", kind=SlotKind.FLOAT, number=102, op="log1p(price)"),
    Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=103, op="hash(tags)"),
    Slot(name="delays", kind=SlotKind.FLOAT, shape=(None,), number=104),
    Slot(name="vector", kind=SlotKind.FLOAT, shape=(8,), number=105),
)
SCHEMA = SlotSchema(
    slots=SLOTS,
    labels=(pa.field("click", pa.int64()),),
    weight=pa.field("w", pa.float64()),
    kept=(pa.field("request_id", pa.string()),),
    partition_keys=(pa.field("dt", pa.string()),),
)


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.name)
@pytest.mark.parametrize("nullable", [True, False])
def test_a_slot_survives_a_round_trip_through_an_arrow_field(slot: Slot, nullable: bool) -> None:
    field = slot.to_field(nullable=nullable)
    assert field.nullable is nullable
    assert Slot.from_field(field) == slot


def test_columns_have_the_names_of_the_arrow_schema() -> None:
    assert list(SCHEMA.column_names) == SCHEMA.to_arrow().names


def test_a_slot_is_sent_to_other_processes_without_the_field_that_it_keeps() -> None:
    slot = replace(SLOTS[0])
    before = pickle.dumps(slot)
    assert slot.to_field() is slot.to_field()
    assert pickle.dumps(slot) == before
    assert pickle.loads(before).to_field().equals(slot.to_field(), check_metadata=True)


def test_a_fixed_width_survives_a_format_that_only_knows_lists() -> None:
    field = SLOTS[4].to_field().with_type(pa.list_(pa.float32()))
    assert Slot.from_field(field) == SLOTS[4]


def test_a_schema_survives_a_round_trip_through_arrow() -> None:
    arrow = SCHEMA.to_arrow(nullable=True, partition_keys=True)
    assert arrow.names == [*SCHEMA.names, "click", "w", "request_id", "dt"]
    back = SlotSchema.from_arrow(arrow, ["dt"])
    assert back.slots == SLOTS
    assert [
        field.name for field in (*back.labels, back.weight, *back.kept, *back.partition_keys)
    ] == [
        "click",
        "w",
        "request_id",
        "dt",
    ]


def test_slots_hold_no_nulls_in_data_files_while_labels_may() -> None:
    arrow = SCHEMA.to_arrow()
    assert not arrow.field("user").nullable
    assert not arrow.field("tags").type.value_field.nullable
    assert arrow.field("click").nullable


def test_foreign_columns_are_slots_by_their_type_alone() -> None:
    arrow = pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.float64()),
            ("c", pa.large_list(pa.int64())),
            ("d", pa.string()),
            ("dt", pa.string()),
        ]
    )
    schema = SlotSchema.from_arrow(arrow, ["dt"])
    assert [(slot.name, slot.kind, slot.shape, slot.number) for slot in schema] == [
        ("a", SlotKind.ID, (), None),
        ("b", SlotKind.FLOAT, (), None),
        ("c", SlotKind.ID, (None,), None),
    ]
    assert [field.name for field in schema.kept] == ["d"]
    assert [field.name for field in schema.partition_keys] == ["dt"]


def test_an_unknown_slot_answers_with_the_nearest_names() -> None:
    with pytest.raises(SelectionError, match=r"no slot 'prise' in the table; did you mean 'price'"):
        SCHEMA["prise"]


def test_a_shape_of_two_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected shape \(\), \(width,\) or \(None,\)"):
        Slot(name="x", kind=SlotKind.FLOAT, shape=(2, 3))


def test_roles_are_written_as_text() -> None:
    assert SCHEMA.to_arrow().field("click").metadata == {b"featstore.role": Role.LABEL.encode()}


def test_a_field_states_the_slots_kind_and_one_of_an_earlier_version_reads_the_same() -> None:
    slot = Slot(name="price", kind=SlotKind.FLOAT, number=3, op="log1p")
    field = slot.to_field()
    metadata = dict(field.metadata)
    assert metadata.pop(b"featstore.kind") == b"float"
    assert Slot.from_field(field) == Slot.from_field(field.with_metadata(metadata)) == slot
