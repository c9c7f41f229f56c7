import io

import pytest

from featstore.extraction.progress_bar import ProgressBar
from tests.terminal import Terminal


def test_the_bar_counts_files_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with ProgressBar("extract") as show:
        show(0, 12, 16_384)
        show(12, 12, 327_346)
    assert "12/12" in terminal.getvalue()
    assert "327,346 rows" in terminal.getvalue()


def test_a_log_file_is_not_filled_with_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    with ProgressBar() as show:
        show(1, 0, 10)
    assert log.getvalue() == ""
