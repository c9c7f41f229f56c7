"""`checks` in a spec: what is parsed, and what is refused, with its line."""

import re
from typing import Any

import pytest

from featstore.base.errors import SpecError
from featstore.spec.check import columns_of
from featstore.spec.graph import build_graph
from featstore.spec.lint import find_errors, lint
from featstore.spec.model import DataCheck
from featstore.spec.parse import load_spec, parse_checks, parse_spec
from tests.checked_specs import document

TEXT = """
spec: 1
inputs: {user: string, price: double, clicked: long}
labels: {click: clicked}
slots:
  - {slot: 101, name: user, op: hash, of: user}
  - {slot: 102, name: price, op: log1p, of: price}
checks:
  - {check: rows, at_least: 10}
  - check: coverage
    of: ["*"]
    at_least: 0.9
"""


def check_of(**entry: Any) -> DataCheck:
    (check,) = parse_checks([entry])
    return check


def test_checks_are_parsed_and_do_not_change_the_hash_of_the_spec() -> None:
    spec = parse_spec(TEXT)
    assert spec.checks == (
        DataCheck(check="rows", at_least=10),
        DataCheck(check="coverage", of=("*",), at_least=0.9),
    )
    assert [check.where for check in spec.checks] == ["line 9: checks[0]", "line 10: checks[1]"]
    assert spec.hash == parse_spec(TEXT.partition("checks:")[0]).hash
    build_graph(spec)


@pytest.mark.parametrize(
    "entry",
    [
        {"check": "rows", "at_least": 10, "at_most": 10},
        {"check": "rows", "against": "replaced", "at_least": 0.9, "at_most": 1.5},
        {"check": "coverage", "of": ["user", "p*"], "at_least": 0.5},
        {"check": "label_rate", "of": ["click"], "at_least": -1.5, "severity": "warn"},
        {"check": "distinct", "of": ["user"], "at_most": 10**12},
        {"check": "drift", "of": ["*"], "last": 7, "at_most": 0.25},
        {"check": "drift", "of": ["*"], "but": ["user"], "last": 7, "at_most": 0.25},
    ],
)
def test_an_entry_is_written_as_it_was_parsed(entry: dict[str, Any]) -> None:
    assert check_of(**entry).as_entry() == entry


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"check": "row", "at_least": 1}, r"check: expected one of rows, .*, found 'row'; did you"),
        ({"at_least": 1}, r"checks\[0\].check: expected one of rows, coverage, .*, found None$"),
        ({"check": "rows"}, r"^checks\[0\]: expected a bound \(at_least or at_most\), found none$"),
        ({"check": "rows", "of": "user", "at_least": 1}, r"^checks\[0\].of: expected one of check"),
        (
            {"check": "rows", "at_least": 1.5},
            r"at_least: expected an integer of at least 0, .* 1.5",
        ),
        ({"check": "rows", "at_least": True}, r"at_least: expected an integer .*, found True$"),
        ({"check": "coverage", "at_least": 1}, r"^checks\[0\].of: expected a name or a list"),
        (
            {"check": "coverage", "of": "user", "at_least": 95},
            r"expected a share, 0 to 1, found 95$",
        ),
        (
            {"check": "coverage", "of": "user", "at_most": -0.1},
            r"at_most: expected a share, 0 to 1",
        ),
        (
            {"check": "label_rate", "of": "click", "at_least": float("nan")},
            r"at_least: expected a number, found nan$",
        ),
        (
            {"check": "label_rate", "of": "click", "at_least": 0.3, "at_most": 0.2},
            r"^checks\[0\].at_most: expected at least at_least \(0.3\), since no data could pass, "
            r"found 0.2$",
        ),
        (
            {"check": "distinct", "of": "user", "at_most": -1},
            r"an integer of at least 0, found -1$",
        ),
        (
            {"check": "distinct", "of": "user", "at_least": 10**400, "at_most": 1},
            r"at_least: expected an integer of at least 0, found an integer of about 400 digits$",
        ),
        (
            {"check": "label_rate", "of": "click", "at_least": 10**400, "at_most": 1},
            r"at_least: expected a number, found an integer of about 400 digits$",
        ),
        (
            {"check": "drift", "of": "user", "at_most": 1},
            r"last: expected a number of days, at lea",
        ),
        (
            {"check": "drift", "of": "user", "at_most": 1, "last": 0},
            r"last: expected a number of days, at least 1, found 0$",
        ),
        (
            {"check": "drift", "of": "user", "at_most": -1, "last": 1},
            r"at_most: expected a number of at least 0, found -1$",
        ),
        ({"check": "drift", "of": "user", "last": 1, "at_least": 1}, r"at_least: expected one of "),
        (
            {"check": "rows", "at_least": 1, "severity": "warning"},
            r"severity: expected fail or warn, found 'warning'; did you mean 'warn'",
        ),
    ],
)
def test_an_entry_that_cannot_be_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_of(**entry)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"check": "coverage", "of": "usr", "at_least": 1},
            "of: expected a slot, or a glob that matches some, found 'usr'; did you mean 'user'?",
        ),
        (
            {"check": "drift", "of": ["user", "x*"], "last": 1, "at_most": 1},
            "of: expected a slot, or a glob that matches some, found 'x*'",
        ),
        (
            {"check": "coverage", "of": "*", "but": "usr", "at_least": 1},
            "but: expected a slot, or a glob that matches some, found 'usr'; did you mean 'user'?",
        ),
        (
            {"check": "coverage", "of": "user", "but": "u*", "at_least": 1},
            "but: expected some slots of `of` to be left, found ['u*']",
        ),
        (
            {"check": "coverage", "of": "click", "at_least": 1},
            "of: expected a slot, or a glob that matches some, found 'click', which is a label: its "
            "rate is checked by `label_rate`",
        ),
        (
            {"check": "label_rate", "of": "clik", "at_least": 1},
            "of: expected a label, one of click, found 'clik'; did you mean 'click'?",
        ),
        (
            {"check": "label_rate", "of": "price", "at_least": 1},
            "of: expected a label, one of click, found 'price', which is a slot without a label",
        ),
    ],
)
def test_a_check_of_what_the_spec_does_not_store_is_refused(
    entry: dict[str, Any], message: str
) -> None:
    spec = load_spec(document(entry))
    with pytest.raises(SpecError, match=re.escape(f"checks[0].{message}")):
        build_graph(spec)
    (found,) = find_errors(spec)
    assert message in str(found)


def test_slots_are_left_out_by_name_and_glob() -> None:
    names = ["user", "dow", "hour", "hour_x_dow"]
    check = check_of(check="drift", of="*", but=["dow", "hour*"], last=1, at_most=1)
    assert columns_of(check, names, []) == ("user",)


def test_a_spec_without_labels_says_so() -> None:
    rate = {"check": "label_rate", "of": "click", "at_least": 0.1}
    with pytest.raises(SpecError, match="expected a label, but there are no `labels`, found 'cli"):
        build_graph(load_spec(document(rate, labels={})))


def test_checks_need_statistics() -> None:
    rows = {"check": "rows", "at_least": 1}
    with pytest.raises(SpecError, match=r"output.statistics: expected true, since `checks` are ru"):
        load_spec(document(rows, output={"statistics": False}))


def test_lint_names_the_line_of_every_wrong_check(tmp_path: Any) -> None:
    path = tmp_path / "spec.yaml"
    wrong = "  - {check: rows, at_least: -1}\n  - {check: distinct, of: user}\n"
    path.write_text(TEXT + wrong)
    assert lint(str(path)).findings == (
        "line 13: checks[2].at_least: expected an integer of at least 0, found -1",
        "line 14: checks[3]: expected a bound (at_least or at_most), found none",
    )
    path.write_text(TEXT.replace('"*"', "usr"))
    with pytest.raises(SpecError, match=r"spec.yaml: line 10: checks\[1\].of: expected a slot"):
        build_graph(load_spec(path))
