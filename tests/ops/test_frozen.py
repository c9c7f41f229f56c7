"""Operators with frozen params: golden vectors in process and through Spark SQL, and row by row
against plain Python.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import SpecError
from featstore.extraction.units.extractor import Extractor
from featstore.ops.registry import OPERATORS
from featstore.ops.vocabularies import Vocabulary
from featstore.spec.meaning import fit_hash
from featstore.spec.model import Fitted, Spec
from featstore.spec.parse import load_spec
from featstore.spec.sql.statement import slot_sql

GOLDEN = Path(__file__).parents[1] / "golden" / "frozen.jsonl"
VECTORS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
CITIES = ["rome", "oslo", "lima", "7"]


def vocabulary_of(values: list[str]) -> Vocabulary:
    digest = hashlib.sha256("".join(f"{value}\n" for value in values).encode()).hexdigest()
    return Vocabulary(pa.array(values, pa.string()), digest)


def frozen_spec(
    inputs: dict[str, str],
    node: dict[str, Any],
    params: dict[str, Any] | None,
    values: list[str] | None = None,
) -> Spec:
    """A spec of one slot `f`, fitted with these params, or with a vocabulary of these values."""
    spec = load_spec({"spec": 1, "inputs": inputs, "slots": [{"slot": 500, "name": "f", **node}]})
    if values is not None:
        return replace(spec, vocabularies={node["file"]: vocabulary_of(values)})
    fitted = Fitted(
        op=node["op"], hash=fit_hash(spec, spec.nodes[0], {}), num_values=1, params=params or {}
    )
    return replace(spec, fitted={"f": fitted})


def spec_of(vector: dict[str, Any]) -> Spec:
    return frozen_spec(vector["inputs"], vector["node"], vector.get("frozen"), vector.get("values"))


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_golden_vectors_in_batches_and_single_rows(vector: dict[str, Any]) -> None:
    extractor = Extractor(spec_of(vector))
    assert str(extractor.one(vector["row"])["f"]) == str(vector["stored"])
    rows = [dict.fromkeys(vector["row"]), *[vector["row"]] * 40]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(extractor.spec.inputs.items())))
    assert str(extractor(batch).column("f").to_pylist()[1:]) == str([vector["stored"]] * 40)


def test_spark_sql_gives_the_golden_vectors(spark: Any, tmp_path: Path) -> None:
    specs = [spec_of(vector) for vector in VECTORS]
    columns, expressions = {}, []
    for i, (vector, spec) in enumerate(zip(VECTORS, specs, strict=True)):
        (name, arrow_type), *others = spec.inputs.items()
        assert not others
        columns[f"c{i}"] = pa.array([vector["row"][name]], arrow_type)
        expressions.append(f"{slot_sql(spec, 'f').replace(f'`{name}`', f'`c{i}`')} AS f{i}")
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (found,) = spark.read.parquet(str(tmp_path / "rows.parquet")).selectExpr(*expressions).collect()
    assert [str(value) for value in found] == [str(vector["stored"]) for vector in VECTORS]


floats = st.floats(width=64) | st.integers(-30, 30).map(lambda n: n / 2)
texts = st.sampled_from([*CITIES, "x", "", "romé"]) | st.text(max_size=4)


def stored_float(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    return pa.scalar(value).cast(pa.float32()).as_py() if abs(value) < 3.4e38 else math.nan


def same(left: list[Any], right: list[Any]) -> bool:
    return [f"{value:.6g}" if isinstance(value, float) else value for value in left] == [
        f"{value:.6g}" if isinstance(value, float) else value for value in right
    ]


def standardized(x: float | None) -> float:
    return stored_float(None if x is None else (x - 3.0) / 2.5)


def shared(x: float | None) -> float:
    return stored_float(None if x is None or x != x else (min(max(x, -1.0), 4.0) + 1.0) / 5.0)


def bucket(x: float | None) -> int:
    return 0 if x is None or x != x else bisect_right([-1.0, 0.5, 7.0], x) + 1


FLOAT_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[float | None], float]]] = {
    "standardize": ({"op": "standardize"}, {"mean": 3.0, "stddev": 2.5}, standardized),
    "min_max": ({"op": "min_max"}, {"min": -1.0, "max": 4.0}, shared),
    "quantile_bucketize": (
        {"op": "quantile_bucketize", "num_buckets": 4, "encode": "index"},
        {"boundaries": [-1.0, 0.5, 7.0]},
        bucket,
    ),
}


@pytest.mark.parametrize("case", FLOAT_CASES)
@given(values=st.lists(st.none() | floats, max_size=10))
def test_fitted_operators_agree_with_plain_python(case: str, values: list[float | None]) -> None:
    node, params, expected = FLOAT_CASES[case]
    extractor = Extractor(frozen_spec({"x": "double"}, {"of": "x", **node}, params))
    stored = (
        extractor(pa.RecordBatch.from_arrays([pa.array(values, pa.float64())], ["x"]))
        .column("f")
        .to_pylist()
    )
    assert same(stored, [expected(value) for value in values])


@pytest.mark.parametrize("unknown", ["missing", "index"])
@given(rows=st.lists(st.none() | st.lists(st.none() | texts, max_size=4), max_size=8))
def test_vocabulary_agrees_with_plain_python(
    unknown: str, rows: list[list[str | None] | None]
) -> None:
    node = {"op": "vocabulary", "of": "x", "file": "v", "unknown": unknown, "encode": "index"}
    shift = 2 if unknown == "index" else 1

    def index(value: str) -> int:
        return CITIES.index(value) + shift if value in CITIES else shift - 1

    def expected(row: list[str | None] | None) -> list[int]:
        return (
            [0]
            if row is None
            else [i for value in row if value is not None and (i := index(value))]
        )

    lists = Extractor(frozen_spec({"x": "list<string>"}, node, None, CITIES))
    batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.list_(pa.string()))], ["x"])
    assert lists(batch).column("f").to_pylist() == [expected(row) for row in rows]
    flat = [value for row in rows if row is not None for value in row]
    single = Extractor(frozen_spec({"x": "string"}, node, None, CITIES))
    found = (
        single(pa.RecordBatch.from_arrays([pa.array(flat, pa.string())], ["x"]))
        .column("f")
        .to_pylist()
    )
    assert found == [0 if value is None else index(value) for value in flat]
    num_unknown = sum(value is not None and value not in CITIES for value in flat)
    assert (
        single.counts["f: not in vocabulary"] == lists.counts["f: not in vocabulary"] == num_unknown
    )


def test_growth_moves_no_index_and_takes_not_that_of_unknown_values() -> None:
    for unknown in ("missing", "index"):
        node = {"op": "vocabulary", "of": "x", "file": "v", "unknown": unknown}
        before, after = (
            Extractor(frozen_spec({"x": "string"}, node, None, values))
            for values in (CITIES, [*CITIES, "new"])
        )
        for value in (*CITIES, "other"):
            assert before.one({"x": value}) == after.one({"x": value})
        assert after.one({"x": "new"})["f"] not in {
            0,
            *(before.one({"x": value})["f"] for value in (*CITIES, "other")),
        }


def test_a_default_never_takes_an_index_of_the_vocabulary() -> None:
    """A named defect of peers: the default value, 0, is that of the first value."""
    node = {"op": "vocabulary", "of": "x", "file": "v", "encode": "index"}
    indices = {
        Extractor(frozen_spec({"x": "string"}, node, None, CITIES)).one({"x": value})["f"]
        for value in CITIES
    }
    assert indices == {1, 2, 3, 4}
    for unknown, stored in (("missing", 0), ("index", 1)):
        spec = frozen_spec(
            {"x": "string"}, node | {"default": "none", "unknown": unknown}, None, CITIES
        )
        assert Extractor(spec).one({"x": None})["f"] == stored
    with pytest.raises(
        SpecError,
        match=r"slots\[0\]\.fill: expected no `fill` with vocabulary, since it could not be told",
    ):
        Extractor(
            frozen_spec(
                {"x": "string"},
                {"op": "vocabulary", "of": "x", "file": "v", "fill": 0},
                None,
                CITIES,
            )
        )


def test_values_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(array: pa.Array) -> pa.Array:
        return pa.array(
            [None if text is None else len(text) for text in array.to_pylist()], pa.int64()
        )

    monkeypatch.setattr("featstore.ops.vocabularies.value_hash", short)
    values = ["aa", "b", "cc", "dd", "e"]
    found = Vocabulary(pa.array(values), "a digest of its own").find(
        pa.array(["dd", "xx", "e", None, "aa", "f", "cc"])
    )
    assert found.tolist() == [3, -1, 4, -1, 0, -1, 2]


def test_vocabularies_are_equal_by_their_digest() -> None:
    assert vocabulary_of(["a"]) == vocabulary_of(["a"])
    assert vocabulary_of(["a"]) != vocabulary_of(["b"])
    assert repr(vocabulary_of(["a"])).startswith("Vocabulary(1 values, ")
    with pytest.raises(SpecError, match="lock: expected a vocabulary, found"):
        OPERATORS["vocabulary"].frozen["vocabulary"].kind.read(["a"], "lock")


def test_a_large_vocabulary_has_no_sql_and_doubles_no_index() -> None:
    node = {"op": "vocabulary", "of": "x", "file": "v"}
    with pytest.raises(
        SpecError, match="expected a vocabulary of at most 1,000 values for Spark SQL, found 1,001"
    ):
        slot_sql(frozen_spec({"x": "string"}, node, None, [str(i) for i in range(1001)]), "f")
    with pytest.raises(
        SpecError,
        match=r"slots\[0\]\.of: expected string or long, or a list of these for vocabulary",
    ):
        Extractor(frozen_spec({"x": "double"}, node, None, CITIES))
