"""What commands print: text that fits the terminal, or JSON."""

import datetime
import json
import math
from typing import Any

import pytest

from featstore.tools.cli.output import show, terminal_width, to_json


class Report:
    """A report of both forms, which says how wide its text may be."""

    def text(self, width: int | None = None) -> str:
        return f"width {width}"

    def as_dict(self) -> dict[str, Any]:
        return {"rate": math.nan, "days": ({"day": datetime.date(2026, 11, 1)},)}


def test_text_has_the_width_of_a_terminal_and_none_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Report())
    assert capsys.readouterr().out == "width None\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "77")
    assert terminal_width() == 77
    show(Report(), err=True)
    assert capsys.readouterr().err == "width 77\n"


def test_json_is_one_line_on_standard_output_that_every_parser_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Report(), as_json=True, err=True)
    assert capsys.readouterr() == ('{"rate": null, "days": [{"day": "2026-11-01"}]}\n', "")
    assert json.loads(to_json({1: [-math.inf, 2.5, "ä"]})) == {"1": [None, 2.5, "ä"]}


def test_other_results_are_printed_as_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    show("done")
    assert capsys.readouterr().out == "done\n"
