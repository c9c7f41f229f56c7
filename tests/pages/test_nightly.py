"""The script for every night of docs/howto/daily_runs.md: with the real program, and each failure
with one that fails.
"""

import csv
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import featstore
from tests.pages.page import ROOT, blocks
from tests.programs import to_its_end

PAGE = "docs/howto/daily_runs.md"
DAYS = ("2026-11-01", "2026-11-02", "2026-11-03")
SPEC = """
spec: 1
inputs: {user_id: string, click: long}
labels: {click: click}
slots: [{slot: 101, name: user, op: hash, of: user_id}]
checks:
  - {check: rows, at_least: 5}
  - {check: label_rate, of: click, at_least: 0.4, severity: warn}
"""
# Answers with the codes of the file `codes`, one after the other, and then with 0.
FAILING = """#!/bin/bash
echo "$1" >> calls
code=$(head -n 1 codes)
sed -i 1d codes
[ "${code:-0}" = 0 ] || echo "featstore: error: of $1" >&2
exit ${code:-0}
"""
MAIL = '#!/bin/bash\necho "$@" >> mails\ncat >> mails\n'


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the script, a program `mail`, and a spec."""
    [script] = [
        block.text for block in blocks((ROOT / PAGE).read_text()) if block.title == "nightly.sh"
    ]
    programs = {"nightly.sh": script, "bin/mail": MAIL}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def failing(home: Path) -> Path:
    """The same, with a program `featstore` that fails as `codes` says."""
    program = home / "bin" / "featstore"
    program.write_text(FAILING)
    program.chmod(0o755)
    return home


def nightly(home: Path, *days: str) -> tuple[int, str]:
    """The exit code of the script, and what it prints."""
    path = (
        f"{home / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    variables = os.environ | {"PATH": path, "PAUSES": "0 0"}
    done = to_its_end(["./nightly.sh", *days], cwd=home, env=variables, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def mails(home: Path) -> str:
    file = home / "mails"
    return file.read_text() if file.exists() else ""


@pytest.mark.slow  # a dozen starts of the program
def test_a_night_makes_up_for_a_day_that_was_missed(home: Path) -> None:
    for day in DAYS:
        shown = [
            {"id": f"{day}-{i}", "user_id": f"u{i % 3}", "ts": f"{day}T{i:02}:10:00"}
            for i in range(10)
        ]
        share = 5 if day == DAYS[0] else 3
        clicks = [{"id": f"{day}-{i}", "ts": f"{day}T{i:02}:20:00"} for i in range(share)]
        write_csv(home / "logs" / "shown" / f"{day}.csv", shown)
        write_csv(home / "logs" / "clicks" / f"{day}.csv", clicks)
    code, said = nightly(home, *DAYS[:2])
    assert code == 0, said
    table = featstore.open_table(str(home / "ctr"))
    assert [partition["dt"] for partition in table.partitions] == list(DAYS[:2])
    rates = {
        row["partition"]: row["rate"] for row in table.label_profile("click").partitions.to_pylist()
    }
    assert rates == {f"dt={DAYS[0]}": 0.5, f"dt={DAYS[1]}": 0.3}
    first, *lines = mails(home).splitlines()
    assert first == "-s features: warnings oncall"
    assert lines[0] == "extract, exit code 0:"
    assert f"a check warns: label_rate of click in dt={DAYS[1]}: 0.3" in lines[1]
    assert len(lines) == 2


def test_what_may_pass_is_repeated_and_told(failing: Path) -> None:
    (failing / "codes").write_text("0\n75\n75\n")
    code, said = nightly(failing, DAYS[0], DAYS[0])
    assert code == 0, said
    calls = (failing / "calls").read_text().split()
    assert calls == [*["import"] * 6, "join-labels", "extract", *["table"] * 4]
    assert mails(failing).count("import, exit code 75:\nfeatstore: error: of import\n") == 2


@pytest.mark.parametrize(
    ("codes", "code", "num_calls"),
    [("75\n75\n75\n", 75, 3), ("2\n", 2, 1), ("0\n0\n0\n0\n0\n3\n", 3, 6), ("137\n", 137, 1)],
    ids=["lost", "input", "checks", "killed"],
)
def test_what_does_not_pass_ends_the_night_with_a_mail(
    failing: Path, codes: str, code: int, num_calls: int
) -> None:
    (failing / "codes").write_text(codes)
    assert nightly(failing, DAYS[0], DAYS[0])[0] == code
    calls = (failing / "calls").read_text().split()
    assert len(calls) == num_calls
    assert f"-s features: exit code {code} of {calls[-1]} oncall\n" in mails(failing)
    assert f"featstore: error: of {calls[-1]}\n" in mails(failing)


def test_a_quiet_night_sends_no_mail_and_removes_old_logs(failing: Path) -> None:
    (failing / "codes").write_text("")
    (failing / "nightly").mkdir()
    (old := failing / "nightly" / "old.log").touch()
    os.utime(old, (0, 0))
    assert nightly(failing) == (0, "")
    assert mails(failing) == ""
    assert sorted(file.name for file in (failing / "nightly").iterdir()) == ["lock", "said"]
    assert (failing / "calls").read_text().split().count("join-labels") == 7


def test_one_night_is_at_work_at_a_time_and_days_must_be_days(failing: Path) -> None:
    (failing / "nightly").mkdir()
    with (failing / "nightly" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert nightly(failing) == (0, "the last run is still at work\n")
    code, said = nightly(failing, "yesterdy")
    assert (code, "invalid date" in said) == (1, True)
    assert not (failing / "calls").exists()
