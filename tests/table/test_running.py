import os
import threading
from pathlib import Path

from featstore.table.running import MAX_UNRENEWED_S, Mark, marked, running

TAG = "0a0a0a0a-1b1b1b1b"


def test_a_run_has_a_mark_until_it_ends(tmp_path: Path) -> None:
    with marked(str(tmp_path), TAG) as mark:
        there = tmp_path / "_runs" / TAG
        now_s = there.stat().st_mtime
        assert running(str(tmp_path), now_s=now_s, grace_s=3600) == {TAG}
        assert mark.check()
    assert running(str(tmp_path), now_s=now_s, grace_s=3600) == set()
    assert not [thread for thread in threading.enumerate() if thread.name == "featstore-mark"]


def test_a_mark_that_is_kept_lapses_with_time(tmp_path: Path) -> None:
    with marked(str(tmp_path), TAG) as mark:
        mark.keep()
    there = tmp_path / "_runs" / TAG
    os.utime(there, (1000, 1000))
    assert running(str(tmp_path), now_s=4600, grace_s=3600) == {TAG}
    assert running(str(tmp_path), now_s=4601, grace_s=3600) == set()


def test_a_run_that_stood_still_for_long_knows_it_even_after_it_is_renewed(tmp_path: Path) -> None:
    now = [1000.0]
    mark = Mark(url=str(tmp_path / "_runs" / TAG), clock=lambda: now[0])
    mark.renew()
    now[0] += MAX_UNRENEWED_S
    mark.renew()
    assert mark.check()
    now[0] += MAX_UNRENEWED_S + 1
    mark.renew()
    assert not mark.check()
    now[0] += 1
    assert not mark.check()


def test_a_table_without_marks_has_no_runs(tmp_path: Path) -> None:
    assert running(str(tmp_path / "nowhere"), now_s=0, grace_s=1) == set()
