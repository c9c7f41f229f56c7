"""Defects of other feature pipelines, each of which silently changes or confuses ids."""

from typing import Any

import pyarrow as pa

from featstore.extraction.units.extractor import Extractor
from featstore.ops.hashing import sign, value_hash
from featstore.spec.parse import load_spec

INPUTS = {"user": "string", "item": "string", "price": "double"}
ROWS = [{"user": f"u{i}", "item": f"i{i % 7}", "price": float(i)} for i in range(300)]


def extract(slots: list[dict[str, Any]], rows: list[dict[str, Any]] = ROWS) -> dict[str, list[Any]]:
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([("user", pa.string()), ("item", pa.string()), ("price", pa.float64())])
    )
    columns: dict[str, list[Any]] = Extractor(
        load_spec({"spec": 1, "inputs": INPUTS, "slots": slots})
    )(batch).to_pydict()
    return columns


def test_an_id_never_leaks_into_another_slots_range_as_with_a_wrong_mask() -> None:
    member = value_hash(pa.array([str(i) for i in range(20_000)]))
    signs = [set(sign(slot, member).to_pylist()) for slot in (1, 2, 2**31 - 1)]
    assert all(0 < value < 2**63 for values in signs for value in values)
    assert len(set.union(*signs)) == 3 * 20_000
    assert max(signs[0]).bit_length() == 63


def test_a_cross_of_a_column_with_itself_is_not_constant_as_with_xor() -> None:
    crossed = extract([{"slot": 1, "name": "x", "op": "cross", "of": ["user", "user"]}])["x"]
    assert len(set(crossed)) == len(ROWS)
    assert 0 not in crossed


def test_a_cross_depends_on_the_order_of_its_members_as_it_does_not_with_a_sum() -> None:
    both = extract(
        [
            {"slot": 1, "name": "x", "op": "cross", "of": ["user", "item"]},
            {"slot": 2, "name": "y", "op": "cross", "of": ["item", "user"]},
        ],
        [{"user": "a", "item": "b", "price": 0.0}, {"user": "b", "item": "a", "price": 0.0}],
    )
    assert both["x"][0] != both["x"][1]


def test_a_slot_inserted_before_another_does_not_sign_it_anew_as_with_prefixes_by_position() -> (
    None
):
    user = {"slot": 101, "name": "user", "op": "hash", "of": "user"}
    item = {"slot": 50, "name": "item", "op": "hash", "of": "item"}
    assert extract([user])["user"] == extract([item, user])["user"] == extract([user, item])["user"]


def test_renaming_a_slot_changes_no_sign() -> None:
    one = extract([{"slot": 101, "name": "user", "op": "hash", "of": "user"}])["user"]
    assert extract([{"slot": 101, "name": "viewer", "op": "hash", "of": "user"}])["viewer"] == one


def test_a_sign_is_a_fixed_number_and_no_hash_of_the_platform() -> None:
    assert extract([{"slot": 101, "name": "user", "op": "hash", "of": "user"}])["user"][:2] == [
        7839675748480101377,
        5110058253076312242,
    ]


def test_texts_that_share_their_first_8_bytes_have_different_ids() -> None:
    rows = [{"user": f"12345678{i}", "item": "", "price": 0.0} for i in range(300)]
    assert (
        len(set(extract([{"slot": 1, "name": "user", "op": "hash", "of": "user"}], rows)["user"]))
        == 300
    )


def test_a_default_takes_no_index_away_from_a_value() -> None:
    node = {
        "slot": 1,
        "name": "bin",
        "op": "bucketize",
        "of": "price",
        "boundaries": [1, 2],
        "encode": "index",
    }
    rows = [{"user": "", "item": "", "price": price} for price in (0.0, 1.0, 2.0, None)]
    assert extract([node], rows)["bin"] == [1, 2, 3, 0]
    assert extract([{**node, "default": 1.5}], rows)["bin"] == [1, 2, 3, 2]


def test_a_bucketized_node_leaves_the_nodes_downstream_their_own_values() -> None:
    bin_node = {"name": "bin", "op": "bucketize", "of": "price", "boundaries": [100, 200]}
    crossed = {"slot": 2, "name": "x", "op": "cross", "of": ["user", "bin"]}
    price = {"slot": 3, "name": "p", "op": "identity", "of": "price"}
    inner = extract([{**bin_node, "store": False}, crossed, price])
    stored = extract([{**bin_node, "slot": 1}, crossed, price])
    indexed = extract([{**bin_node, "slot": 1, "encode": "index"}, crossed, price])
    assert inner["x"] == stored["x"] == indexed["x"]
    assert inner["p"] == stored["p"] == [row["price"] for row in ROWS]
