"""Commands that write or read tables, and raw files."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import featstore
from tests.faults.failing_calls import reader
from tests.faults.failing_calls.scenario import Rows, Scenario, run_command
from tests.old_files import age
from tests.parquet_files import put_parquet

DAYS = ("2026-11-01", "2026-11-02", "2026-11-03")
SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {"row": "long", "user": "string", "price": "double", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["row"],
    "slots": [
        {"slot": 1, "name": "user", "op": "hash", "of": "user"},
        {"slot": 2, "name": "cost", "op": "log1p", "of": "price"},
    ],
    "output": {"rows_per_row_group": 10, "rows_per_file": 20},
}
WIDER = SPEC | {
    "slots": [*SPEC["slots"], {"slot": 3, "name": "pair", "op": "cross", "of": ["user", "row"]}]
}
DRIFT = {"check": "drift", "of": "cost", "last": 7, "at_most": 0.25}
LARGER = {"rows_per_row_group": 100, "rows_per_file": 200}
FEW = {"check": "label_rate", "of": "click", "at_most": 0.01}


def write_specs(root: Path) -> None:
    for name, document in {
        "spec": SPEC,
        "wider": WIDER,
        "checked": SPEC | {"checks": [DRIFT], "output": LARGER},
        "few": SPEC | {"checks": [FEW]},
    }.items():
        (root / f"{name}.yaml").write_text(json.dumps(document))


def put_rows(path: Path, first: int, num_rows: int = 20, **same: Any) -> None:
    rows = range(first, first + num_rows)
    columns = {
        "row": list(rows),
        "user": [f"u{row % 7}" for row in rows],
        "price": [float(row % 5) for row in rows],
        "clicked": [row % 2 for row in rows],
    }
    put_parquet(
        path,
        columns | {name: [value] * num_rows for name, value in same.items()},
        row_group_size=10,
    )


def put_day(root: Path, number: int, *, files: Sequence[int] = (0, 1), **same: Any) -> None:
    """Raw files of a day, of 20 rows each."""
    for file in files:
        path = root / "raw" / f"dt={DAYS[number]}" / f"{file}.parquet"
        put_rows(path, number * 1000 + file * 20, **same)


def extract(root: Path, source: str, *options: str, spec: str = "spec") -> None:
    run_command(
        *("extract", "--spec", root / f"{spec}.yaml", "--input", root / source),
        *("--table", root / "table", *options),
    )


def day(number: int) -> tuple[str, str]:
    return f"raw/dt={DAYS[number]}", f"--partition=dt={DAYS[number]}"


def _raw(root: Path) -> None:
    write_specs(root)
    for number in range(3):
        put_day(root, number)


def _first_day(root: Path) -> None:
    _raw(root)
    extract(root, *day(0))


def _replaced(root: Path) -> None:
    """A day whose raw rows have become others since."""
    _first_day(root)
    put_day(root, 0, files=(0, 1, 2), clicked=1)


def _stale_days(root: Path) -> None:
    """One day is up to date, one has other raw files than it had, one is new."""
    _replaced(root)
    extract(root, *day(0))
    extract(root, *day(1))
    put_day(root, 1, files=(1, 2))


def _single_files(root: Path) -> None:
    """A file a day: one that changed since it was extracted, one that is missing, a new one."""
    write_specs(root)
    put_rows(root / "raw" / f"{DAYS[0]}.parquet", 0)
    extract(root, f"raw/{DAYS[0]}.parquet", f"--partition=dt={DAYS[0]}")
    put_rows(root / "raw" / f"{DAYS[0]}.parquet", 0, 40)
    put_rows(root / "raw" / f"{DAYS[2]}.parquet", 2000)


def _drifted(root: Path) -> None:
    """Two days, and a third whose prices are far off, of as many rows as that takes to be sure."""
    write_specs(root)
    for number, same in ((0, {}), (1, {}), (2, {"price": 1e6})):
        put_rows(root / "raw" / f"dt={DAYS[number]}" / "0.parquet", 1000 * number, 400, **same)
    for number in range(2):
        extract(root, *day(number), spec="checked")


def _texts(root: Path) -> None:
    write_specs(root)
    for number in range(3):
        rows = range(number * 20, number * 20 + 20)
        lines = [f"{row},u{row % 7},{row % 5}.5,{row % 2}" for row in rows]
        directory = root / "raw" / f"dt={DAYS[number]}"
        directory.mkdir(parents=True)
        text = "\n".join(["row,user,price,clicked", *lines])
        (directory / "rows.csv").write_text(text + "\n")


def _grouped(root: Path) -> None:
    """Two days of two files, with a slot group."""
    _first_day(root)
    extract(root, *day(1))
    for number in range(2):
        extract(root, *day(number), "--group=more", spec="wider")


def _ripe(root: Path) -> None:
    _first_day(root)
    put_day(root, 0, clicked=1)


def _old(root: Path) -> None:
    """A table of replaced days, a group, leftovers of a dead run, and a run at work, most of it
    old.
    """
    _grouped(root)
    table = root / "table"
    for number, rows in ((0, 1), (1, 1), (0, 0)):
        put_day(root, number, clicked=rows)
        extract(root, *day(number))
    extract(root, *day(0), "--group=more", spec="wider")
    directory = table / f"dt={DAYS[0]}"
    (directory / "part-00000-aaaaaaaa-bbbbbbbb-0.parquet").write_bytes(b"an orphan")
    (directory / "part-00000-cccccccc-dddddddd-0.parquet").write_bytes(b"of a run at work")
    (table / "_runs").mkdir(exist_ok=True)
    (table / "_runs" / "aaaaaaaa-bbbbbbbb").write_text('{"format": 1}')
    DeltaTable(table).create_checkpoint()
    age(table, 10)
    (table / "_runs" / "cccccccc-dddddddd").write_text('{"format": 1}')
    logs = sorted(table.rglob("_delta_log/*.json"))
    for log in logs:
        number = int(log.stem)
        os.utime(log, (time.time() - max(30 - 5 * number, 2) * 86_400,) * 2)


def _read_old(root: Path) -> reader.Content:
    """The versions that must be readable, and all files."""
    content = reader.versions(root / "table", 4)
    return content | {"files": reader.files_below(root / "table")}


def _table(root: Path) -> reader.Content:
    return reader.newest(root / "table")


def _import_source(root: Path) -> None:
    for number in range(3):
        lines = [f"{number * 30 + row},u{row},{row}.5" for row in range(30)]
        path = root / "texts" / f"{number}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["row,user,price", *lines]) + "\n")


def _import(root: Path, _: Rows) -> None:
    source, target = root / "texts", root / "imported"
    run_command("import", "--format=csv", "--workers=1", "--input", source, "--output", target)


def _samples(root: Path) -> None:
    for number in range(3):
        lines = [json.dumps({"key": f"k{number}-{row}", "text": "t" * row}) for row in range(30)]
        path = root / "lines" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    featstore.SampleStore.create(root / "samples.sqlite", {"text": "text"}).close()


def _write_samples(root: Path, _: Rows) -> None:
    with featstore.SampleStore(root / "samples.sqlite") as store:
        store.import_json_lines(root / "lines", id_from="key", progress=False)


def _stored(root: Path) -> None:
    _samples(root)
    _write_samples(root, [])


def _read_samples(root: Path, rows: Rows) -> None:
    with featstore.SampleStore(root / "samples.sqlite") as store:
        for sample in store:
            rows.append(sample["text"])
        rows.extend(sample["text"] for sample in store.by_id(["k0-3", "k2-29"]))


def _extraction(
    name: str, prepare: Any, *arguments: str, spec: str = "spec", **more: Any
) -> Scenario:
    def act(root: Path, _: Rows) -> None:
        extract(root, *arguments, spec=spec)

    return Scenario(name=name, prepare=prepare, act=act, read=_table, **more)


def _on_table(name: str, prepare: Any, *arguments: str, **more: Any) -> Scenario:
    def act(root: Path, _: Rows) -> None:
        run_command("table", *arguments[:1], root / "table", *arguments[1:])

    return Scenario(name=name, prepare=prepare, act=act, **{"read": _table} | more)


def _relabel(root: Path, _: Rows) -> None:
    source, partition = day(0)
    run_command(
        *("table", "relabel", "--spec", root / "spec.yaml", "--input", root / source),
        *("--table", root / "table", "--key=row", partition),
    )


def _check(root: Path, _: Rows) -> None:
    run_command("table", "check", root / "table", "--spec", root / "few.yaml")


_DAYS = f"--days={DAYS[0]}..{DAYS[2]}"
COMMANDS = (
    _extraction("extract-first", _raw, *day(0)),
    _extraction("extract-replaced", _replaced, *day(0)),
    _extraction("extract-days", _stale_days, "raw/dt={dt}", _DAYS, is_rising=True),
    _extraction(
        *("extract-missing", _single_files, "raw/{dt}.parquet", _DAYS, "--allow-missing"),
        is_rising=True,
        may_be_absent=True,
    ),
    _extraction("extract-group", _first_day, *day(0), "--group=more", spec="wider"),
    _extraction("extract-directories", _raw, "raw", "--partition-from-path=dt"),
    _extraction("extract-glob", _raw, "raw/dt=*/*.parquet", "--partition-from-path=dt"),
    _extraction("extract-glob-replaced", _replaced, "raw/dt=*", "--partition-from-path=dt"),
    _extraction("extract-texts", _texts, "raw", "--partition-from-path=dt"),
    _extraction("extract-drifted", _drifted, *day(2), spec="checked", exit_code=3),
    _extraction("extract-refused", _replaced, *day(0), spec="few", exit_code=3),
    _on_table("delete", _grouped, "delete", "--where=row in (3, 17, 1021)"),
    _on_table("compact", _grouped, "compact"),
    _on_table("vacuum", _old, "vacuum", read=_read_old, removes=True),
    Scenario(name="relabel", prepare=_ripe, act=_relabel, read=_table),
    Scenario(
        name="import",
        prepare=_import_source,
        act=_import,
        read=lambda root: reader.parquet(root / "imported"),
    ),
    Scenario(
        name="samples-write",
        prepare=_samples,
        act=_write_samples,
        read=lambda root: reader.samples(root / "samples.sqlite"),
        is_rising=True,
    ),
    Scenario(
        name="samples-read",
        prepare=_stored,
        act=_read_samples,
        read=lambda root: reader.samples(root / "samples.sqlite"),
    ),
    _on_table("show", _grouped, "show", "--rows=200", prints=True),
    _on_table("inspect", _grouped, "inspect", prints=True),
    _on_table("profile", _grouped, "profile", "--json", prints=True),
    _on_table("profile-exact", _grouped, "profile", "--json", "--exact", prints=True),
    Scenario(name="check", prepare=_drifted, act=_check, read=_table, prints=True, exit_code=1),
)
