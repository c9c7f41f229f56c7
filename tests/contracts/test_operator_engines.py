"""One table of cases per operator, run on every engine: the Arrow kernel, a single row, a Spark
worker and Spark SQL.

The cases are tests/golden/operators/<operator>.jsonl, a case a line: raw `columns`, a spec whose
slot `f` is looked at (`inputs`, `slots` and what else a spec has), and what is `stored` of each
row, as the row-at-a-time reading of tests/ops/test_oracle.py has it. A new operator joins with a
file of its own there; if its cases need more than a spec, as a fitted file, it names their test in
CASES_ELSEWHERE. The golden vectors run here too, as cases of three rows.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.extraction.units.extractor import Extractor
from featstore.ops.registry import OPERATORS
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.sql.statement import slot_sql
from tests.golden_values import same, value_of
from tests.parquet_files import put_parquet

GOLDEN = Path(__file__).parents[1] / "golden"
FROZEN = ("quantile_bucketize", "standardize", "min_max", "vocabulary")
CASES_ELSEWHERE = dict.fromkeys(
    FROZEN, "ops/test_frozen.py"
)  # the test that runs their cases on all engines, from tests/ on
NUM_QUERIES = 4


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _vector(line: dict[str, Any]) -> dict[str, Any]:
    row, stored = line["row"], line["stored"]
    return line | {
        "columns": {name: [value, None, value] for name, value in row.items()},
        "stored": [stored, None, stored],
    }


OPERATOR_CASES = {
    f"{path.stem}: {case['name']}": case
    for path in sorted(GOLDEN.glob("operators/*.jsonl"))
    for case in _read(path)
}
VECTORS = {
    f"{file}: {line['name']}": _vector(line)
    for file in ("signs", "floats")
    for line in _read(GOLDEN / f"{file}.jsonl")
}
CASES = OPERATOR_CASES | VECTORS


def spec_of(case: dict[str, Any]) -> Spec:
    document = {
        key: case[key] for key in case if key not in ("name", "row", "columns", "stored", "slots")
    }
    return load_spec(
        {
            "spec": 1,
            "slots": [{key: constant_of(v) for key, v in slot.items()} for slot in case["slots"]],
        }
        | document
    )


def constant_of(written: Any) -> Any:
    return value_of(written) if isinstance(written, dict) and "time" in written else written


def columns_of(case: dict[str, Any], num_rows: int | None = None) -> dict[str, pa.Array]:
    """The raw columns, with null rows up to `num_rows`."""
    declared = spec_of(case).raw_types
    columns = {}
    for name, written in case["columns"].items():
        values = [value_of(value) for value in written]
        arrow_type = (
            pa.binary() if any(isinstance(value, bytes) for value in values) else declared[name]
        )
        columns[name] = pa.array(
            [*values, *[None] * ((num_rows or len(values)) - len(values))], arrow_type
        )
    return columns


def differences(case: dict[str, Any], found: list[Any]) -> list[tuple[int, Any, Any]]:
    expected = [(row, value) for row, value in enumerate(case["stored"]) if value is not None]
    return [(row, found[row], value) for row, value in expected if not same(found[row], value)]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_table_of_cases(name: str) -> None:
    if name in CASES_ELSEWHERE:
        assert name in (GOLDEN.parent / CASES_ELSEWHERE[name]).read_text()
        return
    cases = [case for title, case in OPERATOR_CASES.items() if title.startswith(f"{name}: ")]
    assert any(
        entry["op"] == name for case in cases for entry in case["slots"] if entry["name"] == "f"
    )
    assert sum(len(case["stored"]) for case in cases) >= 8
    given = {
        param for case in cases for entry in case["slots"] if entry["op"] == name for param in entry
    }
    assert set(OPERATORS[name].params) <= given, "a param that no case sets"


@pytest.mark.parametrize("title", OPERATOR_CASES)
def test_the_arrow_kernel_gives_the_values_of_the_table(title: str) -> None:
    case = OPERATOR_CASES[title]
    columns = columns_of(case)
    stored = Extractor(spec_of(case))(
        pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    ).column("f")
    assert not differences(case, stored.to_pylist())


@pytest.mark.parametrize("title", OPERATOR_CASES)
def test_single_rows_give_the_values_of_the_table(title: str) -> None:
    case = OPERATOR_CASES[title]
    extractor = Extractor(spec_of(case))
    rows = [
        dict(zip(case["columns"], map(value_of, row), strict=True))
        for row in zip(*case["columns"].values(), strict=True)
    ]
    assert not differences(case, [extractor.one(row)["f"] for row in rows])


@pytest.fixture(scope="module")
def raw_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All cases' columns side by side in one Parquet file, named `<number of the case>_<name>`."""
    num_rows = max(len(case["stored"]) for case in CASES.values())
    return str(
        put_parquet(
            tmp_path_factory.mktemp("cases") / "raw.parquet",
            {
                f"c{i}_{name}": a
                for i, case in enumerate(CASES.values())
                for name, a in columns_of(case, num_rows).items()
            },
            use_dictionary=False,
        )
    )


def queries() -> Iterator[dict[int, dict[str, Any]]]:
    """The cases by number, in a few parts: a projection of all of them would be too large to
    compile.
    """
    for part in range(NUM_QUERIES):
        yield {i: case for i, case in enumerate(CASES.values()) if i % NUM_QUERIES == part}


def in_one_table(expression: str, number: int) -> str:
    return re.sub("`([^`]*)`", rf"`c{number}_\1`", expression)


def evaluated(spark: Any, raw_file: str, part: dict[int, dict[str, Any]]) -> dict[int, list[Any]]:
    """The printed expression of each case over its columns, from one query."""
    frame = spark.read.parquet(raw_file)
    texts = {
        f.name: f"CAST(`{f.name}` AS STRING) AS `{f.name}`"
        for f in frame.schema
        if f.dataType.typeName() == "binary"
    }
    frame = frame.selectExpr(*(texts.get(name, f"`{name}`") for name in frame.columns))
    expressions = [
        f"{in_one_table(slot_sql(spec_of(case), 'f'), i)} AS `{i}`" for i, case in part.items()
    ]
    rows = frame.selectExpr(*expressions).collect()
    return {i: [row[str(i)] for row in rows] for i in part}


@pytest.mark.slow
def test_spark_sql_gives_the_values_of_the_table_and_every_golden_vector(
    spark: Any, raw_file: str
) -> None:
    found: dict[int, list[Any]] = {}
    for part in queries():
        found |= evaluated(spark, raw_file, part)
    wrong = {
        title: d
        for i, (title, case) in enumerate(CASES.items())
        if (d := differences(case, found[i]))
    }
    assert not wrong
    assert len(found) == len(CASES) >= 400


def test_spark_workers_give_the_values_of_the_table_and_every_golden_vector(
    spark: Any, raw_file: str
) -> None:
    specs = {i: spec_of(case) for i, case in enumerate(CASES.values())}

    def extract(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        extractors = {i: Extractor(spec) for i, spec in specs.items()}
        for batch in batches:
            results = []
            for i, extractor in extractors.items():
                names = {
                    name.partition("_")[2]: name
                    for name in batch.schema.names
                    if name.startswith(f"c{i}_")
                }
                raw = pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in names.values()], names=list(names)
                )
                results.append(extractor(raw).column("f"))
            yield pa.RecordBatch.from_arrays(results, names=[str(i) for i in specs])

    fields = [
        f"`{i}` {_spark_type(Extractor(spec).schema.to_arrow().field('f').type)}"
        for i, spec in specs.items()
    ]
    rows = spark.read.parquet(raw_file).mapInArrow(extract, ", ".join(fields)).collect()
    wrong = {
        title: d
        for i, (title, case) in enumerate(CASES.items())
        if (d := differences(case, [row[str(i)] for row in rows]))
    }
    assert not wrong


def spec_of_all_operators() -> dict[str, Any]:
    """Every operator case as a slot of one spec, inputs and sequences with the case's number before
    their names.
    """
    document: dict[str, Any] = {
        "spec": 1,
        "inputs": {"row": "long"},
        "sequences": {},
        "slots": [],
        "keep": ["row"],
    }
    for i, case in enumerate(OPERATOR_CASES.values()):
        document["inputs"] |= {
            f"c{i}_{name}": declared for name, declared in case["inputs"].items()
        }
        for name, sequence in case.get("sequences", {}).items():
            document["sequences"][f"c{i}_{name}"] = sequence | {
                "of": [f"c{i}_{of}" for of in sequence["of"]]
            }
        [slot] = case["slots"]
        of = [slot["of"]] if isinstance(slot["of"], str) else slot["of"]
        changes = {"slot": i + 1, "name": f"f{i}", "of": [f"c{i}_{name}" for name in of]}
        if isinstance(slot.get("default"), dict):
            changes["default"] = {f"c{i}_{name}": value for name, value in slot["default"].items()}
        document["slots"].append({key: constant_of(value) for key, value in slot.items()} | changes)
    return document | {"output": {"rows_per_row_group": 30, "rows_per_file": 80}}


def mixed_rows(num_rows: int) -> pa.Table:
    """The values of the operator cases in other combinations; columns of a sequence keep theirs, so
    that lengths agree.
    """
    draw = random.Random(7)
    columns = {"row": pa.array(range(num_rows))}
    for i, case in enumerate(OPERATOR_CASES.values()):
        cases = columns_of(case)
        num = min(8, *map(len, cases.values()))
        rows = [draw.randrange(num) for _ in range(num_rows)]
        for name, values in cases.items():
            mixed = rows if "sequences" in case else [draw.randrange(num) for _ in range(num_rows)]
            columns[f"c{i}_{name}"] = values.take(pa.array(mixed))
    return pa.table(columns)


def contents(table_url: str) -> list[str]:
    """All rows of a table in the order of their numbers, as texts in which NaN is itself."""
    return list(map(str, featstore.open_table(table_url).to_arrow().sort_by("row").to_pylist()))


@pytest.mark.slow
def test_every_operator_gives_the_same_content_on_any_engine_however_rows_are_partitioned(
    spark: Any, tmp_path: Path
) -> None:
    spec = load_spec(spec_of_all_operators())
    rows = mixed_rows(160)
    put_parquet(tmp_path / "raw" / "a.parquet", rows.slice(0, 101), row_group_size=37)
    pq.write_table(rows.slice(101), tmp_path / "raw" / "b.parquet", row_group_size=20)
    raw = str(tmp_path / "raw")
    featstore.extract(spec, raw, tmp_path / "local")
    expected = contents(str(tmp_path / "local"))
    featstore.extract(spec, raw, tmp_path / "spark", spark=spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "37")
    try:
        featstore.extract(
            spec, None, tmp_path / "frame", dataframe=spark.read.parquet(raw).repartition(3)
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    extractor = Extractor(spec)
    assert len(expected) == 160
    assert contents(str(tmp_path / "spark")) == expected
    assert contents(str(tmp_path / "frame")) == expected
    few = rows.slice(100, 30).combine_chunks()
    singles = pa.Table.from_batches([extractor(batch) for batch in few.to_batches(max_chunksize=1)])
    assert str(singles.to_pylist()) == str(Extractor(spec)(few.to_batches()[0]).to_pylist())


def _spark_type(arrow_type: pa.DataType) -> str:
    if pa.types.is_list(arrow_type):
        return f"array<{_spark_type(arrow_type.value_type)}>"
    return {pa.int64(): "bigint", pa.float32(): "float"}[arrow_type]
