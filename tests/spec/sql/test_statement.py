"""`featstore spec show --format sql` against the kernel: the same values from a real Spark, for options, raw
types and texts of all kinds.

The tables of cases and the golden vectors run through Spark SQL in
tests/contracts/test_operator_engines.py.
"""

import datetime
import math
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
import featstore.spec.sql.statement
from featstore.base.errors import SpecError
from featstore.extraction.units.extractor import Extractor
from featstore.ops.registry import OPERATORS
from featstore.spec import check
from featstore.spec.meaning import fit_hash, meaning
from featstore.spec.model import Fitted, Spec
from featstore.spec.parse import load_spec
from featstore.spec.sql.statement import TEMPLATES, slot_sql
from tests.golden_values import same

WITHOUT_EXPRESSION: set[str] = (
    set()
)  # operators of which Spark SQL can only be told by the extractor
DEMO = Path(__file__).parents[3] / "featstore" / "tools"

Select = Callable[[pa.Table, dict[str, str]], list[dict[str, Any]]]


@pytest.fixture
def select(spark: Any, tmp_path: Path) -> Select:
    """Expressions over rows that Spark reads from a Parquet file."""

    def run(rows: pa.Table, expressions: dict[str, str]) -> list[dict[str, Any]]:
        pq.write_table(rows, tmp_path / "rows.parquet", use_dictionary=False)
        frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
        binary = [field.name for field in rows.schema if field.type == pa.binary()]
        for name in binary:
            frame = frame.withColumn(name, frame[name].cast("string"))
        found = frame.selectExpr(
            *(f"{text} AS `{name}`" for name, text in expressions.items())
        ).collect()
        return [row.asDict() for row in found]

    return run


INPUTS = {
    "s": "string",
    "x": "double",
    "l": "list<double>",
    "t": "list<string>",
    "n": "long",
    "b": "boolean",
    "ts": "timestamp",
}
CASES: list[dict[str, Any]] = [
    {"name": "log", "op": "log1p", "of": "x"},
    {"name": "log_default", "op": "log1p", "of": "x", "default": 2.5, "fill": -1},
    {"name": "log_flag", "op": "log1p", "of": "b"},
    {"name": "clip_both", "op": "clip", "of": "x", "min": -1e-7, "max": 1e20},
    {"name": "clip_low", "op": "clip", "of": "n", "min": 0},
    {"name": "clip_high", "op": "clip", "of": "x", "max": 10},
    {"name": "same", "op": "identity", "of": "x"},
    {"name": "same_list", "op": "identity", "of": "l"},
    {"name": "head", "op": "identity", "of": "l", "max_len": 2},
    {
        "name": "tail",
        "op": "identity",
        "of": "l",
        "max_len": 2,
        "truncate": "tail",
        "default": [1.5],
    },
    {"name": "empty_default", "op": "identity", "of": "l", "default": []},
    {"name": "tail_ids", "op": "hash", "of": "t", "max_len": 2, "truncate": "tail"},
    {"name": "no_blank", "op": "hash", "of": "t", "empty_as_null": True, "default": ["it's \\ ü"]},
    {
        "name": "no_blank_text",
        "op": "hash",
        "of": "s",
        "empty_as_null": True,
        "default": "it's \\ ${x} ü\n",
    },
    {"name": "bins", "op": "bucketize", "of": "x", "boundaries": [-1, 0, 0.5], "fill": 9},
    {
        "name": "bin_index",
        "op": "bucketize",
        "of": "x",
        "boundaries": [-1, 0, 0.5],
        "encode": "index",
    },
    {"name": "hour_ny", "op": "hour", "of": "ts", "tz": "America/New_York"},
    {
        "name": "day_kolkata",
        "op": "day_of_week",
        "of": "ts",
        "tz": "Asia/Kolkata",
        "default": datetime.datetime(2026, 11, 1, 3),
    },
    {"name": "when", "op": "hash", "of": "ts"},
    {"name": "three", "op": "cross", "of": ["t", "s", "t", "hour_ny"], "max_cross": 5},
    {"name": "of_crosses", "op": "cross", "of": ["three", "n"], "default": {"n": -5}},
]
ROWS: dict[str, list[Any]] = {
    "s": ["a", "", None, "ü", "b", "c"],
    "x": [-1.0, math.nan, None, math.inf, -0.0, 1e300],
    "l": [[1.0, None, math.nan, math.inf, 2.0, 3.0], [], None, [1e300], [-0.0, 1e-50], [7.0]],
    "t": [["a", "", "b", None], [], None, ["c"], ["", ""], ["d", "e", "f"]],
    "n": [0, -1, None, 2**63 - 1, -(2**63), 5],
    "b": [True, False, None, True, False, True],
    "ts": [
        datetime.datetime(y, m, 10, h, 30, tzinfo=datetime.UTC)
        for y, m, h in [(2013, 3, 7), (2013, 11, 6), (1969, 12, 23)] * 2
    ],
}


def compare(select: Select, spec: Spec, rows: pa.Table) -> None:
    expected = Extractor(spec)(rows.combine_chunks().to_batches()[0]).to_pylist()
    names = [node.name for node in spec.nodes if node.store]
    found = select(rows, {name: slot_sql(spec, name) for name in names})
    wrong = [
        (name, i, row[name], expected[i][name])
        for i, row in enumerate(found)
        for name in names
        if not same(row[name], expected[i][name])
    ]
    assert not wrong[:5]
    assert len(found) == rows.num_rows


def test_every_operator_and_option_gives_the_kernels_values(select: Select) -> None:
    spec = spec_of(INPUTS, CASES)
    rows = pa.table({name: pa.array(values, spec.inputs[name]) for name, values in ROWS.items()})
    compare(select, spec, rows)


def test_longs_beyond_float64_are_bucketized_as_the_kernel_does(select: Select) -> None:
    edges = (0, 2**53, -(2**53), 2**63 - 6, -(2**63) + 5)
    values = [None, *(edge + by for edge in edges for by in range(-5, 6))]
    bounds = {
        "far": [-1e19, -(2.0**63), 1e19],
        "near": [-(2.0**53) - 2, -0.5, 2.0**53 + 4, 2.0**63],
        "none": [1e19],
    }
    slots = [
        {"name": f"{name}_{encode}", "op": "bucketize", "of": "n", "boundaries": of}
        | ({"encode": encode} if encode else {})
        for name, of in bounds.items()
        for encode in ("", "index")
    ]
    compare(select, spec_of({"n": "long"}, slots), pa.table({"n": pa.array(values, pa.int64())}))


def test_every_operator_has_an_expression() -> None:
    assert {
        name for name, operator in OPERATORS.items() if operator.function not in TEMPLATES
    } == WITHOUT_EXPRESSION


def spec_of(inputs: dict[str, str], slots: list[dict[str, Any]], **more: Any) -> Spec:
    return load_spec(
        {
            "spec": 1,
            "inputs": inputs,
            "slots": [{"slot": i + 1} | entry for i, entry in enumerate(slots)],
        }
        | more
    )


def test_raw_columns_of_other_types_are_read_as_the_extractor_reads_them(select: Select) -> None:
    day, instant = datetime.date(2013, 3, 10), datetime.datetime(2013, 3, 10, 7, 30, 0, 5)
    raw = pa.table(
        {
            "unsigned": pa.array([2**64 - 1, 7, None], pa.uint64()),
            "narrow": pa.array([-5, 3, None], pa.int8()),
            "many": pa.array([[2**64 - 1, 1], [], None], pa.list_(pa.uint64())),
            "single": pa.array([0.1, math.inf, math.nan], pa.float32()),
            "singles": pa.array([[0.1, math.nan, None], [], None], pa.list_(pa.float32())),
            "day": pa.array([day, None, datetime.date(1900, 1, 1)], pa.date32()),
            "naive": pa.array([instant, None, datetime.datetime(1900, 1, 1)], pa.timestamp("us")),
            "map": pa.array(
                [[("a", 2**64 - 1), ("b", 5)], [], None], pa.map_(pa.string(), pa.uint64())
            ),
        }
    )
    inputs = {
        "unsigned": "long",
        "narrow": "long",
        "many": "list<long>",
        "single": "double",
        "singles": "list<double>",
    }
    inputs |= {"day": "timestamp", "naive": "timestamp", "map": "map<string, long>"}
    numbers = [
        {"name": f"{name}_number", "op": "identity", "of": name}
        for name in ("single", "singles", "many", "unsigned")
    ]
    ids = [
        {"name": f"{name}_id", "op": "hash", "of": name}
        for name in ("unsigned", "narrow", "many", "day", "naive")
    ]
    found = [{"name": f"map_{key}", "op": "lookup", "of": ["map", key]} for key in ("a", "b")]
    keys = [
        {"name": key, "op": "fill", "of": "none", "value": key, "store": False, "slot": None}
        for key in ("a", "b")
    ]
    spec = spec_of(inputs | {"none": "string"}, [*numbers, *ids, *found, *keys])
    compare(select, spec, raw.append_column("none", pa.nulls(3, pa.string())))


def test_texts_of_all_scripts_have_the_kernels_letters_words_and_pieces(select: Select) -> None:
    characters = [chr(code) for code in range(1, 0x2FFF) if unicodedata.category(chr(code)) != "Cn"]
    rows = pa.table(
        {
            "text": [
                f"a{character}Σ{character} b"
                for character in [*characters, "\uff21", "𐐀", "👍🏽", "\u3000"]
            ]
        }
    )
    slots: list[dict[str, Any]] = [
        {"name": "letters", "op": "lower", "of": "text"},
        {"name": "words", "op": "tokenize", "of": "text", "by": "word"},
        {"name": "runs", "op": "tokenize", "of": "text", "by": "character", "n": 3},
        {"name": "pieces", "op": "split", "of": "text", "separator": "Σ"},
        {"name": "part", "op": "slice", "of": "text", "start": -4, "stop": -1},
    ]
    compare(select, spec_of({"text": "string"}, slots), rows)


@pytest.mark.parametrize(
    "separator", [".", "||", "\\E", "${x}", "'", "[a-c]", "^", "\n", " \t", "a|b"]
)
def test_a_separator_is_no_pattern(select: Select, separator: str) -> None:
    rows = pa.table(
        {"text": [f"a{separator}{separator}b.c", f"{separator}x", separator, "aa|b", "", None]}
    )
    slots: list[dict[str, Any]] = [
        {"name": "pieces", "op": "split", "of": "text", "separator": separator},
        {
            "name": "pairs",
            "op": "split",
            "of": "text",
            "separator": "x",
            "store": False,
            "slot": None,
        },
        {
            "name": "values",
            "op": "weighted",
            "of": "pairs",
            "part": "value",
            "separator": separator,
        },
        {"name": "default", "op": "hash", "of": "text", "default": separator},
    ]
    compare(select, spec_of({"text": "string"}, slots), rows)


def test_a_chain_of_operators_grows_with_its_length_and_not_with_its_power(select: Select) -> None:
    chain = [{"name": "n0", "op": "ratio", "of": ["x", "n"], "store": False, "slot": None}]
    for i in range(6):
        chain.append(
            {
                "name": f"p{i}",
                "op": "power",
                "of": f"n{i}",
                "exponent": 3,
                "store": False,
                "slot": None,
            }
        )
        chain.append(
            {
                "name": f"n{i + 1}",
                "op": "clip",
                "of": f"p{i}",
                "min": -2,
                "max": 2,
                "store": False,
                "slot": None,
            }
        )
    spec = spec_of(
        {"x": "double", "n": "long"}, [*chain, {"name": "last", "op": "identity", "of": "n6"}]
    )
    compare(select, spec, pa.table({"x": [3.0, -0.5, None, 1e300], "n": [2, 1, 1, 0]}))
    assert len(slot_sql(spec, "last")) < 3_000


@pytest.mark.parametrize("op", ["standardize", "min_max", "ratio"])
def test_nested_operators_of_every_kind_grow_with_their_number(op: str) -> None:
    assert _nested_length(op, 8) - _nested_length(op, 4) < 3 * (
        _nested_length(op, 4) - _nested_length(op, 2)
    )


def _nested_length(op: str, num_levels: int) -> int:
    """Of an expression that reads each level once, or with `ratio` beside a column."""
    chain: list[dict[str, Any]] = [
        {
            "name": f"n{i}",
            "op": op,
            "of": [f"n{i - 1}" if i else "x", "x"][: 2 if op == "ratio" else 1],
        }
        for i in range(num_levels)
    ]
    inner = [node | {"store": False, "slot": None} for node in chain[:-1]]
    spec = spec_of({"x": "double"}, [*inner, chain[-1]])
    params = {"standardize": {"mean": 0.5, "stddev": 2.0}, "min_max": {"min": 0.0, "max": 2.0}}.get(
        op, {}
    )
    for node in (node for node in check.ordered(spec) if params):
        fit = Fitted(
            op=op, hash=fit_hash(spec, node, semantic_meanings(spec)), num_values=2, params=params
        )
        spec = replace(spec, fitted={**spec.fitted, node.name: fit})
    return len(slot_sql(spec, chain[-1]["name"]))


def semantic_meanings(spec: Spec) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        meanings[node.name] = meaning(spec, node, meanings)
    return meanings


def test_an_inner_node_is_said_to_be_one() -> None:
    inner = {"name": "n", "op": "log1p", "of": "x", "store": False, "slot": None}
    spec = spec_of({"x": "double"}, [inner, {"name": "f", "op": "identity", "of": "n"}])
    with pytest.raises(SpecError, match=r"found 'n', which is an inner node \(`store: false`\)"):
        slot_sql(spec, "n")


def test_code_of_ones_own_has_no_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sql_operators")
    module.same = featstore.operator(inputs=[pa.int64()], result=pa.int64())(lambda n: n)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sql_operators", module)
    spec = spec_of({"n": "long"}, [{"name": "f", "op": "sql_operators:same", "of": "n"}])
    with pytest.raises(
        SpecError,
        match="f: the operator sql_operators:same has no Spark SQL expression, since it is user code",
    ):
        slot_sql(spec, "f")


@pytest.mark.parametrize("name", ["flights", "synthetic"])
def test_every_slot_of_the_demos_has_an_expression(spark: Any, name: str) -> None:
    spec = load_spec(DEMO / f"{name}.spec.yaml")
    batch = pa.RecordBatch.from_pylist([], pa.schema(list(spec.inputs.items())))
    frame = spark.createDataFrame(pa.Table.from_batches([batch]))
    expressions = {slot: slot_sql(spec, slot) for slot in Extractor(spec).schema.names}
    assert frame.selectExpr(
        *(f"{text} AS `{slot}`" for slot, text in expressions.items())
    ).columns == list(expressions)


def test_the_expression_of_a_plain_id_is_the_one_of_the_contract() -> None:
    document = {
        "spec": 1,
        "inputs": {"user_id": "string"},
        "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "user_id"}],
    }
    text = slot_sql(load_spec(document), "101").replace("make_valid_utf8(`user_id`)", "user_id")
    assert (
        text == "CASE WHEN user_id IS NULL THEN 0 ELSE greatest(xxhash64(101, xxhash64(user_id)) & "
        "9223372036854775807, 1) END"
    )


def test_a_lambda_hides_no_column() -> None:
    document = {"spec": 1, "inputs": {"e1": "list<string>", "u": "string"}}
    slot = {"slot": 1, "name": "f", "op": "cross", "of": ["e1", "u"]}
    assert "e1 ->" not in slot_sql(load_spec(document | {"slots": [slot]}), "f")


def test_an_unknown_slot_answers_with_the_nearest() -> None:
    with pytest.raises(
        SpecError,
        match=r"expected one of the spec's 37 stored slots, found 'rout'; did you mean 'route'",
    ):
        featstore.spec.sql.statement.sql(str(DEMO / "flights.spec.yaml"), "rout")


def test_an_operator_without_an_expression_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec(DEMO / "flights.spec.yaml")
    for function in [
        function for function in TEMPLATES if getattr(function, "__name__", None) == "log1p"
    ]:
        monkeypatch.delitem(TEMPLATES, function)
    with pytest.raises(
        SpecError, match="distance_log: the operator log1p has no Spark SQL expression"
    ):
        slot_sql(spec, "distance_log")
