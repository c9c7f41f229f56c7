"""The page of public reports names tests that exist, and no report twice."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"\| ([\w.-]+/[\w.-]+#\d+) \| [^|]+ \| `tests/([\w/]+\.py)::(test_\w+)` \|")


def test_each_report_has_a_test() -> None:
    lines = (TESTS / "public_reports.md").read_text().splitlines()
    rows = [ROW.fullmatch(line) for line in lines[lines.index("|---|---|---|") + 1 :]]
    reports = [(row[1], row[2], row[3]) for row in rows if row]
    assert len({report for report, _, _ in reports}) == len(rows) > 40
    for report, file, function in reports:
        assert f"\ndef {function}(" in (TESTS / file).read_text(), report
