"""The recorded runs of a benchmark, and the tables of its page."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from shared_parts import occasions
from shared_parts.machine import machine
from shared_parts.occasions import PAGES, Run, at, main, rendered, run_from, runs_of

RATIO, SECONDS = "columns > 100 > ratio", "sides > name:featstore > seconds"
PAGE = f"""\
# A benchmark

<!-- occasions
of the floor, 100 columns (required at least 0.7) = {RATIO}
epoch = {SECONDS}
-->

What follows.
"""
RUN = Run(
    date="2026-11-26",
    cpu="Some CPU",
    load=[0.5, 1.25],
    small=False,
    quiet=True,
    note="",
    figures={RATIO: 0.77512, SECONDS: 12},
)
RECORDED = [path.stem for path in (PAGES / "occasions").glob("*.jsonl")]


def _output(*arguments: str, load: tuple[float, float] = (0.5, 1.25)) -> list[str]:
    result = {
        "columns": {"100": {"ratio": 0.77512}},
        "sides": [{"name": "other", "seconds": 9.0}, {"name": "featstore", "seconds": 12}],
        "machine": {
            "date": "2026-11-26",
            "cpu": "Some CPU",
            "load_average": load,
            "arguments": arguments,
        },
    }
    return ["a line", "machine: ...", f"RESULT {json.dumps(result)}"]


def _rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|")]


def test_the_table_follows_the_comment_with_what_is_required_first() -> None:
    page = rendered(PAGE, [RUN])
    assert _rows(page) == [
        "| run | of the floor, 100 columns | epoch |",
        "| --- | --- | --- |",
        "| required | at least 0.7 |  |",
        "| 2026-11-26, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |",
    ]
    assert page.startswith(PAGE.partition("-->")[0])
    assert page.endswith("|\n\nWhat follows.\n")
    assert rendered(page, [RUN]) == page


def test_a_table_that_requires_nothing_has_no_such_row() -> None:
    page = PAGE.replace(" (required at least 0.7)", "")
    assert [row.split(",")[0] for row in _rows(rendered(page, [RUN]))[2:]] == ["| 2026-11-26"]


NEWER = replace(RUN, date="2026-11-27", figures={RATIO: 0.9, SECONDS: 3})


@pytest.mark.parametrize(
    ("newer", "shown"),
    [
        (NEWER, "2026-11-27, Some CPU, load 0.5 to 1.25 | 0.9 | 3 |"),
        (replace(NEWER, date=RUN.date, load=None), "2026-11-26, Some CPU | 0.9 | 3 |"),
        (replace(NEWER, quiet=False), "2026-11-26, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |"),
        (replace(NEWER, small=True), "2026-11-26, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |"),
        (
            replace(NEWER, figures={RATIO: 0.9}),
            "2026-11-26, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |",
        ),
    ],
)
def test_the_newest_quiet_run_of_full_size_is_shown(newer: Run, shown: str) -> None:
    assert _rows(rendered(PAGE, [RUN, newer]))[3:] == [f"| {shown}"]


def test_without_a_quiet_run_of_full_size_the_size_counts_more_than_the_load() -> None:
    busy, small = replace(RUN, quiet=False), replace(NEWER, small=True)
    assert "2026-11-26" in rendered(PAGE, [busy, small])
    assert "| 2026-11-27, Some CPU, load 0.5 to 1.25, --small |" in rendered(PAGE, [small])


def test_a_run_with_few_figures_is_shown_where_there_is_no_other() -> None:
    page = rendered(PAGE, [replace(NEWER, figures={RATIO: 0.9}), replace(RUN, figures={"x": 1})])
    assert _rows(page)[3:] == ["| 2026-11-27, Some CPU, load 0.5 to 1.25 | 0.9 |  |"]


def test_each_cpu_has_a_row_older_ones_first() -> None:
    page = rendered(PAGE, [NEWER, replace(RUN, cpu="Other CPU")])
    assert [row.split(",")[1].strip() for row in _rows(page)[3:]] == ["Other CPU", "Some CPU"]


def test_a_run_on_an_unknown_cpu_is_shown_only_where_none_of_full_size_is_known() -> None:
    unknown = replace(NEWER, cpu="CPU not recorded")
    assert "not recorded" not in rendered(PAGE, [RUN, unknown])
    assert "not recorded" in rendered(PAGE, [replace(RUN, small=True), unknown])


def test_each_table_of_a_page_has_its_own_runs() -> None:
    second = "\nMore.\n\n<!-- occasions\nx = other\n-->\n"
    page = rendered(PAGE + second, [RUN, replace(NEWER, figures={"other": [1, 2.5]})])
    assert _rows(page)[3:] == [
        "| 2026-11-26, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |",
        "| run | x |",
        "| --- | --- |",
        "| 2026-11-27, Some CPU, load 0.5 to 1.25 | 1, 2.5 |",
    ]


def test_a_star_stands_for_each_key_and_makes_its_row() -> None:
    page = "<!-- occasions\nseconds = peers > * > s\nrows = peers > * > read > rows\n-->\n"
    page += "\n<!-- occasions\nread = peers > * > read > rows\n-->\n"
    of_peers = {"one": {"s": 1.25, "read": {"rows": [0, 3]}}, "other": {"s": 2}}
    result = {"peers": of_peers, "machine": json.loads(_output()[-1][7:])["machine"]}
    run = run_from(page, [f"RESULT {json.dumps(result)}"])
    assert list(run.figures) == [
        "peers > one > s",
        "peers > other > s",
        "peers > one > read > rows",
    ], "each figure once"
    older = replace(run, date="2026-11-01", figures={"peers > gone > s": 5})
    assert _rows(rendered(page, [older, run])) == [
        "| 2026-11-26, Some CPU, load 0.5 to 1.25 | seconds | rows |",
        "| --- | --- | --- |",
        "| one | 1.25 | 0, 3 |",
        "| other | 2 |  |",
        "| 2026-11-26, Some CPU, load 0.5 to 1.25 | read |",
        "| --- | --- |",
        "| one | 0, 3 |",
    ]


def test_a_run_has_the_figures_that_its_page_names() -> None:
    assert run_from(PAGE, _output()) == RUN
    assert run_from(PAGE, _output("--small")).small


def test_a_figure_that_was_not_measured_is_left_out_and_its_run_with_it() -> None:
    lines = [line.replace("0.77512", "null") for line in _output()]
    run = run_from(PAGE, lines)
    assert run.figures == {SECONDS: 12}
    only_ratio = PAGE.replace(f"epoch = {SECONDS}\n", "")
    assert len(_rows(rendered(only_ratio, [run]))) == 2 + 1


def test_a_run_beside_other_work_is_not_quiet() -> None:
    assert not run_from(PAGE, _output(load=(0.5, 2.01))).quiet
    run = run_from(PAGE, _output(), "beside tests")
    assert (run.quiet, run.note) == (False, "beside tests")


def test_a_run_is_appended_and_its_page_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occasions, "PAGES", tmp_path)
    (tmp_path / "occasions").mkdir()
    (tmp_path / "some.md").write_text(PAGE)
    output = tmp_path / "output"
    output.write_text("\n".join(_output()))
    main(["some", str(output)])
    main(["some", str(output), "beside tests"])
    assert [run.quiet for run in runs_of("some")] == [True, False]
    page = (tmp_path / "some.md").read_text()
    assert page == rendered(PAGE, [RUN])
    (tmp_path / "some.md").write_text(PAGE)
    main([])
    assert (tmp_path / "some.md").read_text() == page


def test_an_unfinished_run_is_not_recorded() -> None:
    with pytest.raises(ValueError, match=r"expected a line 'RESULT \{json\}'"):
        run_from(PAGE, ["machine: x"])


def test_a_page_that_names_no_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a comment '<!-- occasions'"):
        run_from("# A page\n", _output())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("columns > 200 > ratio", "expected '200', found 100"),
        ("columns > 100 > ratio > x", "expected 'x', found MB"),
        ("sides > name:nobody > seconds", "expected 'name:nobody', found 0, 1"),
    ],
)
def test_a_figure_that_is_not_there_is_named(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_from(PAGE.replace(RATIO, path), _output())


def test_a_figure_in_a_list_is_found_by_its_number_and_numbers_have_a_median() -> None:
    found: Any = {"list": [{"x": 1}, {"x": 2}], "numbers": [5.0, 1.0, 3.0]}
    assert at(found, "list > 1 > x") == 2
    assert at(found, "numbers > median") == 3.0
    assert at({"peak_bytes": 40_768_631}, "peak_bytes > MB") == 41


def test_what_a_benchmark_says_of_its_machine_is_enough() -> None:
    of = asdict(machine())
    result = json.loads(_output()[-1].removeprefix("RESULT ")) | {"machine": of}
    run = run_from(PAGE, [f"RESULT {json.dumps(result)}"])
    assert (run.date, run.cpu) == (of["date"], of["cpu"])


@pytest.mark.parametrize("name", RECORDED)
def test_the_tables_of_a_page_are_what_its_data_file_renders(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert "<!-- occasions" in page
    assert rendered(page, runs_of(name)) == page


@pytest.mark.parametrize("name", RECORDED)
def test_runs_say_what_a_table_chooses_by(name: str) -> None:
    for run in runs_of(name):
        assert run.figures
        assert not (run.quiet and run.load and max(run.load) > 2.0)
