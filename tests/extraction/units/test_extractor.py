import datetime
import decimal
import pickle
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import InputError, OperatorError
from featstore.extraction.units.extractor import Extractor
from featstore.spec.parse import load_spec
from tests.programs import run_python

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {
        "user_id": "string",
        "tags": "list<string>",
        "scores": "list<double>",
        "price": "double",
        "ts": "timestamp",
        "clicked": "long",
        "request_id": "string",
    },
    "labels": {"click": "clicked"},
    "weight": "price",
    "keep": ["request_id", "scores"],
    "slots": [
        {"slot": 1, "name": "user", "op": "hash", "of": "user_id"},
        {"slot": 2, "name": "tag", "op": "hash", "of": "tags"},
        {"slot": 3, "name": "log_price", "op": "log1p", "of": "price"},
        {"slot": 4, "name": "vector", "op": "identity", "of": "scores"},
        {"slot": 5, "name": "hour", "op": "hour", "of": "ts"},
    ],
}
TIME = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
ROW = {
    "user_id": "u1",
    "tags": ["a", "b"],
    "scores": [1.5, 2.0],
    "price": 3.0,
    "ts": TIME,
    "clicked": 1,
    "request_id": "r1",
}
SCHEMA = pa.schema(
    {
        "user_id": pa.string(),
        "tags": pa.list_(pa.string()),
        "scores": pa.list_(pa.float64()),
        "price": pa.float64(),
        "ts": pa.timestamp("us", tz="UTC"),
        "clicked": pa.int64(),
        "request_id": pa.string(),
    }
)


@pytest.fixture
def extractor() -> Extractor:
    return Extractor(load_spec(DOCUMENT))


def batch(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema)


def test_result_has_the_extractors_schema_and_the_rows_in_order(extractor: Extractor) -> None:
    users = [f"u{i}" for i in range(100)]
    result = extractor(batch(*({**ROW, "user_id": user, "request_id": user} for user in users)))
    result.validate(full=True)
    assert result.schema.equals(extractor.schema.to_arrow(), check_metadata=True)
    assert result.column("request_id").to_pylist() == users
    assert result.column("user").to_pylist() == [
        extractor.one({**ROW, "user_id": user})["user"] for user in users
    ]


def test_missing_values_are_marked_and_no_slot_holds_a_null(extractor: Extractor) -> None:
    result = extractor(batch(dict.fromkeys(ROW)))
    assert str(result.to_pylist()[0]) == str(
        {"user": 0, "tag": [0], "log_price": float("nan"), "vector": [float("nan")], "hour": 0}
        | {"click": None, "price": None, "request_id": None, "scores": None}
    )
    assert all(result.column(name).null_count == 0 for name in extractor.schema.names)


def test_an_empty_list_is_no_missing_list(extractor: Extractor) -> None:
    result = extractor.one({**ROW, "tags": [], "scores": []})
    assert (result["tag"], result["vector"]) == ([], [])


def test_kept_columns_are_unchanged_where_slots_drop_and_replace(extractor: Extractor) -> None:
    result = extractor.one({**ROW, "scores": [1.0, None, -0.0, float("inf")]})
    assert str(result["scores"]) == "[1.0, None, -0.0, inf]"
    assert str(result["vector"]) == "[1.0, 0.0]"


def test_no_rows_give_no_rows(extractor: Extractor) -> None:
    result = extractor(batch())
    assert result.num_rows == 0
    assert result.schema.equals(extractor.schema.to_arrow())


def test_what_was_dropped_or_replaced_is_counted_by_slot_or_column(extractor: Extractor) -> None:
    row = {**ROW, "tags": ["a", None], "scores": [float("inf"), float("nan"), 1e300], "price": -5.0}
    extractor(batch(row, {**ROW, "price": float("nan")}))
    assert extractor.counts == {
        "tags: null elements": 1,
        "scores: nan": 1,
        "vector: not finite": 1,
        "vector: overflow": 1,
        "log_price: not finite": 1,
        "price: nan": 1,
    }


def test_only_the_raw_columns_of_the_spec_are_read(extractor: Extractor) -> None:
    wide = batch(ROW).append_column("other", pa.array([{"a": 1}]))
    assert extractor.input_columns == tuple(DOCUMENT["inputs"])
    assert extractor(wide) == extractor(batch(ROW))


def test_a_narrower_or_differently_encoded_raw_column_gives_the_same(extractor: Extractor) -> None:
    raw = pa.schema(
        {
            "user_id": pa.large_string(),
            "tags": pa.large_list(pa.string()),
            "scores": pa.list_(pa.float32()),
            "price": pa.float32(),
            "ts": pa.timestamp("ns"),
            "clicked": pa.int8(),
            "request_id": pa.binary(),
        }
    )
    row = {**ROW, "ts": TIME.replace(tzinfo=None), "request_id": b"r1"}
    expected = extractor(batch(ROW))
    assert extractor(batch(row, schema=raw)) == expected
    encoded = batch(ROW).column("user_id").dictionary_encode()
    assert extractor(batch(ROW).set_column(0, "user_id", encoded)) == expected


def test_missing_input_columns_are_named_with_their_nearest(extractor: Extractor) -> None:
    with pytest.raises(
        InputError,
        match=r"^missing 2 input columns: expected 'user_id' \(did you mean 'userid'\?\), 'ts' "
        r"\(.*\); found userid, ",
    ):
        extractor.bind(
            pa.schema(
                [
                    SCHEMA.field(i).with_name("userid") if i == 0 else SCHEMA.field(i)
                    for i in (0, 1, 2, 3, 5, 6)
                ]
            )
        )


def test_an_input_column_of_another_type_is_refused_before_any_work(extractor: Extractor) -> None:
    wrong = SCHEMA.set(0, pa.field("user_id", pa.int64()))
    for check in (extractor.bind, lambda schema: extractor(pa.RecordBatch.from_pylist([], schema))):
        with pytest.raises(InputError, match="column 'user_id': expected string, found int64"):
            check(wrong)


def test_an_input_column_that_is_there_twice_is_refused(extractor: Extractor) -> None:
    with pytest.raises(InputError, match="column 'user_id': expected once, found 2 times"):
        extractor.bind(SCHEMA.append(SCHEMA.field(0)))


def test_a_failure_in_an_operator_names_the_slot_and_the_operator() -> None:
    spec = {
        "spec": 1,
        "inputs": {"tags": "list<string>"},
        "slots": [{"slot": 1, "name": "pairs", "op": "cross", "of": ["tags"] * 5}],
    }
    with pytest.raises(
        OperatorError,
        match=r"^row 0: pairs \(cross\): expected at most 2147483647 combinations in a batch, "
        r"found 2.43e\+17: set max_cross$",
    ):
        Extractor(load_spec(spec))(pa.RecordBatch.from_pydict({"tags": pa.array([["a"] * 3000])}))


def test_one_row_takes_python_values_and_gives_what_a_batch_gives(extractor: Extractor) -> None:
    assert extractor.one(ROW) == extractor(batch(ROW)).to_pylist()[0]


def test_one_row_may_lack_what_no_slot_needs(extractor: Extractor) -> None:
    request = {name: value for name, value in ROW.items() if name not in ("clicked", "request_id")}
    assert extractor.one(request) == {**extractor.one(ROW), "click": None, "request_id": None}


def test_one_row_without_a_column_of_a_slot_is_refused(extractor: Extractor) -> None:
    with pytest.raises(
        InputError,
        match=r"missing input column: expected 'user_id'; did you mean 'user'\?; found user, tags",
    ):
        extractor.one({"user" if name == "user_id" else name: value for name, value in ROW.items()})


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [("user_id", 7, "string"), ("clicked", 2**63, "long"), ("tags", "a", "list<string>")],
)
def test_one_row_with_a_value_of_another_type_is_refused(
    extractor: Extractor, column: str, value: Any, expected: str
) -> None:
    with pytest.raises(
        InputError, match=f"column '{column}': expected {expected}, found {value!r}"
    ):
        extractor.one({**ROW, column: value})


def test_bytes_are_repaired_as_in_a_file(extractor: Extractor) -> None:
    assert (
        extractor.one({**ROW, "user_id": b"a\xff"})["user"]
        == extractor.one({**ROW, "user_id": "a\ufffd"})["user"]
    )
    assert extractor.counts == {"user_id: invalid utf-8": 1}


def test_an_extractor_goes_through_pickle_without_its_counts(extractor: Extractor) -> None:
    extractor(batch({**ROW, "price": float("nan")}))
    copy = pickle.loads(pickle.dumps(extractor))
    assert not copy.counts
    assert copy.spec.hash == extractor.spec.hash
    assert copy(batch(ROW)) == extractor(batch(ROW))


def test_an_extractor_needs_neither_spark_nor_torch() -> None:
    program = """
import sys
from featstore.extraction.units.extractor import Extractor
from featstore.spec.parse import load_spec
spec = load_spec({"spec": 1, "inputs": {"x": "string"}, "slots": [{"slot": 1, "name": "f", "op": "hash", "of": "x"}]})
Extractor(spec).one({"x": "a"})
found = {"pyspark", "torch", "deltalake"} & set(sys.modules)
sys.exit(f"loaded {found}" if found else 0)
"""
    run_python(program)


@pytest.mark.parametrize("kind", [pa.decimal128(38, 18), pa.decimal256(60, 18)])
def test_decimals_are_the_same_in_a_batch_and_for_one_row(kind: pa.DataType) -> None:
    document = {
        "spec": 1,
        "inputs": {"x": "double", "n": {"type": "long", "on_error": "null"}},
        "slots": [
            {"slot": 1, "name": "x", "op": "bucketize", "of": "x", "boundaries": [0.1, 4321.07]},
            {"slot": 2, "name": "n", "op": "hash", "of": "n"},
        ],
    }
    values = [decimal.Decimal(text) for text in ("0.1", "4321.07", "-3", "7", "4321.0699")]
    extractor = Extractor(load_spec(document))
    batch = extractor(pa.record_batch({"x": pa.array(values, kind), "n": pa.array(values, kind)}))
    assert batch.to_pylist() == [extractor.one({"x": value, "n": value}) for value in values]
