"""Lint: everything that is wrong, once, and against the lock."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from featstore.base.errors import SpecError
from featstore.spec.graph import build_graph
from featstore.spec.lint import LintReport, check_lock, lint
from featstore.spec.lock import load_lock
from featstore.spec.meaning import fit_hash
from featstore.spec.model import Fitted
from featstore.spec.parse import load_spec

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "price": "double", "ts": "timestamp", "clicked": "long"},
    "labels": {"click": "clicked"},
    "retired": [99],
    "slots": [
        {"slot": 1, "name": "u", "op": "hash", "of": "user"},
        {"slot": 2, "name": "price_log", "op": "log1p", "of": "price"},
        {"name": "hour", "op": "hour", "of": "ts", "store": False},
        {"slot": 3, "name": "u_hour", "op": "cross", "of": ["u", "hour"]},
    ],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights.yaml"


def lint_of(
    path: Path, *slots: dict[str, Any], update_lock: bool = False, **changes: Any
) -> LintReport:
    path.write_text(yaml.safe_dump(DOCUMENT | {"slots": [*(slots or DOCUMENT["slots"])]} | changes))
    return lint(str(path), update_lock=update_lock)


def with_slot(position: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        entry | changes if i == position else entry for i, entry in enumerate(DOCUMENT["slots"])
    ]


def test_a_sound_spec_has_no_findings(path: Path) -> None:
    report = lint_of(path)
    assert report.ok
    assert "flights.lock.json: no lock yet" in str(report)
    assert str(report).endswith("flights.yaml: nothing found")


def test_every_wrong_entry_of_the_document_is_found(path: Path) -> None:
    report = lint_of(
        path, *with_slot(1, slot=0), {"name": "x"}, inputs=DOCUMENT["inputs"] | {"user": "strng"}
    )
    assert [finding.partition(":")[0] for finding in report.findings] == [
        "inputs.user",
        "slots[1].slot",
        "slots[4]",
    ]


def test_everything_wrong_in_the_graph_is_found_and_what_reads_it_is_not_blamed(path: Path) -> None:
    report = lint_of(
        path,
        {"slot": 1, "name": "u", "op": "hash", "of": "usr"},
        {"slot": 2, "name": "reads_u", "op": "cross", "of": ["u", "price_bin"]},
        {"slot": 2, "name": "u_price", "op": "cross", "of": ["user", "price"]},
        {"slot": 99, "name": "hour", "op": "hour", "of": "user"},
        {"slot": 5, "name": "U", "op": "hash", "of": "user"},
        {"slot": 6, "name": "a", "op": "hash", "of": "b"},
        {"slot": 7, "name": "b", "op": "hash", "of": "a"},
        {"slot": 8, "name": "c", "op": "cross", "of": ["d", "user"]},
        {"slot": 9, "name": "d", "op": "cross", "of": ["c", "user"]},
        {"slot": 10, "name": "bad_param", "op": "log1p", "of": "price", "base": 2},
        {"slot": 11, "name": "reads_bad", "op": "clip", "of": "bad_param", "min": 0},
        labels={"click": "user"},
        keep=["nothing"],
    )
    paths = [finding.partition(": ")[0] for finding in report.findings]
    assert set(paths) == {
        "slots[4].name",
        "slots[2].slot",
        "slots[3].slot",
        "slots[0].of",
        "slots[1].of[1]",
        "slots[5].of",
        "slots[7].of",
        "slots[2].of[1]",
        "slots[3].of",
        "slots[9].base",
        "labels.click",
        "keep[0]",
    }
    assert len(set(paths)) == len(paths)


def test_two_cycles_are_two_findings(path: Path) -> None:
    loop = [
        {"slot": n, "name": name, "op": "hash", "of": of}
        for n, name, of in [(11, "a", "b"), (12, "b", "a"), (13, "c", "c2")]
    ]
    report = lint_of(
        path, *DOCUMENT["slots"], *loop, {"slot": 14, "name": "c2", "op": "hash", "of": "c"}
    )
    assert len(report.findings) == 2
    assert all("expected no cycle" in finding for finding in report.findings)


def test_unused_inner_nodes_and_inputs_are_found(path: Path) -> None:
    inner = [
        {"name": "bin", "op": "bucketize", "of": "price", "boundaries": [1], "store": False},
        {"name": "bins", "op": "cross", "of": ["bin", "u"], "store": False},
    ]
    report = lint_of(
        path, *DOCUMENT["slots"], *inner, inputs=DOCUMENT["inputs"] | {"seats": "long"}
    )
    assert [finding.partition(", found")[0] for finding in report.findings] == [
        "slots[4]: expected another node to read the inner node 'bin'",
        "slots[5]: expected another node to read the inner node 'bins'",
        "inputs.seats: expected a node to read the input",
    ]


def test_a_document_that_cannot_be_read_is_an_error(path: Path) -> None:
    with pytest.raises(SpecError, match=r"flights\.yaml: expected a spec, found no such file"):
        lint(str(path))


def test_a_slot_with_another_meaning_and_the_same_number_is_found(path: Path) -> None:
    assert lint_of(path, update_lock=True).ok
    assert lint_of(path).ok
    report = lint_of(path, *with_slot(0, of="user", default="none"))
    assert [finding.partition(" has another")[0] for finding in report.findings] == [
        "slots[0]: slot 1 ('u')",
        "slots[3]: slot 3 ('u_hour')",
    ]
    accepted = lint_of(path, *with_slot(0, of="user", default="none"), update_lock=True)
    assert accepted.ok
    assert "slot 1 ('u') has another meaning" in str(accepted)
    assert lint_of(path, *with_slot(0, of="user", default="none")).ok


def test_renamed_and_reordered_slots_pass_the_lock(path: Path) -> None:
    lint_of(path, update_lock=True)
    assert lint_of(path, *reversed(with_slot(1, name="price"))).ok


def test_new_and_gone_slots_are_found_until_the_lock_knows_them(path: Path) -> None:
    lint_of(path, update_lock=True)
    new = {"slot": 4, "name": "price_new", "op": "identity", "of": "price"}
    slots = [DOCUMENT["slots"][0], new, *DOCUMENT["slots"][2:]]
    report = lint_of(path, *slots)
    assert report.findings == (
        "slots[1]: slot 4 ('price_new') is not in the lock; --update-lock adds it",
        "slots: slot 2 ('price_log') of the lock is gone; --update-lock retires its number",
    )
    assert lint_of(path, *slots, update_lock=True).ok
    lock = load_lock(str(path.with_name("flights.lock.json")))
    assert lock is not None
    assert lock.retired == {2, 99}


def test_a_number_that_the_lock_knows_as_retired_is_never_used_again(path: Path) -> None:
    lint_of(path, update_lock=True)
    slots = [
        DOCUMENT["slots"][0],
        *DOCUMENT["slots"][2:],
        {"slot": 4, "name": "p", "op": "identity", "of": "price"},
    ]
    lint_of(path, *slots, update_lock=True)
    before = path.with_name("flights.lock.json").read_bytes()
    report = lint_of(path, update_lock=True)
    assert not report.ok
    assert (
        "slots[1].slot: expected a number that was never used before, found 2, which the lock file "
        "knows" in str(report)
    )
    assert path.with_name("flights.lock.json").read_bytes() == before


LISTS = {
    "spec": 1,
    "inputs": {"l": "list<string>", "k": "list<string>", "u": "string", "x": "double"},
}
SEQUENCES = {
    "one column": ({"s": {"of": ["l"]}}, "sequences.s.of: expected two or more list columns"),
    "an unknown column": (
        {"s": {"of": ["l", "zz"]}},
        "sequences.s.of[1]: expected an input column, found 'zz'",
    ),
    "a scalar column": (
        {"s": {"of": ["l", "u"]}},
        "sequences.s.of[1]: expected a list, found 'u', a string",
    ),
    "a column of two": (
        {"s": {"of": ["l", "k"]}, "t": {"of": ["k", "l"]}},
        "sequences.t.of[0]: expected a column that nothing else",
    ),
}
SHARES = {
    "no slot": ({"share_slot": 99}, "slots[0].share_slot: expected the number of another slot"),
    "itself": ({"share_slot": 1}, "slots[0].share_slot: expected the number of another slot"),
    "floats": (
        {"share_slot": 2},
        "slots[0].share_slot: expected two stored slots that hold signs, found 2, of which 'x'",
    ),
}


@pytest.mark.parametrize(("sequences", "expected"), SEQUENCES.values(), ids=SEQUENCES.keys())
def test_lint_finds_what_building_refuses_of_sequences(
    path: Path, sequences: dict[str, Any], expected: str
) -> None:
    slots = [
        {"slot": i, "name": f"s{i}", "op": "hash", "of": name} for i, name in enumerate("lku", 1)
    ]
    path.write_text(yaml.safe_dump(LISTS | {"sequences": sequences, "slots": slots}))
    check_found(path, expected)


@pytest.mark.parametrize(("share", "expected"), SHARES.values(), ids=SHARES.keys())
def test_lint_finds_what_building_refuses_of_shared_numbers(
    path: Path, share: dict[str, Any], expected: str
) -> None:
    slots = [
        {"slot": 1, "name": "a", "op": "hash", "of": "u"} | share,
        {"slot": 2, "name": "x", "op": "identity", "of": "x"},
    ]
    path.write_text(
        yaml.safe_dump({"spec": 1, "inputs": {"u": "string", "x": "double"}, "slots": slots})
    )
    check_found(path, expected)


def test_a_shared_slot_that_is_wrong_itself_is_the_only_one_blamed(path: Path) -> None:
    report = lint_of(
        path,
        {"slot": 1, "name": "a", "op": "hash", "of": "user", "share_slot": 2},
        {"slot": 2, "name": "b", "op": "hash", "of": "nobody"},
    )
    assert ["nobody" in finding for finding in report.findings] == [True]


def check_found(path: Path, expected: str) -> None:
    report = lint(str(path), update_lock=True)
    assert not path.with_suffix(".lock.json").exists()
    assert len(report.findings) >= 1
    assert expected in report.findings[0]
    with pytest.raises(SpecError, match=re.escape(expected)):
        build_graph(load_spec(str(path)))


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (f"op: power, of: x, exponent: {HUGE}", "slots[0].exponent: expected a finite number"),
        (
            f"op: bucketize, of: x, boundaries: [1, {HUGE}]",
            "slots[0].boundaries: expected strictly increasing finite",
        ),
        (f"op: clip, of: x, min: -{HUGE}", "slots[0].min: expected a finite number"),
        (
            "op: fill, of: x, value: &v [*v]",
            "expected YAML, found: alias *v within its own anchor (line 4",
        ),
        (
            "op: take, of: l, n: 1180591620717411303424",
            "slots[0].n: expected an integer, 1 to 2147483647",
        ),
        (
            "op: hash, of: l, max_len: 1099511627776",
            "slots[0].max_len: expected an integer, 1 to 2147483647",
        ),
        (
            "op: slice, of: l, start: 4611686018427387904",
            "slots[0].start: expected an integer of 32 bits",
        ),
    ],
)
def test_a_param_beyond_all_bounds_is_one_finding(path: Path, node: str, expected: str) -> None:
    path.write_text(
        f"spec: 1\ninputs: {{x: double, l: list<string>}}\nslots:\n  - {{slot: 1, name: a, "
        f"{node}}}\n"
    )
    try:
        found = lint(str(path)).findings[0]
    except SpecError as error:
        found = str(error)
    assert expected in found


def test_a_lock_that_is_no_utf8_is_refused(path: Path) -> None:
    path.with_suffix(".lock.json").write_bytes(b"\xff\xfe")
    with pytest.raises(
        SpecError,
        match=r"flights\.lock\.json: expected a lock file as `--update-lock` writes it, found "
        r"'utf-8'",
    ):
        lint_of(path)


def test_a_lock_that_is_nested_20000_deep_is_refused(path: Path) -> None:
    path.with_suffix(".lock.json").write_text("[" * 20_000)
    with pytest.raises(
        SpecError, match=r"flights\.lock\.json: expected a lock file .* found RecursionError"
    ):
        lint_of(path)


def test_a_spec_that_its_lock_contradicts_is_refused_and_what_to_do_is_said(path: Path) -> None:
    assert lint_of(path, update_lock=True).ok
    check_lock(load_spec(str(path)))
    lint_of(path, *with_slot(1, op="clip", min=0.0))
    with pytest.raises(
        SpecError,
        match=r"flights\.yaml: slots\[1\]: slot 2 .* has another meaning .*spec lint SPEC "
        r"--update-lock",
    ):
        check_lock(load_spec(str(path)))
    assert lint_of(
        path,
        *DOCUMENT["slots"][:1],
        {**DOCUMENT["slots"][1], "slot": 7},
        update_lock=True,
        labels={},
        inputs={"user": "string", "price": "double"},
    ).ok
    lint_of(path)
    with pytest.raises(
        SpecError, match=r"which the lock file knows as retired: give the slot a number of its own"
    ):
        check_lock(load_spec(str(path)))


def test_a_slot_that_the_lock_does_not_know_yet_and_a_spec_without_a_lock_are_fine(
    path: Path,
) -> None:
    assert lint_of(path, *with_slot(3, slot=4), update_lock=True).ok
    lint_of(path, *with_slot(3, slot=4), {"slot": 9, "name": "new", "op": "hash", "of": "user"})
    check_lock(load_spec(str(path)))
    path.with_suffix(".lock.json").unlink()
    check_lock(load_spec(str(path)))
    check_lock(load_spec(DOCUMENT))


def test_printed_findings_begin_with_the_specs_file(path: Path) -> None:
    report = lint_of(path, *with_slot(1, of="prise"))
    assert str(report).startswith(f"{path}: slots[1].of: expected")


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_constant_that_is_no_finite_number_is_refused(path: Path, value: str) -> None:
    node = f"slot: 1, name: a, op: compare, of: x, relation: <, value: {value}"
    path.write_text(f"spec: 1\ninputs: {{x: double}}\nslots:\n  - {{{node}}}\n")
    assert "slots[0].value: expected a constant: text, finite number" in lint(str(path)).findings[0]


def test_values_of_a_vocabulary_with_white_space_at_an_end_are_noted(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "v.txt").write_text("a\n b\nc \n")
    node = {"slot": 1, "name": "v", "op": "vocabulary", "of": "user", "file": "v.txt"}
    path.write_text(yaml.safe_dump({"spec": 1, "inputs": {"user": "string"}, "slots": [node]}))
    report = lint(str(path), update_lock=True)
    assert report.ok
    assert (
        "vocabularies: v.txt has 2 values with white space at an end, first ' b' in line 2"
        in report.notes[0]
    )


def test_a_vocabulary_with_a_byte_order_mark_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(b"\xef\xbb\xbfa\n")
    node = {"slot": 1, "name": "v", "op": "vocabulary", "of": "user", "file": "v.txt"}
    path.write_text(yaml.safe_dump({"spec": 1, "inputs": {"user": "string"}, "slots": [node]}))
    assert (
        "expected UTF-8 without a byte order mark, found one before line 1"
        in lint(str(path), update_lock=True).findings[0]
    )


def test_what_an_index_slot_may_not_be_is_said(path: Path) -> None:
    bins = {
        "slot": 1,
        "name": "a",
        "op": "bucketize",
        "of": "price",
        "boundaries": [1],
        "encode": "index",
    }
    assert "found `fill: 1`" in lint_of(path, bins | {"fill": 1}).findings[0]


def test_a_zone_that_depends_on_the_host_is_refused(path: Path) -> None:
    assert (
        "slots[2].tz: expected an IANA time zone"
        in lint_of(path, *with_slot(2, tz="localtime")).findings[0]
    )


def test_runs_of_more_words_than_any_text_has_are_none_and_take_no_time(path: Path) -> None:
    node = {"slot": 1, "name": "f", "op": "tokenize", "of": "user", "by": "word", "n": 2**31 - 1}
    spec = load_spec({"spec": 1, "inputs": {"user": "string"}, "slots": [node]})
    step = next(step for step in build_graph(spec).steps if step.op == "tokenize")
    found = step.function(pa.array(["a b c", None, ""]), **step.params, counts=Counter())
    assert found.to_pylist() == [[], None, []]


@pytest.mark.parametrize(("stddev", "found"), [(0.0, "0.0"), (-1.0, "-1.0")])
def test_a_fit_that_no_pass_makes_is_refused(path: Path, stddev: float, found: str) -> None:
    node = {"slot": 1, "name": "f", "op": "standardize", "of": "price"}
    spec = load_spec({"spec": 1, "inputs": {"price": "double"}, "slots": [node]})
    fit = Fitted(
        op="standardize",
        hash=fit_hash(spec, spec.nodes[0], {}),
        num_values=2,
        params={"mean": 0.0, "stddev": stddev},
    )
    with pytest.raises(
        SpecError,
        match=rf"lock: fitted\.f: expected what `featstore spec fit` writes, found .*{found}",
    ):
        build_graph(replace(spec, fitted={"f": fit}))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            "op: clip, of: x, min: 1e3",
            "slots[0].min: 1e3 is the text '1e3' in YAML 1.1, as it has been read so far, and 1000.0",
        ),
        ("op: hash, of: t, default: 2026-01-01", "write a timestamp: 2026-01-01 00:00:00"),
    ],
)
def test_what_yaml_reads_as_something_else_is_hinted(path: Path, node: str, expected: str) -> None:
    path.write_text(
        f"spec: 1\ninputs: {{x: double, t: timestamp}}\nslots:\n  - {{slot: 1, name: a, {node}}}\n"
    )
    assert expected in lint(str(path)).findings[0]


def test_errors_of_a_slot_are_told_beside_those_of_entries_that_cannot_be_read(path: Path) -> None:
    path.write_text(
        "spec: 1\ninputs: {x: duble, y: double, z: list<double>}\n"
        "sequences: {s: {of: [x, z]}}\nlabels: {l: x}\nslots:\n"
        "  - {slot: 1, name: a, op: log1p, of: x}\n"
        "  - {slot: two, name: b, op: hash, of: y}\n"
        "  - {slot: 3, name: c, op: log1p, of: b}\n"
        "  - {slot: 4, name: d, op: hahs, of: y}\n"
        "  - {slot: 4, name: e, op: clip, of: y, mim: 1}\n"
    )
    found = [text.removeprefix(f"{path}: ").split(":")[0] for text in lint(str(path)).findings]
    assert found == ["inputs.x", "slots[1].slot", "slots[4].slot", "slots[3].op", "slots[4].mim"]
