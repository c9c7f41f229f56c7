"""What `on_error` does with malformed values: the run fails at the first, the value is missing, or
its row is skipped.
"""

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import InputError, OperatorError, SpecError
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import BatchOrigin
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec

MAX = 2**63 - 1
RAW = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.binary(),
        "count": pa.uint64(),
        "tags": pa.list_(pa.binary()),
        "days": pa.float64(),
        "items": pa.list_(pa.int64()),
        "prices": pa.list_(pa.float64()),
    }
)
COLUMNS = tuple(RAW.names[1:])
TYPES = {
    "text": "string",
    "count": "long",
    "tags": "list<string>",
    "days": "long",
    "items": "list<long>",
    "prices": "list<double>",
}


def spec_of(policies: Mapping[str, str | None], **top: Any) -> dict[str, Any]:
    """Every malformed value reaches a slot; `id` tells which rows are left."""
    said: dict[str, dict[str, str | None]] = {
        name: {"type": TYPES[name], **({"on_error": policies[name]} if name in policies else {})}
        for name in COLUMNS
    }
    return {
        "spec": 1,
        "inputs": {"id": "long", **said},
        "keep": ["id"],
        "sequences": {"events": {"of": ["items", "prices"]}},
        "slots": [
            {"slot": 1, "name": "f_text", "op": "hash", "of": "text"},
            {"slot": 2, "name": "f_count", "op": "hash", "of": "count"},
            {"slot": 3, "name": "f_tags", "op": "hash", "of": "tags"},
            {"slot": 4, "name": "f_days", "op": "identity", "of": "days"},
            {"slot": 5, "name": "f_items", "op": "hash", "of": "items"},
            {"slot": 6, "name": "f_prices", "op": "identity", "of": "prices"},
        ],
        "output": {"rows_per_row_group": 4, "rows_per_file": 8},
        **top,
    }


def malformed_in(row: dict[str, Any]) -> Counter[str]:
    """The oracle: by column or sequence, how many malformed values a row has."""
    found = Counter(
        text=_invalid(row["text"]), count=int(row["count"] is not None and row["count"] > MAX)
    )
    found["tags"] = sum(map(_invalid, row["tags"] or ()))
    days = row["days"]
    found["days"] = int(
        days is not None
        and days == days
        and (math.isinf(days) or days != int(days) or not -MAX - 1 <= days < MAX)
    )
    found["events"] = int(
        len({-1 if row[name] is None else len(row[name]) for name in ("items", "prices")}) > 1
    )
    return +found


def _invalid(value: bytes | None) -> int:
    return int(value is not None and value.decode(errors="ignore").encode() != value)


def strictest(policies: dict[str, str]) -> dict[str, str]:
    """By column or sequence, its policy."""
    both = {policies["items"], policies["prices"]}
    return policies | {"events": next((p for p in ("fail", "skip") if p in both), "null")}


texts = st.sampled_from([None, b"", b"a", "é".encode(), b"\xff", b"a\xffb"])
lists_of_one_length = st.integers(0, 2).map(lambda n: ([1] * n, [0.5] * n))
sequences = lists_of_one_length | st.tuples(
    st.none() | st.lists(st.just(1), max_size=2), st.none() | st.lists(st.just(0.5), max_size=2)
)
bad_rows = st.builds(
    lambda text, count, tags, days, events: dict(
        zip(COLUMNS, (text, count, tags, days, *events), strict=True)
    ),
    text=texts,
    count=st.sampled_from([None, 0, 5, MAX, MAX + 1, 2**64 - 1]),
    tags=st.none() | st.lists(texts, max_size=3),
    days=st.sampled_from([None, 1.0, -2.0, 0.5, math.nan, math.inf, 1e300]),
    events=sequences,
)
good_row = {"text": b"a", "count": 1, "tags": [b"t"], "days": 1.0, "items": [1], "prices": [0.5]}
raw_rows = st.lists(st.just(good_row) | bad_rows, max_size=12).map(
    lambda rows: [{"id": number, **row} for number, row in enumerate(rows)]
)
policies = st.fixed_dictionaries({name: st.sampled_from(["null", "skip"]) for name in COLUMNS})


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, RAW)


def expected_ids(rows: list[dict[str, Any]], chosen: dict[str, str]) -> list[int]:
    skipping = {name for name, policy in strictest(chosen).items() if policy == "skip"}
    return [row["id"] for row in rows if not skipping & malformed_in(row).keys()]


@given(raw_rows, policies)
def test_skipped_are_exactly_the_rows_with_a_malformed_value_where_it_says_skip(
    rows: Any, chosen: dict[str, str]
) -> None:
    extractor = Extractor(load_spec(spec_of(chosen)))
    result = extractor(batch_of(rows))
    ids = expected_ids(rows, chosen)
    assert result.column("id").to_pylist() == ids
    assert extractor.findings.num_rows_skipped == len(rows) - len(ids)
    lenient = Extractor(load_spec(spec_of(dict.fromkeys(COLUMNS, "null"))))(batch_of(rows))
    assert str(result.to_pylist()) == str(lenient.take(pa.array(ids, pa.int64())).to_pylist())


@given(raw_rows, policies, st.lists(st.integers(0, 12), max_size=4))
def test_how_rows_are_cut_into_batches_changes_neither_rows_nor_findings(
    rows: Any, chosen: Any, cuts: list[int]
) -> None:
    whole, pieces = (Extractor(load_spec(spec_of(chosen))) for _ in range(2))
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    batch = batch_of(rows)
    together = whole(batch, BatchOrigin(source="a")).to_pylist()
    parts = [
        pieces(
            batch.slice(first, last - first), BatchOrigin(source="a", first_row=first)
        ).to_pylist()
        for first, last in itertools.pairwise(bounds)
    ]
    assert str(together) == str([row for part in parts for row in part])
    assert whole.findings == pieces.findings


@given(raw_rows, policies)
def test_every_malformed_value_is_counted_but_those_of_null_columns_in_skipped_rows(
    rows: Any, chosen: Any
) -> None:
    extractor = Extractor(load_spec(spec_of(chosen)))
    extractor(batch_of(rows))
    ids, expected = set(expected_ids(rows, chosen)), Counter[str]()
    for row in rows:
        for name, number in malformed_in(row).items():
            counted = (
                row["id"] in ids or strictest(chosen)[name] == "skip" or name == "days"
            )  # a number is read first
            expected[name] += number if counted else 0
    kinds = ("invalid utf-8", "out of range", "not whole", "lengths differ")
    found = Counter[str]()
    for key, number in extractor.counts.items():
        owner, _, what = key.partition(": ")
        found[owner] += number if what in kinds else 0
    assert found == +expected
    for example in extractor.findings.examples:
        assert example.row is not None
        assert malformed_in(rows[example.row])[example.column]


@given(raw_rows, st.sampled_from([*COLUMNS]), policies)
def test_fail_names_the_first_row_with_a_malformed_value(
    rows: Any, strict: str, chosen: dict[str, str]
) -> None:
    extractor = Extractor(load_spec(spec_of(chosen | {strict: "fail"})))
    owner = "events" if strict in ("items", "prices") else strict
    failing = [row["id"] for row in rows if malformed_in(row)[owner]]
    if not failing:
        extractor(batch_of(rows))
        return
    with pytest.raises(
        InputError,
        match=rf"^raw\.parquet, row {100 + failing[0]}: (column|sequence) '{owner}': expected ",
    ):
        extractor(batch_of(rows), BatchOrigin(source="raw.parquet", first_row=100))


@given(raw_rows)
def test_without_a_word_in_the_spec_values_are_missing_and_counted_as_ever(rows: Any) -> None:
    document = spec_of({"days": "null"})
    extractor = Extractor(load_spec(document))
    result = extractor(batch_of(rows))
    assert result.num_rows == len(rows)
    said = Extractor(load_spec(spec_of({}, on_error=None)))
    assert str(said(batch_of(rows)).to_pylist()) == str(result.to_pylist())
    assert said.findings == extractor.findings


def extract_one(declared: Any, column: pa.Array, **top: Any) -> tuple[pa.RecordBatch, Extractor]:
    document = {
        "spec": 1,
        "inputs": {"x": declared, "id": "long"},
        "keep": ["x", "id"],
        "slots": [{"slot": 1, "name": "f", "op": "hash", "of": "id"}],
        **top,
    }
    extractor = Extractor(load_spec(document))
    raw = pa.RecordBatch.from_pydict(
        {"x": column, "id": pa.array(range(len(column)), pa.int64()), "more": ["?"] * len(column)}
    )
    return extractor(raw, BatchOrigin(source="a.parquet")), extractor


WRONG = [
    ("string", pa.array([["a"], None, ["b"]])),
    ("list<string>", pa.array(["a", None, "b"])),
    ("long", pa.array(["1", None, "2"])),
    ("double", pa.array([[1.5], None, []])),
    ("map<string, long>", pa.array([1, None, 2])),
    ("timestamp", pa.array([1, None, 2])),
]


@pytest.mark.parametrize(("declared", "column"), WRONG)
@pytest.mark.parametrize("said", [{}, {"on_error": "fail"}])
def test_a_column_of_another_type_is_refused_unless_the_spec_says_to_go_on(
    declared: str, column: pa.Array, said: Any
) -> None:
    with pytest.raises(InputError, match=r"^column 'x': expected .*, found .*") as raised:
        extract_one({"type": declared, **said}, column)
    assert ("`on_error: null` or `skip` in the spec" in str(raised.value)) == (not said)


@pytest.mark.parametrize(("declared", "column"), WRONG)
def test_a_column_of_another_type_is_missing_where_it_says_null(
    declared: str, column: pa.Array
) -> None:
    result, extractor = extract_one({"type": declared, "on_error": None}, column)
    assert result.column("x").to_pylist() == [None] * 3
    assert extractor.counts["x: wrong type"] == 2


@pytest.mark.parametrize(("declared", "column"), WRONG)
def test_a_column_of_another_type_leaves_only_rows_without_a_value_where_it_says_skip(
    declared: str, column: pa.Array
) -> None:
    result, extractor = extract_one({"type": declared, "on_error": "skip"}, column)
    assert result.select(["x", "id"]).to_pylist() == [{"x": None, "id": 1}]
    assert extractor.findings.num_rows_skipped == 2


def test_whole_floats_are_longs_where_the_spec_says_what_others_are() -> None:
    column = pa.array([1.0, 2.5, math.nan])
    with pytest.raises(InputError, match="column 'x': expected long, found double"):
        extract_one("long", column)
    with pytest.raises(
        InputError,
        match=r"^a\.parquet, row 1: column 'x': expected long, found 2\.5 \(not whole\), and "
        r"on_error says fail$",
    ):
        extract_one({"type": "long", "on_error": "fail"}, column)
    result, extractor = extract_one({"type": "long", "on_error": "skip"}, column)
    assert result.column("x").to_pylist() == [1, None]
    assert extractor.counts == {"x: not whole": 1, "x: nan": 1}


def test_the_specs_word_holds_for_columns_that_say_nothing_themselves() -> None:
    column = pa.array([2**63], pa.uint64())
    assert extract_one("long", column, on_error="skip")[0].num_rows == 0
    assert extract_one({"type": "long", "on_error": None}, column, on_error="skip")[0].num_rows == 1
    with pytest.raises(
        InputError, match="row 0: column 'x': expected long, found 9223372036854775808"
    ):
        extract_one({"type": "long", "on_error": "fail"}, column, on_error="skip")


def test_nulls_nan_and_infinities_are_not_malformed() -> None:
    result, extractor = extract_one(
        {"type": "list<double>", "on_error": "fail"}, pa.array([[None, math.nan, math.inf], None])
    )
    assert result.num_rows == 2
    assert not extractor.findings.examples


def optional(raw: dict[str, Any]) -> tuple[list[dict[str, Any]], Extractor]:
    document = {
        "spec": 1,
        "inputs": {"x": {"type": "string", "optional": True}, "y": "long"},
        "slots": [
            {"slot": 1, "name": "f", "op": "hash", "of": "x"},
            {"slot": 2, "name": "g", "op": "length", "of": "x"},
        ],
        "keep": ["y"],
    }
    extractor = Extractor(load_spec(document))
    return extractor(
        pa.RecordBatch.from_pydict(raw), BatchOrigin(source="a.parquet")
    ).to_pylist(), extractor


def test_an_optional_column_that_is_absent_is_missing_and_counted() -> None:
    rows, extractor = optional({"y": [1, 2]})
    assert rows == [{"f": 0, "g": 0, "y": 1}, {"f": 0, "g": 0, "y": 2}]
    assert extractor.counts == {"x: column absent": 2}
    assert list(map(str, extractor.findings.examples)) == ["a.parquet"]
    assert optional({"y": [1], "x": ["a"]})[0][0]["f"] > 0
    assert extractor.one({"y": 1}) == rows[0]


def test_a_file_must_have_some_column_even_if_all_are_optional() -> None:
    with pytest.raises(InputError, match=r"missing input column: expected 'y'; found z"):
        optional({"z": [1]})
    document = {
        "spec": 1,
        "inputs": {"x": {"type": "string", "optional": True}},
        "slots": [{"slot": 1, "name": "f", "op": "hash", "of": "x"}],
    }
    with pytest.raises(InputError, match=r"missing input column: expected 'x'; found z"):
        Extractor(load_spec(document))(pa.RecordBatch.from_pydict({"z": [1]}))


def test_all_missing_columns_are_named_with_their_nearest_and_few_of_the_others() -> None:
    spec = load_spec(spec_of({}))
    names = ["id", "txt", "day", *(f"other{i}" for i in range(30))]
    expected = (
        r"^missing 6 input columns: expected 'text' \(did you mean 'txt'\?\), 'count', 'tags', "
        r"'days' \(did you mean 'day'\?\), 'items', 'prices'.*; found id, txt, day, other0, "
        r".*other16 and 13 more$"
    )
    with pytest.raises(InputError, match=expected):
        Extractor(spec).bind(pa.schema([(name, pa.int64()) for name in names]))


ROW = {"id": 1, "text": "a", "count": 1, "tags": ["t"], "days": 1, "items": [1], "prices": [0.5]}
BAD = [
    ("text", b"\xff", "invalid utf-8"),
    ("text", "\ud800", "invalid utf-8"),
    ("text", 7, "wrong type"),
    ("count", 2**63, "out of range"),
    ("count", 2**70, "out of range"),
    ("count", 1.5, "not whole"),
    ("tags", "t", "wrong type"),
    ("days", [1], "wrong type"),
    ("items", [1, 2], "lengths differ"),
]


@pytest.mark.parametrize(("column", "value", "what"), BAD)
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_one_malformed_row_is_refused_where_it_says_fail_or_skip(
    column: str, value: Any, what: str, policy: str
) -> None:
    extractor = Extractor(load_spec(spec_of({}, on_error=policy)))
    assert extractor.one(ROW)["id"] == 1
    with pytest.raises(
        InputError,
        match=rf"^(column '{column}'|sequence 'events'): expected .*(on_error says {policy}|found "
        rf".*)$",
    ):
        extractor.one({**ROW, column: value})


@pytest.mark.parametrize(("column", "value", "what"), BAD)
def test_one_malformed_row_is_as_in_a_batch_where_it_says_null(
    column: str, value: Any, what: str
) -> None:
    extractor = Extractor(load_spec(spec_of({}, on_error="null")))
    result = extractor.one({**ROW, column: value})
    assert result["id"] == 1
    owner = "events" if what == "lengths differ" else column
    assert extractor.counts == {f"{owner}: {what}": 1}
    if what not in ("invalid utf-8", "lengths differ"):
        assert str(result) == str(extractor.one({**ROW, column: None}))


@pytest.mark.parametrize("value", [1.5, [1.5], math.inf])
def test_one_row_never_cuts_a_fraction_off(value: Any) -> None:
    document = {"spec": 1, "inputs": {"x": "list<long>" if isinstance(value, list) else "long"}}
    extractor = Extractor(
        load_spec({**document, "slots": [{"slot": 1, "name": "f", "op": "hash", "of": "x"}]})
    )
    with pytest.raises(InputError, match=r"column 'x': expected (list<)?long>?, found "):
        extractor.one({"x": value})


def test_a_value_that_arrow_does_not_know_is_refused_whatever_it_says() -> None:
    with pytest.raises(InputError, match="column 'text': expected string, found <object"):
        Extractor(load_spec(spec_of({}, on_error="null"))).one({**ROW, "text": object()})


@featstore.operator(inputs=[pa.int64()], result=pa.int64())
def odd_only(numbers: pa.Array) -> pa.Array:
    if any(number is not None and number % 2 == 0 for number in numbers.to_pylist()):
        raise AssertionError
    return numbers


@featstore.operator(inputs=[pa.int64()], result=pa.int64())
def few_only(numbers: pa.Array) -> pa.Array:
    if len(numbers) > 3:
        raise RuntimeError("too many")
    return numbers


def run_operator(
    name: str, numbers: list[float], monkeypatch: pytest.MonkeyPatch
) -> pa.RecordBatch:
    monkeypatch.setitem(sys.modules, "my_ops", sys.modules[__name__])
    document = {
        "spec": 1,
        "inputs": {"x": {"type": "long", "on_error": "skip"}},
        "slots": [{"slot": 1, "name": "f", "op": f"my_ops:{name}", "of": "x"}],
    }
    batch = pa.RecordBatch.from_pydict({"x": pa.array(numbers)})
    return Extractor(load_spec(document))(batch, BatchOrigin(source="a.parquet", first_row=1000))


@pytest.mark.parametrize("position", [3, 500, 999])
def test_the_first_failing_row_is_named_by_its_number_in_the_file(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [1.0] * 1000
    numbers[1] = 0.5  # skipped, so that later rows move up
    numbers[position] = numbers[-1] = 2.0
    with pytest.raises(
        OperatorError,
        match=rf"^a\.parquet, row {1000 + position}: f \(my_ops:odd_only\): AssertionError: $",
    ):
        run_operator("odd_only", numbers, monkeypatch)


def test_an_operator_that_fails_only_for_rows_together_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = (
        r"^a\.parquet, rows 1000 to 1003: f \(my_ops:few_only\): RuntimeError: too many \(only for "
        r"these rows together: "
    )
    with pytest.raises(OperatorError, match=message):
        run_operator("few_only", [1.0] * 16, monkeypatch)
    assert run_operator("few_only", [1.0] * 3, monkeypatch).num_rows == 3


@pytest.mark.parametrize(
    "raw",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    ],
    ids=str,
)
def test_rows_are_skipped_whatever_the_arrow_type_of_the_text(raw: pa.DataType) -> None:
    binary = pa.array([b"a", b"\xff", None, b"long enough for no inlining"])
    column = binary.cast(raw) if "binary" in str(raw) else binary.view(pa.string()).cast(raw)
    result, extractor = extract_one({"type": "string", "on_error": "skip"}, column)
    assert result.column("x").to_pylist() == ["a", None, "long enough for no inlining"]
    assert [example.value for example in extractor.findings.examples] == [r"b'\xff'"]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 2, 4], pa.int32()), pa.concat_arrays([column, column])[:4]
    )
    assert extract_one({"type": "list<string>", "on_error": "skip"}, lists)[0].num_rows == 3
    dictionary = extract_one({"type": "string", "on_error": "skip"}, binary.dictionary_encode())[0]
    assert dictionary == result


@pytest.mark.parametrize(
    "raw", [pa.list_(pa.uint64()), pa.large_list(pa.uint64()), pa.list_(pa.uint64(), 2)], ids=str
)
def test_rows_are_skipped_whatever_the_arrow_type_of_the_list(raw: pa.DataType) -> None:
    column = pa.array([[1, 2], [3, 2**63], None, [None, 4]], raw)
    result, extractor = extract_one({"type": "list<long>", "on_error": "skip"}, column)
    assert result.column("x").to_pylist() == [[1, 2], None, [None, 4]]
    assert [(example.row, example.value) for example in extractor.findings.examples] == [
        (1, str(2**63))
    ]


def text_spec(said: str | None) -> Spec:
    price = {"type": "double", "text": True, **({"on_error": said} if said else {})}
    items = {"type": "list<long>", "text": True, **({"on_error": said} if said else {})}
    return load_spec(
        {
            "spec": 1,
            "inputs": {"price": price, "items": items, "names": "list<string>"},
            "labels": {"paid": "price"},
            "keep": ["price"],
            "sequences": {"events": {"of": ["items", "names"]}},
            "slots": [
                {"slot": 1, "name": "f_price", "op": "identity", "of": "price"},
                {"slot": 2, "name": "f_item", "op": "identity", "of": "items"},
                {"slot": 3, "name": "f_name", "op": "hash", "of": "names"},
            ],
        }
    )


TEXT_ROWS = pa.record_batch(
    {
        "price": ["1.5", "1,5", " 2 ", "", None],
        "items": [["1", "2"], ["3"], ["x", "4"], [], ["5"]],
        "names": [["a", "b"], ["c"], ["d", "e"], [], ["f"]],
    }
)


@pytest.mark.parametrize("raw", [pa.string(), pa.binary(), pa.string_view()], ids=str)
@pytest.mark.parametrize("said", [None, "null"])
def test_text_that_is_no_number_is_missing_for_slots_labels_and_kept_columns(
    said: str | None, raw: pa.DataType
) -> None:
    extractor = Extractor(text_spec(said))
    batch = TEXT_ROWS.set_column(0, "price", TEXT_ROWS["price"].cast(raw))
    rows = extractor(batch).to_pylist()
    assert [row["price"] for row in rows] == [1.5, None, 2.0, None, None]
    assert [row["paid"] for row in rows] == [row["price"] for row in rows]
    assert [repr(row["f_price"]) for row in rows] == ["1.5", "nan", "2.0", "nan", "nan"]
    assert [row["f_item"] for row in rows] == [[1, 2], [3], [4], [], [5]]
    assert [len(row["f_name"]) for row in rows] == [2, 1, 1, 0, 1], "the lists stay aligned"
    assert extractor.counts["price: not a number"] == 1
    assert extractor.counts["items: not a number"] == 1
    ones = Extractor(text_spec(said))
    for expected, row in zip(rows, TEXT_ROWS.to_pylist(), strict=True):
        assert repr(ones.one(row)) == repr(expected)


def test_rows_with_text_that_is_no_number_are_skipped_or_stop_the_run() -> None:
    extractor = Extractor(text_spec("skip"))
    rows = extractor(TEXT_ROWS).to_pylist()
    assert [row["price"] for row in rows] == [1.5, None, None]
    assert extractor.findings.num_rows_skipped == 2
    assert [str(one) for one in extractor.findings.examples] == ["'x' (row 2)", "'1,5' (row 1)"]
    found = "row 1: column 'price': expected double, found '1,5' (not a number), and on_error says"
    with pytest.raises(InputError, match=re.escape(f"raw.parquet, {found} fail")):
        Extractor(text_spec("fail"))(TEXT_ROWS, BatchOrigin(source="raw.parquet"))
    with pytest.raises(InputError, match=re.escape("(not a number), and on_error says skip")):
        extractor.one(TEXT_ROWS.to_pylist()[1])


def test_columns_that_are_no_text_are_read_as_ever_where_text_may_come() -> None:
    batch = TEXT_ROWS.set_column(0, "price", pa.array([1.5, None, math.nan, math.inf, 2.0]))
    rows = Extractor(text_spec("fail"))(batch.slice(0, 2)).to_pylist()
    assert [row["price"] for row in rows] == [1.5, None]
    assert Extractor(text_spec(None)).one(batch.to_pylist()[0])["price"] == 1.5


@pytest.mark.parametrize("said", [None, "fail"])
def test_text_where_a_number_is_declared_names_what_reads_it(said: str | None) -> None:
    inputs = {"x": {"type": "list<long>", **({"on_error": said} if said else {})}}
    slots = [{"slot": 1, "name": "f", "op": "hash", "of": "x"}]
    extractor = Extractor(load_spec({"spec": 1, "inputs": inputs, "slots": slots}))
    advice = "`x: {type: list<long>, text: true}` among the spec's inputs reads numbers as text"
    with pytest.raises(InputError, match=re.escape(advice)):
        extractor(pa.record_batch({"x": pa.array([["1"]], pa.list_(pa.string()))}))


@pytest.mark.parametrize("of", ["string", "boolean", "map<string, double>", "list<timestamp>"])
def test_only_numbers_may_be_text(of: str) -> None:
    inputs = {"x": {"type": of, "text": True}}
    with pytest.raises(SpecError, match=r"inputs\.x\.text: expected it with double, lon"):
        load_spec({"spec": 1, "inputs": inputs, "slots": []})
