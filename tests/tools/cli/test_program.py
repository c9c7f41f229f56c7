"""The command line: frozen options, one clear line and exit code 2 on bad input."""

import ast
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import featstore
from featstore.base.processes import BAD_INPUT, MAY_PASS, REFUSED
from featstore.tools import cli
from featstore.tools.cli.program import OLDER
from tests.formats.example_files import tfrecord
from tests.parquet_files import put_parquet
from tests.programs import CLI, LIMIT_S, Program, run_python

ROOT = Path(__file__).parents[3]
SPEC = """
spec: 1
inputs: {user: string, price: double, clicked: long}
labels: {click: clicked}
retired: [202]
slots:
  - {slot: 101, name: user, op: hash, of: user}
  - {slot: 102, name: price, op: log1p, of: price}
"""


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that is called `featstore` belongs to another project."""
    versions = {"featstore-pipeline": "7.8.9"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    found = CliRunner().invoke(cli.cli, ["--version"])
    assert found.output == "featstore, version 7.8.9\n"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_parquet(
        tmp_path / "raw.parquet",
        {"user": ["a", None, "c"], "price": [1.0, 2.0, None], "clicked": [0, 1, 0]},
    )


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python(CLI, *arguments, cwd=ROOT, status=None)


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str]:
    """The exit code and the last line of standard error of a command, run without a new
    interpreter.
    """
    monkeypatch.setattr(sys, "argv", ["featstore", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0), (capsys.readouterr().err.strip().splitlines() or [""])[-1]


def test_extract_inspect_profile_and_head_work_in_a_row(
    raw: Path, spec: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    runner = CliRunner()
    extract = [
        "extract",
        "--spec",
        str(spec),
        "--input",
        str(raw),
        "--table",
        str(table),
        "--partition",
        "dt=2026-11-01",
    ]
    first = runner.invoke(cli.cli, extract)
    assert first.exit_code == 0, first.output
    again = runner.invoke(cli.cli, extract)
    assert "nothing" in again.output
    inspected = runner.invoke(cli.cli, ["table", "inspect", str(table)])
    assert "dt=2026-11-01" in inspected.output
    profiled = runner.invoke(cli.cli, ["table", "profile", str(table), "--slots", "price"])
    assert "66.7%" in profiled.output
    head = runner.invoke(cli.cli, ["table", "show", str(table), "--rows", "1"])
    assert json.loads(head.output)["click"] == 0
    assert featstore.open_table(str(table)).version == 0


def test_malformed_values_are_reported_with_file_and_row_or_stop_the_run(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pq.write_table(pq.read_table(raw).set_column(2, "clicked", pa.array([0.0, 0.5, 1.0])), raw)
    extract = [
        "extract",
        "--spec",
        str(spec),
        "--input",
        str(raw),
        "--table",
        str(tmp_path / "table"),
    ]
    spec.write_text(SPEC.replace("clicked: long", "clicked: {type: long, on_error: fail}"))
    code, said = in_process(monkeypatch, capsys, *extract)
    assert code == 2
    assert said.endswith(
        f"{raw}, row 1: column 'clicked': expected long, found 0.5 (not whole), and on_error says "
        f"fail"
    )
    spec.write_text(SPEC.replace("clicked: long", "clicked: {type: long, on_error: skip}"))
    done = CliRunner().invoke(cli.cli, extract)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-2:] == [
        "1 rows skipped",
        f"clicked: not whole: 1, such as 0.5 ({raw}, row 1)",
    ]


def test_a_refusal_by_checks_is_told_from_bad_input(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("--spec", spec, "--table", tmp_path / "table", "--input")
    spec.write_text(f"{SPEC}checks: [{{check: rows, at_least: 4}}]")
    code, said = in_process(monkeypatch, capsys, "extract", *where, raw)
    assert (code, "1 of 1 checks failed: rows: 3, expected at least 4" in said) == (3, True)
    code, said = in_process(monkeypatch, capsys, "extract", *where, tmp_path / "nothing")
    assert (code, "nothing" in said) == (2, True)


def test_a_failure_that_may_pass_has_a_code_of_its_own(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = str(tmp_path / "table")
    for name in ("a", "b"):
        featstore.extract(str(spec), str(raw), table, partition={"name": name})
    restore = deltalake.DeltaTable.restore

    def late(of: deltalake.DeltaTable, *arguments: Any, **options: Any) -> Any:
        deltalake.DeltaTable(table).delete("name = 'a'")
        return restore(of, *arguments, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "restore", late)
    back = ("table", "restore", "--version", "0", "--table")
    code, said = in_process(monkeypatch, capsys, *back, table)
    assert (code, "another writer committed meanwhile" in said) == (75, True)
    assert in_process(monkeypatch, capsys, *back, tmp_path / "none")[0] == 2


def test_every_exit_code_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "command_line.md").read_text()
    codes = re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)
    assert codes == ["0", "1", str(BAD_INPUT), str(REFUSED), str(MAY_PASS), "120", "130"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "hsh"}, r"slots\[0\]\.op: .*'hsh'.*did you mean 'hash'"),
        ({"op": "hour"}, r"slots\[0\]"),
        ({"slot": 102}, r"slots\[1\]\.slot: .*102"),
        ({"slot": 202}, r"slots\[0\]\.slot: .*202.*retired"),
        ({"of": "usr"}, r"slots\[0\]\.of.*'usr'.*did you mean 'user'"),
        ({"max_length": 3}, r"slots\[0\]\.max_length"),
    ],
)
def test_a_wrong_spec_is_one_line_with_the_path_in_the_document(
    change: dict[str, Any],
    message: str,
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = yaml.safe_load(SPEC)
    document["slots"][0] |= change
    spec.write_text(yaml.safe_dump(document))
    code, line = in_process(
        monkeypatch,
        capsys,
        "extract",
        "--spec",
        spec,
        "--input",
        raw,
        "--table",
        tmp_path / "table",
    )
    assert code == 2
    assert line.startswith("featstore: error: ")
    assert pytest.raises(AssertionError, match=message).matches(AssertionError(line)), line
    assert not (tmp_path / "table").exists()


def test_lint_prints_every_finding_on_a_line_of_its_own(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, capsys, "spec", "lint", spec, "--update-lock")[0] == 0
    assert spec.with_name("spec.lock.json").exists()
    document = yaml.safe_load(SPEC)
    document["slots"][0] |= {"of": "usr"}
    document["slots"][1] |= {"slot": 202}
    spec.write_text(yaml.safe_dump(document))
    done = run("spec", "lint", spec)
    assert done.returncode == 2
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [
        [str(spec), "slots[1].slot"],
        [str(spec), "slots[0].of"],
    ]


def test_check_exits_with_1_where_a_check_fails_and_an_extraction_with_3(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "table"
    options = {"--spec": spec, "--input": raw, "--table": table}
    extract = ["extract", *(str(part) for option in options.items() for part in option)]
    spec.write_text(SPEC + "checks: [{check: coverage, of: price, at_least: 0.9}]")
    code, said = in_process(monkeypatch, capsys, *extract)
    assert code == 3
    assert "1 of 1 checks failed: coverage of price: 0.67, expected at least 0.9. The" in said
    assert not list(table.rglob("*.parquet"))
    spec.write_text(SPEC + "checks: [{check: coverage, of: price, at_least: 0.6}]")
    done = CliRunner().invoke(cli.cli, extract)
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(cli.cli, ["table", "check", str(table)])
    assert (checked.exit_code, checked.output.splitlines()[-1]) == (0, f"{table}: 1 checks: 1 pass")
    spec.write_text(SPEC + "checks: [{check: rows, at_least: 4}]")
    failed = CliRunner().invoke(cli.cli, ["table", "check", str(table), "--spec", str(spec)])
    assert failed.exit_code == 1
    assert failed.output.splitlines()[2].split()[:3] == ["fail", "rows", "(none)"]


def test_show_and_diff_print_lines(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(SPEC.replace("name: price", "name: price_log"))
    shown = CliRunner().invoke(cli.cli, ["spec", "show", str(spec)])
    assert "log1p(price)" in shown.output
    compared = CliRunner().invoke(cli.cli, ["spec", "diff", str(spec), str(tmp_path / "new.yaml")])
    assert compared.output == "renamed  102 price_log (was price)\n"
    printed = CliRunner().invoke(cli.cli, ["spec", "show", "--format", "sql", str(spec), "user"])
    assert "xxhash64(101, xxhash64(" in printed.output


def test_replay_exits_with_1_where_a_value_differs(raw: Path, spec: Path, tmp_path: Path) -> None:
    featstore.extract(str(spec), str(raw), str(tmp_path / "table"))
    arguments = [
        "replay",
        "--spec",
        str(spec),
        "--raw",
        str(raw),
        "--table",
        str(tmp_path / "table"),
    ]
    equal = CliRunner().invoke(cli.cli, arguments)
    assert (equal.exit_code, "equal" in equal.output) == (0, True)
    spec.write_text(SPEC.replace("op: log1p", "op: identity"))
    different = CliRunner().invoke(cli.cli, arguments)
    assert different.exit_code == 1
    assert "price: 2 mismatch, 0 missing, 0 extra" in different.output


def test_days_are_printed_with_what_was_done_and_why(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw.rename(tmp_path / "2026-11-01.parquet")
    arguments = [
        "extract",
        "--spec",
        str(spec),
        "--input",
        f"{tmp_path}/{{dt}}.parquet",
        "--table",
        str(tmp_path / "table"),
    ]
    planned = CliRunner().invoke(
        cli.cli, [*arguments, "--days", "2026-11-01..2026-11-02", "--dry-run"]
    )
    assert planned.output.splitlines()[:2] == ["dt=2026-11-01: missing", "dt=2026-11-02: no input"]
    code, said = in_process(monkeypatch, capsys, *arguments, "--days", "2026-11-01..2026-11-02")
    assert (code, "no raw files for dt=2026-11-02" in said) == (2, True)
    done = CliRunner().invoke(
        cli.cli, [*arguments, "--days", "2026-11-01..2026-11-02", "--allow-missing"]
    )
    assert "dt=2026-11-01: missing: committed version 0" in done.output
    code, said = in_process(monkeypatch, capsys, *arguments, "--dry-run")
    assert (code, "go with days" in said) == (2, True)


def test_vacuum_removes_what_a_dead_job_left(raw: Path, spec: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    featstore.extract(str(spec), str(raw), str(table))
    orphan = table / "part-00000-0a0a0a0a-1b1b1b1b-0.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))
    planned = CliRunner().invoke(cli.cli, ["table", "vacuum", str(table), "--dry-run"])
    assert planned.output.startswith(
        f"orphan: {orphan.name}\n{table}: 1 files, 1 bytes would be removed"
    )
    assert CliRunner().invoke(cli.cli, ["table", "vacuum", str(table)]).exit_code == 0
    assert not orphan.exists()
    assert featstore.open_table(table).to_arrow().num_rows == 3


def test_a_missing_input_column_is_named(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(
        pa.table({"user": ["a"], "prise": [1.0], "clicked": [1]}), tmp_path / "raw.parquet"
    )
    arguments = (
        "extract",
        "--spec",
        spec,
        "--input",
        tmp_path / "raw.parquet",
        "--table",
        tmp_path / "table",
    )
    code, line = in_process(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "raw.parquet" in line
    assert "missing input column: expected 'price'; did you mean 'prise'" in line


def test_a_raw_file_that_is_not_parquet_is_named(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.parquet").write_text("user,price\n")
    arguments = (
        "extract",
        "--spec",
        spec,
        "--input",
        tmp_path / "raw.parquet",
        "--table",
        tmp_path / "table",
    )
    code, line = in_process(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "raw.parquet" in line
    assert "Parquet" in line


def test_a_table_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run("table", "inspect", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("featstore: error: ")
    assert "nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_option_that_does_not_exist_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = in_process(monkeypatch, capsys, "extract", "--spek", "x")
    assert code == 2
    assert "--spek" in line


def test_a_partition_key_given_twice_is_refused(
    raw: Path,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (
        "extract",
        "--spec",
        spec,
        "--input",
        raw,
        "--table",
        tmp_path / "table",
        "--partition",
        "dt=1",
        "--partition",
        "dt=2",
    )
    code, line = in_process(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "each key once, found dt=1, dt=2" in line


@pytest.mark.parametrize(
    ("place", "message"),
    [("foo://bucket/table", "no file system for foo://"), ("/dev/null/table", "Not a dir")],
)
def test_an_impossible_table_url_is_one_line(
    place: str,
    message: str,
    raw: Path,
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, line = in_process(
        monkeypatch, capsys, "extract", "--spec", spec, "--input", raw, "--table", place
    )
    assert code == 2
    assert message in line


def test_an_interrupted_extraction_leaves_the_table_at_its_version(
    raw: Path, spec: Path, tmp_path: Path
) -> None:
    table, big = tmp_path / "table", tmp_path / "big.parquet"
    featstore.extract(str(spec), str(raw), str(table))
    pq.write_table(pq.read_table(raw).take(pa.array([0, 1, 2] * 300_000)), big)
    spec.write_text(
        SPEC + "output: {rows_per_row_group: 10}\n"
    )  # Ninety thousand row groups take a while.
    given = ["extract", "--spec", spec, "--input", big, "--table", table]
    with Program(CLI, *given, cwd=ROOT) as process:
        while process.poll() is None and len(_data_files(table)) < 2:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    after = featstore.open_table(str(table))
    assert (after.version, after.num_rows) == (0, 3)
    assert len(_data_files(table)) == 1


def _data_files(table: Path) -> list[Path]:
    """Complete and partial data files."""
    return [path for path in table.iterdir() if path.is_file()]


@pytest.mark.slow
def test_slots_are_added_labels_rewritten_and_all_compacted(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"user": ["a", "b"], "clicked": [0, 1], "id": ["x", "y"]}),
        tmp_path / "raw.parquet",
    )
    slots = [
        {"slot": 1, "name": "user", "op": "hash", "of": "user"},
        {"slot": 2, "name": "was", "op": "hash", "of": "clicked"},
    ]
    document = {
        "spec": 1,
        "inputs": {"user": "string", "clicked": "long", "id": "string"},
        "labels": {"click": "clicked"},
        "keep": ["id"],
    }
    for name, chosen in (("one", slots[:1]), ("two", slots)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document | {"slots": chosen}))
    common: list[str | Path] = ["--input", tmp_path / "raw.parquet", "--table", tmp_path / "table"]
    assert run("extract", "--spec", tmp_path / "one.yaml", *common).returncode == 0
    added = run("extract", "--spec", tmp_path / "two.yaml", *common, "--group", "more")
    assert (added.returncode, added.stdout.startswith("committed version 1 of ")) == (0, True)
    anew = run("table", "relabel", "--spec", tmp_path / "two.yaml", *common, "--key", "id")
    assert (anew.returncode, anew.stdout.startswith("committed version 2 of ")) == (0, True)
    assert "slot group" in run("table", "inspect", tmp_path / "table").stdout
    folded = run("table", "compact", tmp_path / "table")
    assert "labels, more folded into 1 files, 2 rows" in folded.stdout
    wrong = run("table", "relabel", "--spec", tmp_path / "two.yaml", *common, "--key", "user")
    assert (
        wrong.returncode,
        "expected a column that the spec and the table keep" in wrong.stderr,
    ) == (2, True)


def _options(command: click.Command) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _options(inner) for name, inner in sorted(command.commands.items())}
    return {"/".join(parameter.opts): parameter.type.name for parameter in command.params}


def test_commands_and_options_are_frozen() -> None:
    frozen = json.loads((ROOT / "tests" / "golden" / "cli.json").read_text())
    older = frozen.pop("older names")
    assert _options(cli.cli) == frozen
    assert older.keys() == OLDER.keys()
    for name, options in older.items():
        found = frozen
        for word in OLDER[name].partition(" --")[0].split():
            found = found[word]
        assert options.items() <= found.items(), name


# A line with an older name, and the same with today's.
LINES = {
    "import csv --input semicolons.csv --output new --delimiter ; --names user,price --null - "
    "--encoding latin-1 --column price=string --dry-run": "import --format csv --delimiter ; "
    "--names user,price --null - --encoding latin-1 --column price=string --dry-run "
    "--input semicolons.csv --output new",
    "import json --input a.jsonl --output new --json --dry-run": "import --format json "
    "--input a.jsonl --output new --json --dry-run",
    "import libsvm --input a.svm --output new --dry-run": "import --format libsvm --input a.svm "
    "--output new --dry-run",
    "import pairs --input a.pairs --output new --delimiter \\t --dry-run": "import --format pairs "
    "--input a.pairs --output new --delimiter \\t --dry-run",
    "import tfrecord --input a.tfrecord --output new --dry-run": "import --format tfrecord "
    "--input a.tfrecord --output new --dry-run",
    "report table -o report.html --label click --compare table": "table profile table "
    "--output report.html --label click --compare table",
    "schema spec": "spec schema",
    "schema train": "train schema",
    "spark-job join-labels": "spark job join-labels",
    "spec graph spec.yaml": "spec show spec.yaml --format dot",
    "spec graph spec.yaml --format mermaid --slot 101": "spec show spec.yaml --format mermaid "
    "--slot 101",
    "spec sql spec.yaml user": "spec show --spec spec.yaml --slot user --format sql",
    "spec sql --spec spec.yaml --slot 102": "spec show spec.yaml 102 --format sql",
    "table head table": "table show table --rows 10",
    "table head --table table --rows 1 --ids --slots user": "table show table --rows 1 --ids "
    "--slots user",
    "table history table --last 1": "table inspect table --history --last 1",
    "table history table --json": "table inspect table --history --json",
    "table lint table": "table check table --layout",
    "table lint slow --batch-size 2 --json": "table check slow --layout --batch-size 2 --json",
}


@pytest.fixture(scope="module")
def inputs_of_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("lines")
    (here / "spec.yaml").write_text(SPEC)
    columns = {"user": ["a", None, "c"], "price": [1.0, 2.0, None], "clicked": [0, 1, 0]}
    raw = put_parquet(here / "raw.parquet", columns)
    for _ in range(2):
        featstore.extract(str(here / "spec.yaml"), str(raw), str(here / "table"))
        pq.write_table(pq.read_table(raw).slice(1), raw)
    slow = pa.table({"user": [1, 2] * 20_000})
    put_parquet(here / "slow" / "a.parquet", slow, use_dictionary=False)
    (here / "semicolons.csv").write_bytes("\xe9;1\n-;2\n".encode("latin-1"))
    (here / "a.jsonl").write_text('{"user": "a", "price": 1.5}\n')
    (here / "a.svm").write_text("1 3:0.5\n")
    (here / "a.pairs").write_text("label:1\tslot1:17\n")
    (here / "a.tfrecord").write_bytes(tfrecord([{"user": [b"a"], "price": [1.5]}]))
    return here


@pytest.mark.parametrize("older", LINES)
def test_a_line_with_an_older_name_does_the_same(
    older: str, inputs_of_lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs_of_lines)

    def done(line: str) -> tuple[int, str, bytes | None]:
        found = CliRunner().invoke(cli.cli, line.split(), catch_exceptions=False)
        report = Path("report.html")
        page = report.read_bytes() if report.exists() else None
        report.unlink(missing_ok=True)
        return found.exit_code, found.output, page

    code, said, page = done(older)
    assert (code, said, page) == done(LINES[older])
    assert code == int(" slow " in older), said
    assert said
    assert (page is None) == (not older.startswith("report"))


def test_every_older_name_has_a_line_and_is_in_no_help() -> None:
    assert all(any(f"{line} ".startswith(f"{name} ") for line in LINES) for name in OLDER)
    for group in (cli.cli, *cli.cli.commands.values()):
        path = [] if group is cli.cli else [str(group.name)]
        names = group.commands if isinstance(group, click.Group) else ()
        assert not OLDER.keys() & {" ".join([*path, name]) for name in names}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["extract", "--partition", "dt=" + "x" * 300], "the directory 'dt=xxx"),
        (
            ["table", "profile", "--where", "(" * 5_000 + "user = 1" + ")" * 5_000],
            "nested too deeply",
        ),
        (["table", "profile", "--where", "price = " + "9" * 6_000], "expected a number of 64 bits"),
        (["spec", "lint", "brackets.yaml"], "expected YAML, found: nested more than 50 deep"),
        (["spec", "lint", "nines.yaml"], "expected YAML, found: an integer of 6,000 digits"),
        (["stage", "warm", "brackets.yaml"], "expected YAML, found: nested more than 50 deep"),
        (["stage", "list", "s3://user:secret@bucket/x"], "s3://bucket/x: expected a directory"),
    ],
)
def test_hostile_text_is_refused_with_one_short_line(
    raw: Path,
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(raw.parent)
    Path("brackets.yaml").write_text("[" * 20_000)
    Path("nines.yaml").write_text("spec: " + "9" * 6_000)
    Path("t").mkdir()
    Path("t/raw.parquet").write_bytes(raw.read_bytes())
    if arguments[0] == "extract":
        arguments = [*arguments, "--spec", str(spec), "--input", str(raw), "--table", "new"]
    if arguments[0] == "table":
        arguments = [*arguments, "t"]
    monkeypatch.setattr(sys, "argv", ["featstore", *arguments])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert len(line) < 700


def test_help_loads_no_heavy_library_and_inspecting_a_table_no_pandas(tmp_path: Path) -> None:
    loaded = (
        "import sys; from featstore.tools.cli import cli; cli(sys.argv[1:], standalone_mode=False)"
    )
    names = {"pandas", "pyarrow", "numpy", "torch", "sqlglot", "fsspec", "obstore", "duckdb"}
    heavy = f"print(*sorted({names} & set(sys.modules)))"
    shown = run_python(f"{loaded}; {heavy}", "--help").stdout.splitlines()
    assert shown[-1] == ""
    put_parquet(tmp_path / "plain" / "a.parquet", {"row": [1, 2]})
    deltalake.write_deltalake(str(tmp_path / "delta"), pa.table({"row": [1, 2]}))
    for table in ("plain", "delta"):
        inspected = run_python(f"{loaded}; {heavy}", "table", "inspect", tmp_path / table).stdout
        assert inspected.splitlines()[-1].split() == ["numpy", "pyarrow"]


def test_every_function_that_a_command_imports_is_there() -> None:
    """They are named in texts, which the checker of types does not follow."""
    named = [
        (call.value.args[0].value, call.attr)
        for file in Path(cli.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Attribute)
        and isinstance(call.value, ast.Call)
        and ast.unparse(call.value.func) == "load"
        and isinstance(call.value.args[0], ast.Constant)
    ]
    assert len(named) > 20
    assert not [
        (module, name)
        for module, name in named
        if not callable(getattr(importlib.import_module(str(module)), name, None))
    ]
