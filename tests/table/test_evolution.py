from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.table.evolution import merge_schemas
from tests.history_tables import HISTORY

USER = Slot(name="user", kind=SlotKind.ID, number=101, op="hash")
TAGS = Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=102, op="hash")
PRICE = Slot(name="price", kind=SlotKind.FLOAT, number=103, op="log1p")
MONTH = pa.field("month", pa.string())
OLD = SlotSchema(
    slots=(USER, TAGS), labels=(pa.field("click", pa.int64()),), partition_keys=(MONTH,)
)


def test_a_new_slot_is_appended_to_those_of_the_table() -> None:
    merged = merge_schemas(OLD, replace(OLD, slots=(PRICE, USER, TAGS)), "t")
    assert merged.names == ("user", "tags", "price")


def test_a_slot_that_the_new_spec_lacks_stays_in_the_table() -> None:
    assert merge_schemas(OLD, replace(OLD, slots=(USER,)), "t") == OLD


def test_a_renamed_slot_keeps_its_place_and_number() -> None:
    merged = merge_schemas(OLD, replace(OLD, slots=(replace(USER, name="visitor"), TAGS)), "t")
    assert [(slot.name, slot.number) for slot in merged] == [("visitor", 101), ("tags", 102)]


def test_two_slots_may_swap_names() -> None:
    same_shape = replace(TAGS, shape=())
    old = replace(OLD, slots=(USER, same_shape))
    merged = merge_schemas(
        old, replace(OLD, slots=(replace(USER, name="tags"), replace(same_shape, name="user"))), "t"
    )
    assert [(slot.name, slot.number) for slot in merged] == [("tags", 101), ("user", 102)]


def test_new_labels_and_kept_columns_join() -> None:
    new = replace(
        OLD, labels=(pa.field("buy", pa.int64()),), kept=(pa.field("request", pa.string()),)
    )
    merged = merge_schemas(OLD, new, "t")
    assert [field.name for field in merged.labels] == ["click", "buy"]
    assert [field.name for field in merged.kept] == ["request"]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (
            (replace(USER, shape=(None,)),),
            r"101 \('user': id, list\) is already used in t by 'user' \(id, scalar\)",
        ),
        (
            (Slot(name="age", kind=SlotKind.FLOAT, number=101),),
            r"slot number 101 \('age': float, scalar\) is already used",
        ),
        (
            (replace(USER, number=201),),
            r"slot 'user' has number 201, in t that name belongs to number 101",
        ),
        (
            (Slot(name="click", kind=SlotKind.ID, number=7),),
            r"'click' is a label \(int64\) in t, and would become a slot",
        ),
    ],
)
def test_numbers_and_names_never_change_their_meaning(
    slots: tuple[Slot, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        merge_schemas(OLD, replace(OLD, slots=slots, labels=()), "t")


@pytest.mark.parametrize(("old", "new"), [(8, None), (None, 8), (8, 9)])
def test_a_number_keeps_the_encoding_of_its_values(old: int | None, new: int | None) -> None:
    before, after = (
        replace(OLD, slots=(replace(USER, num_indices=number),)) for number in (old, new)
    )
    said = {None: "signs", 8: "indices below 8", 9: "indices below 9"}
    message = (
        rf"slot number 101 \('user'\) would hold {said[new]}, in t it holds {said[old]}; .* take a "
        rf"new number"
    )
    with pytest.raises(InputError, match=message):
        merge_schemas(before, after, "t")


@pytest.mark.parametrize(("old", "new"), [(8, 9), (9, 8)])
def test_a_vocabulary_may_grow_and_a_run_with_an_older_one_may_still_write(
    old: int, new: int
) -> None:
    words = replace(USER, op="vocabulary(user, file=users.txt)")
    before, after = (
        replace(OLD, slots=(replace(words, num_indices=number),)) for number in (old, new)
    )
    assert merge_schemas(before, after, "t")["user"].num_indices == 9
    other = replace(
        OLD, slots=(replace(words, op="vocabulary(user, file=other.txt)", num_indices=new),)
    )
    with pytest.raises(InputError, match="would hold indices below"):
        merge_schemas(before, other, "t")


def test_a_number_is_not_used_again_for_another_feature() -> None:
    item = replace(USER, name="item", op="hash(item)")
    message = (
        r"101 is 'user' = hash in t, and would become 'item' = hash\(item\), another feature; .* "
        r"take a new one"
    )
    with pytest.raises(InputError, match=message):
        merge_schemas(OLD, replace(OLD, slots=(item,)), "t")


def test_a_slot_may_change_its_operator_under_its_name() -> None:
    merged = merge_schemas(
        OLD, replace(OLD, slots=(replace(USER, op="hash(user, default='x')"),)), "t"
    )
    assert merged["user"].op == "hash(user, default='x')"


def test_a_label_keeps_its_type() -> None:
    with pytest.raises(
        InputError, match=r"'click' is a label \(int64\) in t, and would become a label \(double\)"
    ):
        merge_schemas(OLD, replace(OLD, labels=(pa.field("click", pa.float64()),)), "t")


def test_a_table_keeps_its_partition_keys() -> None:
    with pytest.raises(
        InputError, match="t is partitioned by month, this run writes partitions by nothing"
    ):
        merge_schemas(OLD, replace(OLD, partition_keys=()), "t")


def test_a_table_keeps_its_weight() -> None:
    old, new = (replace(OLD, weight=pa.field(name, pa.float64())) for name in ("w", "w2"))
    with pytest.raises(
        InputError,
        match="t has the weight 'w', this run another, 'w2', and a table has one: name it 'w'",
    ):
        merge_schemas(old, new, "t")
    assert merge_schemas(old, OLD, "t") == merge_schemas(OLD, old, "t") == old


def test_slots_of_an_earlier_version_take_over_the_metadata_of_new_ones() -> None:
    described = replace(USER, op_path="hash(user)", meaning="0123456789abcdef")
    merged = merge_schemas(OLD, replace(OLD, slots=(described, TAGS)), "t")
    assert merged.slots == (described, TAGS)


HIDDEN = "clicks_key", "clicks_at", "clicks_item", "CLICKS_PRICE", "clicks_age"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"slots": (replace(TAGS, name="other", number=301),)},
            r"slot number 301 is of history 'clicks' in t",
        ),
        *(
            ({"slots": (replace(TAGS, name=name),)}, f"column '{name.lower()}' is of history")
            for name in HIDDEN
        ),
        ({"kept": (pa.field("clicks_at", pa.string()),)}, r"column 'clicks_at' is of history"),
        ({"kept": (pa.field("clicks_end", pa.int32()),)}, r"column 'clicks_end' is of history"),
    ],
)
def test_what_belongs_to_a_history_is_no_name_or_number_of_rows(
    changed: dict[str, Any], message: str
) -> None:
    """Files are searched by names and numbers, in which the lists of a history would be found."""
    old = replace(OLD, kept=HISTORY.row_fields)
    with pytest.raises(InputError, match=message):
        merge_schemas(old, replace(OLD, **changed), "t")
    merged = merge_schemas(old, replace(OLD, slots=(PRICE,)), "t")
    assert merged.kept == HISTORY.row_fields
