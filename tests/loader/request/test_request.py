from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import ConfigError, SelectionError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.loader.request.request import resolve

SCHEMA = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1),
        Slot(name="price", kind=SlotKind.FLOAT, number=2),
        Slot(name="price_bin", kind=SlotKind.ID, number=3, num_indices=5),
        Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=4),
    ),
    labels=(pa.field("click", pa.int64()),),
    kept=(pa.field("note", pa.string()), pa.field("cost", pa.float64())),
    partition_keys=(pa.field("dt", pa.string()),),
)


def test_slots_come_in_the_order_asked_for_each_once() -> None:
    request = resolve(SCHEMA, slots=["tags", "price*", "*", {"name": "user", "buckets": 10}])
    assert [item.slot.name for item in request.slots] == ["tags", "price", "price_bin", "user"]
    assert request.slots[3].buckets == 10


def test_the_selection_holds_what_where_reads_but_no_partition_key() -> None:
    request = resolve(
        SCHEMA,
        slots=["user"],
        labels=["click"],
        extras=["dt", "note"],
        where="dt > '1' and price > 2 and cost < 1",
    )
    assert [slot.name for slot in request.selection.slots] == ["user", "price"]
    assert [field.name for field in request.selection.others] == ["click", "note", "cost"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"slots": "user"}, ConfigError, "slots: expected a list, found 'user'"),
        ({"slots": []}, ConfigError, r"slots: expected at least one slot.* found none"),
        (
            {"labels": ["user"]},
            ConfigError,
            "labels: 'user': expected a number, found the signs of an id slot",
        ),
        (
            {"weight": "user"},
            ConfigError,
            "weight: 'user': expected a number, found the signs of an id slot",
        ),
        (
            {"labels": ["clik"]},
            SelectionError,
            "labels: no column 'clik' in the table; did you mean 'click'",
        ),
        (
            {"labels": [{"name": "click", "null": "keep"}]},
            ConfigError,
            "'click': expected null: drop, raise or a number",
        ),
        ({"labels": [7]}, ConfigError, "labels: expected a name or"),
        (
            {"labels": ["note"]},
            ConfigError,
            "'note': expected a scalar numeric column of the data files, found string",
        ),
        (
            {"labels": ["tags"]},
            ConfigError,
            "'tags': expected a scalar numeric column of the data files, found list",
        ),
        (
            {"labels": ["dt"]},
            ConfigError,
            "'dt': expected a scalar numeric column of the data files",
        ),
        ({"weight": "wheight"}, SelectionError, "weight: no column 'wheight'"),
        (
            {"extras": ["nope"]},
            SelectionError,
            r"extras: no column 'nope' in the table.*; there are \['",
        ),
        ({"extras": [{"name": "note"}]}, ConfigError, "extras: expected a text, found {'name'"),
        ({"weight": 5}, ConfigError, "weight: expected a text, found 5"),
        ({"where": {"dt": 1}}, ConfigError, "where: expected a text, found {'dt': 1}"),
        (
            {"labels": [{"name": "click", "null": 1e39}]},
            ConfigError,
            r"raise or a number that float32 holds, found 1e\+39",
        ),
        (
            {"slots": [{"name": "user", "buckets": 2**63 + 1}]},
            ConfigError,
            r"'user': buckets: expected at most 2\^63, .* found 9223372036854775809",
        ),
        ({"where": "usr = 1"}, SelectionError, "no column 'usr'"),
    ],
)
def test_what_the_table_cannot_give_is_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(SCHEMA, **{"slots": ["user"], **arguments})


def digest(slots: Any) -> Any:
    return resolve(SCHEMA, slots=slots).digest


def test_options_that_change_batches_change_the_digest_and_those_that_do_not_leave_it() -> None:
    plain = digest(["user", "tags", "price"])
    assert plain == "4fc9d512fdac3ff7bfa98a5419784d56"
    assert digest(["user", {"name": "tags"}, {"name": "price", "dtype": "float32"}]) == plain
    others = [
        {"name": "tags", "pad": 3},
        {"name": "tags", "max_len": 3},
        {"name": "price", "dtype": "float16"},
    ]
    assert len({plain, *(digest(["user", "tags", "price", other]) for other in others)}) == 4


def test_indices_may_be_int32() -> None:
    (item,) = resolve(SCHEMA, slots=[{"name": "price_bin", "dtype": "int32"}]).slots
    assert item.dtype == "int32"


def test_indices_and_integers_of_plain_parquet_may_be_labels() -> None:
    plain = SlotSchema(slots=(Slot(name="click", kind=SlotKind.ID), *SCHEMA.slots))
    request = resolve(plain, slots=["price"], labels=["click", "price_bin", "price"])
    assert [label.name for label in request.labels] == ["click", "price_bin", "price"]
