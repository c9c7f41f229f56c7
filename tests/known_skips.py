"""The skips that continuous integration allows (`--known-skips`). Any other one is a program or a
library that should be there, and fails the run.
"""

from collections.abc import Iterable
from typing import Any

import pytest

# How the reason of a skip begins, and why it may be so.
KNOWN = {
    "only in the campaign of make faults": "takes minutes, or many processes",
    "needs a CUDA device": "no GPU there",
    "pins memory, which needs an accelerator": "no GPU there",
    "there is a GPU": "what is told without one",
    "requests-kerberos is not installed": "it is compiled, against libkrb5-dev",
    "libFuzzer's own driver goes by the clock": "clang is there, and the driver of gcc is not used",
    "torchrec cannot be loaded": "the environment of frameworks has it, in which these tests run",
    "hosts are made by root": "it may run as another user",
    "no ETags are listed": "those stores have no ETags to compare",
    "a web server ": "lists nothing: the rest of the contract runs on it",
    "featstore only reads from this server": "the rest of the contract runs on it",
    "directories of days, ": "a case of the table that does not exist",
    "a StatefulDataLoader of several workers takes": "likewise",
    "no namespaces of its own": "user namespaces may be forbidden there",
    "one rank alone has no tail": "likewise",
    "a file that is cut at its row groups tells": "likewise",
}


def unknown_skips(reasons: Iterable[str]) -> list[str]:
    """The reasons that no known one begins."""
    return sorted({reason for reason in reasons if not reason.startswith(tuple(KNOWN))})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--known-skips",
        action="store_true",
        help="fail if a test is skipped for a reason that tests/known_skips.py does not know",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run with unknown skips. Processes of pytest-xdist report to the first one."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--known-skips"):
        return
    found = [
        report.longrepr[2].removeprefix("Skipped: ") for report in reporter.getreports("skipped")
    ]
    for reason in unknown_skips(found):
        reporter.line(f"\nskipped for a reason that tests/known_skips.py does not know: {reason}")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
