"""The warning about missing kernels is shown once a day at most."""

import os
import time
from pathlib import Path

import pytest

from featstore.native.loading import load_kernels
from featstore.tools.cli.notices import KERNELS_MISSING, is_due, stamp_path
from tests.programs import run_python

WITHOUT_KERNELS = """
import warnings
from featstore.tools.cli.notices import stamp_path, warn_once_a_day
warn_once_a_day(stamp_path())
from featstore.native.loading import load_kernels
load_kernels("featstore.native.no_kernels")
warnings.warn("another one")
"""


def said(cache: Path) -> str:
    return run_python(WITHOUT_KERNELS, variables={"XDG_CACHE_HOME": str(cache)}).stderr


def test_it_is_shown_on_one_line_once_a_day_and_other_warnings_each_time(tmp_path: Path) -> None:
    first, again = said(tmp_path), said(tmp_path)
    assert first.startswith(f"featstore: warning: {KERNELS_MISSING}")
    assert [text.count("kernels") > 0 for text in (first, again)] == [True, False]
    assert first.count("another one") == again.count("another one") >= 1
    stamp = tmp_path / "featstore" / "kernels-warning"
    os.utime(stamp, (time.time() - 90_000,) * 2)
    assert KERNELS_MISSING in said(tmp_path)
    assert time.time() - stamp.stat().st_mtime < 60


def test_it_is_shown_each_time_where_the_stamp_cannot_be_written() -> None:
    for _ in range(2):
        assert KERNELS_MISSING in said(Path("/dev/null"))


def test_it_is_due_after_a_day_and_where_the_clock_was_ahead(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    assert is_due(stamp, 0)
    stamp.touch()
    os.utime(stamp, (1_000_000, 1_000_000))
    due = {now_s: is_due(stamp, now_s) for now_s in (999_999, 1_000_000, 1_086_399, 1_086_400)}
    assert list(due.values()) == [True, False, False, True]


def test_the_text_is_that_of_the_warning_and_the_stamp_lies_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(RuntimeWarning, match=f"^{KERNELS_MISSING}"):
        load_kernels("featstore.native.no_kernels")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert stamp_path() == Path("/home/ann/.cache/featstore/kernels-warning")
