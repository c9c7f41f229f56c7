import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore.base.errors import OperatorError, SpecError
from featstore.extraction.units.extractor import Extractor
from featstore.ops.hashing import sign, value_hash
from featstore.spec.graph import build_graph
from featstore.spec.parse import load_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "compiled_operator"
INPUTS = {"x": "double", "n": "long", "tags": "list<string>"}


@featstore.operator(
    inputs=[pa.float64(), pa.int64()], result=pa.float64(), params={"scale": 2.0, "label": str}
)
def scaled(x: pa.Array, n: pa.Array, *, scale: float, label: str, counts: Counter[str]) -> pa.Array:
    counts[label] += n.null_count
    return pc.multiply(pc.multiply(x, n.cast(pa.float64())), scale)


@featstore.operator(inputs=[pa.list_(pa.string())], result=pa.list_(pa.string()))
def with_nulls(tags: pa.Array) -> Any:
    return pa.chunked_array([pa.array([["a", None, "b"]] * len(tags))])


@featstore.operator(inputs=[pa.float64()], result=pa.int64())
def too_few(x: pa.Array) -> pa.Array:
    return pa.array([1])


@featstore.operator(inputs=[pa.float64()], result=pa.int64())
def no_array(x: pa.Array) -> Any:
    return [1] * len(x)


@featstore.operator(inputs=[pa.float64()], result=pa.int64())
def narrow(x: pa.Array) -> pa.Array:
    return pc.floor(x).cast(pa.int8())


def undeclared(x: pa.Array) -> pa.Array:
    return x


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_operators", sys.modules[__name__])


def extractor(op: str, of: list[str], **params: Any) -> Extractor:
    node = {"slot": 7, "name": "f", "op": op, "of": of, **params}
    return Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": [node]}))


def test_a_users_function_is_an_operator_with_params_and_counts() -> None:
    built = extractor("my_operators:scaled", ["x", "n"], label="unknown n", scale=3)
    batch = pa.record_batch(
        {"x": [1.5, float("nan"), 1e308, 1.0], "n": pa.array([2, 1, 100, None])}
    )
    assert (
        str(built(batch.append_column("tags", pa.nulls(4))).column("f").to_pylist())
        == "[9.0, nan, nan, nan]"
    )
    assert built.counts == {"x: nan": 1, "f: unknown n": 1, "f: not finite": 1}


def test_lists_of_a_users_function_lose_their_null_elements() -> None:
    built = extractor("my_operators:with_nulls", ["tags"])
    expected = [sign(7, value_hash(pa.array([text])))[0].as_py() for text in "ab"]
    assert built.one({"x": None, "n": None, "tags": []})["f"] == expected
    assert built.counts == {"f: null elements": 1}


def test_a_narrower_result_is_read_in_the_declared_type() -> None:
    assert (
        extractor("my_operators:narrow", ["x"]).one({"x": 2.5})["f"]
        == sign(7, value_hash(pa.array([2])))[0].as_py()
    )


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            "too_few",
            r"^rows 0 to 1: f \(my_operators:too_few\): expected an array of 2 values of int64, "
            r"found 1 .*these rows together",
        ),
        (
            "no_array",
            r"^row 0: f \(my_operators:no_array\): expected an array of 1 values of int64, found "
            r"list$",
        ),
    ],
)
def test_a_result_that_is_not_as_declared_is_refused(op: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        extractor(f"my_operators:{op}", ["x"])(pa.record_batch({"x": [1.0, 2.0]}))


@pytest.mark.parametrize(
    ("op", "of", "params", "message"),
    [
        (
            "my operators:f",
            ["x"],
            {},
            r"^slots\[0\].op: expected package.module:function, found 'my operators:f'$",
        ),
        (
            "no_such_module:f",
            ["x"],
            {},
            r"^slots\[0\].op: expected a module that can be imported \(No module named 'no_such_mo",
        ),
        (
            "my_operators:f",
            ["x"],
            {},
            r"^slots\[0\].op: expected a function of my_operators with the decorator featstore.oper",
        ),
        (
            "my_operators:undeclared",
            ["x"],
            {},
            r"^slots\[0\].op: expected a function of my_operators with the decorator",
        ),
        (
            "my_operators:narrow",
            ["n"],
            {},
            r"^slots\[0\].of: expected double for my_operators:narrow, found 'n', a long$",
        ),
        (
            "my_operators:narrow",
            ["x", "n"],
            {},
            r"^slots\[0\].of: expected 1 name for my_operators:narrow, found",
        ),
        (
            "my_operators:scaled",
            ["x", "n"],
            {},
            r"^slots\[0\]: expected `label` for my_operators:scaled \(a value of type str\)",
        ),
        (
            "my_operators:scaled",
            ["x", "n"],
            {"label": 1},
            r"^slots\[0\].label: expected a value of type str, found 1$",
        ),
        (
            "my_operators:narrow",
            ["x"],
            {"n": 1},
            r"^slots\[0\].n: expected a param of my_operators:narrow \(it has none\)",
        ),
    ],
)
def test_a_users_operator_is_checked_as_the_built_in_ones(
    op: str, of: list[str], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        extractor(op, of, **params)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"inputs": [pa.float32()], "result": pa.int64()},
            "expected string, .* or lists of these, found float",
        ),
        (
            {"inputs": [pa.int64()], "result": pa.map_(pa.string(), pa.int64())},
            "or lists of these, found map",
        ),
        ({"inputs": [], "result": pa.int64()}, "expected one input or more, found none"),
        (
            {"inputs": [pa.int64()], "result": pa.int64(), "params": {"n": [1]}},
            "param 'n': expected a default or a type",
        ),
    ],
)
def test_a_signature_of_other_types_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        featstore.operator(**declared)


@pytest.fixture(scope="module")
def compiled_spec(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc, to compile the example of an operator in C")
    folder = tmp_path_factory.mktemp("compiled") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    flags = ["-std=c99", "-Wall", "-Werror", "-O2", "-shared", "-fPIC"]
    subprocess.run(
        [compiler, *flags, "-o", "libfingerprints.so", "fingerprints.c"], cwd=folder, check=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)
        yield load_spec(folder / "spec.yaml")
        sys.modules.pop("fingerprints", None)


longs = st.none() | st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(longs, longs), max_size=20), start=st.integers(0, 9))
def test_a_compiled_operator_agrees_with_plain_python(
    compiled_spec: Any, rows: list[Any], start: int
) -> None:
    types = pa.schema([("seen", pa.int64()), ("shown", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"seen": a, "shown": b} for a, b in rows], types).slice(
        start
    )
    bits = [
        None if a is None or b is None else ((a ^ b) % 2**64).bit_count() for a, b in rows[start:]
    ]
    expected = sign(1, value_hash(pa.array(bits, pa.int64())))
    assert Extractor(compiled_spec)(batch).column("differing_bits").equals(expected)


def test_a_compiled_operator_that_two_nodes_use_alike_runs_once(compiled_spec: Any) -> None:
    assert [step.op for step in build_graph(compiled_spec).steps].count(
        "fingerprints:differing_bits"
    ) == 3  # with hash and sign


@pytest.mark.parametrize(
    "source", ["def f(:", "raise RuntimeError('at import\\nx')", "1 / 0", "raise SystemExit(3)"]
)
def test_a_module_that_fails_at_import_is_told_with_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "failing_operators.py").write_text(source + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        SpecError,
        match=r"^slots\[0\]\.op: expected a module that can be imported \((\w+Error|SystemExit): ",
    ):
        extractor("failing_operators:f", ["x"])


@pytest.mark.parametrize(
    ("function", "params"),
    [
        (lambda x, y: x, {}),
        (lambda: None, {}),
        (lambda x: x, {"scale": 1.0}),
        (lambda x, *, scale: x, {}),
    ],
)
def test_a_function_that_does_not_take_what_is_declared_is_refused(
    function: Any, params: dict[str, Any]
) -> None:
    with pytest.raises(
        TypeError,
        match=r"expected a function of 1 arrays and the params declared.*, found <lambda>",
    ):
        featstore.operator(inputs=[pa.float64()], result=pa.float64(), params=params)(function)


@pytest.mark.parametrize("name", ["slot", "counts", "default"])
def test_a_param_may_not_have_the_name_of_an_option(name: str) -> None:
    with pytest.raises(
        TypeError,
        match=f"param '{name}': expected a name other than counts and the options of all nodes",
    ):
        featstore.operator(inputs=[pa.float64()], result=pa.float64(), params={name: 1})


def test_inputs_are_arrow_types() -> None:
    wrong: Any = "long"
    with pytest.raises(TypeError, match=r"expected string, .* found long"):
        featstore.operator(inputs=[wrong], result=pa.float64())


@featstore.operator(inputs=[pa.float64()], result=pa.float64())
def leaves(x: pa.Array) -> pa.Array:
    raise SystemExit(3)


def test_an_operator_that_would_end_the_process_fails_with_its_place() -> None:
    with pytest.raises(OperatorError, match=r"f \(my_operators:leaves\): SystemExit: 3"):
        extractor("my_operators:leaves", ["x"])(pa.record_batch({"x": [1.5]}))
