"""`featstore spec lint --sample`: operators of users, tried on raw rows."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import featstore
from featstore.base.errors import InputError, OperatorError
from featstore.extraction.sample import lint_sample
from featstore.spec.lint import LintReport, lint
from featstore.tools import cli
from tests.parquet_files import put_parquet

SLOTS: list[dict[str, Any]] = [
    {"slot": 1, "name": "cheap", "op": "sampled_operators:is_cheap", "of": "price"},
    {"slot": 2, "name": "dear", "op": "hash", "of": "bin"},
    {"name": "bin", "op": "sampled_operators:rank", "of": "clipped", "store": False},
    {"name": "clipped", "op": "clip", "of": "price", "min": 0, "store": False},
]


@featstore.operator(inputs=[pa.float64()], result=pa.bool_())
def is_cheap(price: pa.Array) -> pa.Array:
    return pc.less(price, 10.0)


@featstore.operator(inputs=[pa.float64()], result=pa.int64())
def rank(price: pa.Array) -> pa.Array:
    return pc.rank(price, sort_keys="ascending").cast(pa.int64())


@featstore.operator(inputs=[pa.float64()], result=pa.int64())
def failing(price: pa.Array) -> pa.Array:
    raise ValueError("no rank today")


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sampled_operators", sys.modules[__name__])


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Any]:
    def write(slots: list[dict[str, Any]]) -> LintReport:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump({"spec": 1, "inputs": {"price": "double"}, "slots": slots}))
        return lint(str(path))

    return write


@pytest.fixture
def prices(tmp_path: Path) -> str:
    return str(
        put_parquet(
            tmp_path / "raw.parquet",
            {"price": [float(i % 37) for i in range(1500)], "other": ["x"] * 1500},
        )
    )


def test_an_inner_operator_that_looks_at_other_rows_is_a_finding(
    write_spec: Callable[..., Any], prices: str
) -> None:
    report = lint_sample(write_spec(SLOTS), prices)
    assert len(report.findings) == 1
    assert report.findings[0].startswith("bin (sampled_operators:rank): row ")
    assert report.findings[0].endswith(
        "expected the same result, since each row has to be computed on its own"
    )


def test_lint_says_what_it_tried(write_spec: Callable[..., Any], prices: str) -> None:
    url = write_spec(SLOTS[:1]).spec_url
    done = CliRunner().invoke(cli.cli, ["spec", "lint", url, "--sample", prices])
    assert (
        done.exit_code,
        f"operators of your own treat each of 1000 rows of {prices} alone" in done.output,
    ) == (0, True)
    write_spec(SLOTS)
    assert CliRunner().invoke(cli.cli, ["spec", "lint", url, "--sample", prices]).exit_code == 2


def test_lint_says_that_there_are_no_operators_to_try(
    write_spec: Callable[..., Any], prices: str
) -> None:
    slots = [{"slot": 1, "name": "cost", "op": "log1p", "of": "price"}]
    [*_, note] = lint_sample(write_spec(slots), prices).notes
    assert note == (
        f"1000 rows of {prices} fit the inputs; there are no operators of your own to try on them"
    )


def test_an_operator_that_fails_on_the_sample_is_named(
    write_spec: Callable[..., Any], prices: str
) -> None:
    slots = [SLOTS[0] | {"op": "sampled_operators:failing"}]
    with pytest.raises(
        OperatorError,
        match=r"raw\.parquet, row 0: cheap \(sampled_operators:failing\): no rank today$",
    ):
        lint_sample(write_spec(slots), prices)


def test_a_sample_must_have_rows_and_the_columns(
    write_spec: Callable[..., Any], tmp_path: Path
) -> None:
    report, path = write_spec(SLOTS), str(tmp_path / "raw.parquet")
    pq.write_table(pa.table({"price": pa.array([], pa.float64())}), path)
    with pytest.raises(InputError, match="expected raw rows to try operators on, found none"):
        lint_sample(report, path)
    pq.write_table(pa.table({"prize": [1.0]}), path)
    with pytest.raises(InputError, match="missing input column: expected 'price'"):
        lint_sample(report, path)
