import os
from pathlib import Path

import pytest

from featstore.table.running import Mark, marked, running
from tests.process import our_threads

TAG = "0a0a0a0a-1b1b1b1b"


def test_a_run_has_a_mark_until_it_ends(tmp_path: Path) -> None:
    with marked(str(tmp_path), TAG):
        there = tmp_path / "_runs" / TAG
        now_s = there.stat().st_mtime
        assert running(str(tmp_path), now_s=now_s, grace_s=3600) == {TAG}
    assert running(str(tmp_path), now_s=now_s, grace_s=3600) == set()
    assert not our_threads("-mark")


def test_a_kept_mark_expires(tmp_path: Path) -> None:
    with marked(str(tmp_path), TAG) as mark:
        mark.keep()
    there = tmp_path / "_runs" / TAG
    os.utime(there, (1000, 1000))
    assert running(str(tmp_path), now_s=4600, grace_s=3600) == {TAG}
    assert running(str(tmp_path), now_s=4601, grace_s=3600) == set()


def test_a_removed_mark_is_not_renewed(tmp_path: Path) -> None:
    there = tmp_path / "_runs" / TAG
    mark = Mark(url=str(there))
    mark.write()
    os.utime(there, (1000, 1000))
    mark.renew()
    assert there.stat().st_mtime > 1000
    there.unlink()
    with pytest.raises(FileNotFoundError):
        mark.renew()
    assert not there.exists()


def test_a_table_without_marks_has_no_runs(tmp_path: Path) -> None:
    assert running(str(tmp_path / "nowhere"), now_s=0, grace_s=1) == set()
