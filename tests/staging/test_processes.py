"""Real processes over one cache, which download from a real server that counts what it sends."""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from featstore.staging import StageItem, Stager, Staging
from tests.programs import Program, start_together

FILES = {f"/t/{i}.bin": bytes([i]) * 300_000 for i in range(6)}
READER = """
import hashlib, json, re, sys
from featstore.staging import StageItem, Stager, Staging
options, items = json.loads(sys.argv[1]), json.loads(sys.argv[2])
imported_bytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print("ready", flush=True)
sys.stdin.readline()
digests, most_bytes = {}, 0
with Stager(Staging(**options)) as stager:
    for staged in stager.stage(StageItem(key=url, url=url, size_bytes=size_bytes) for url, size_bytes in items):
        with staged:
            digests[staged.key] = hashlib.sha256(staged.path.read_bytes()).hexdigest()
            used_bytes = sum(int(path.name.split(".")[1]) for path in stager.cache.root.iterdir()
                             if path.suffix in (".staged", ".part"))
            most_bytes = max(most_bytes, used_bytes)
    print(json.dumps([digests, vars(stager.stats()), most_bytes, imported_bytes]), flush=True)
"""


@pytest.fixture
def site(unruly: Any) -> Any:
    unruly.files |= FILES
    return unruly


def _start(directory: Any, site: Any, paths: Any = tuple(FILES), **options: Any) -> Program:
    options = {"directory": str(directory), "mode": "whole", "budget_bytes": 10_000_000} | options
    items = [(f"{site.url}{path}", len(FILES[path])) for path in paths]
    return Program(READER, json.dumps(options), json.dumps(items))


def _results(readers: Any) -> Any:
    return [json.loads(reader.result()) for reader in readers]


def _digests(site: Any) -> Any:
    return {f"{site.url}{path}": hashlib.sha256(data).hexdigest() for path, data in FILES.items()}


def _names(directory: Any) -> Any:
    return {path.suffix for path in (directory / "featstore-staging-3").iterdir()}


def test_eight_processes_over_one_cold_cache_download_each_byte_once(
    site: Any, tmp_path: Path
) -> None:
    readers = [_start(tmp_path, site) for _ in range(8)]
    start_together(readers)
    results = _results(readers)
    assert all(digests == _digests(site) for digests, *_ in results)
    assert {path: site.sent_bytes(path) for path in FILES} == {
        path: len(data) for path, data in FILES.items()
    }
    assert sum(stats["num_staged"] for _, stats, *_ in results) == len(FILES)
    assert _names(tmp_path) == {".staged", ".held"}
    assert max(imported_bytes for *_, imported_bytes in results) < 60 * 1024 * 1024


def test_the_budget_holds_over_all_processes(site: Any, tmp_path: Path) -> None:
    readers = [_start(tmp_path, site, budget_bytes=900_000, ahead_files=1) for _ in range(3)]
    start_together(readers)
    results = _results(readers)
    assert all(digests == _digests(site) for digests, *_ in results)
    assert max(most_bytes for _, _, most_bytes, _ in results) <= 900_000
    assert sum(stats["num_evicted"] for _, stats, *_ in results) > 0


def test_all_processes_together_keep_the_connection_limit(site: Any, tmp_path: Path) -> None:
    counting, under_way, seen = threading.Lock(), set(), []

    def act(site: Any, request: pytest.FixtureRequest) -> None:
        with counting:
            under_way.add(request.path)
            seen.append(len(under_way))
        site.released.wait(0.05)
        with counting:
            under_way.remove(request.path)

    for path in FILES:
        site.fail(path, site.fault(after_bytes=100_000, act=act))
    readers = [
        _start(tmp_path, site, tuple(FILES)[i:] + tuple(FILES)[:i], max_connections=1)
        for i in range(3)
    ]
    start_together(readers)
    assert all(digests == _digests(site) for digests, *_ in _results(readers))
    assert seen == [1] * len(FILES)


def test_a_process_killed_during_a_download_is_replaced_by_one_that_waits_and_leaves_nothing(
    site: Any, tmp_path: Path
) -> None:
    begun, act = site.stall()
    site.fail("/t/0.bin", site.fault(after_bytes=100_000, act=act))
    first = _start(tmp_path, site, ["/t/0.bin"])
    start_together([first])
    assert begun.wait(60)
    assert _names(tmp_path) == {".part"}
    others = [_start(tmp_path, site, ["/t/0.bin"]) for _ in range(2)]
    start_together(others)
    first.die()
    results = _results(others)
    assert [digests for digests, *_ in results] == 2 * [
        {f"{site.url}/t/0.bin": hashlib.sha256(FILES["/t/0.bin"]).hexdigest()}
    ]
    assert len(site.gets("/t/0.bin")) == 2
    assert _names(tmp_path) == {".staged", ".held"}


def test_the_next_process_removes_what_a_killed_one_left(site: Any, tmp_path: Path) -> None:
    begun, act = site.stall()
    site.fail("/t/0.bin", site.fault(after_bytes=100_000, act=act))
    reader = _start(tmp_path, site, ["/t/0.bin"])
    start_together([reader])
    assert begun.wait(60)
    reader.die()
    assert _names(tmp_path) == {".part"}
    with Stager(Staging(directory=str(tmp_path), mode="whole")) as stager:
        assert list(stager.cache.root.iterdir()) == []
        item = StageItem(key=0, url=f"{site.url}/t/0.bin", size_bytes=300_000)
        staged = next(stager.stage([item]))
        assert staged.path is not None
        assert staged.path.read_bytes() == FILES["/t/0.bin"]


def test_the_cache_serves_the_next_run_without_a_request(site: Any, tmp_path: Path) -> None:
    for _ in range(2):
        reader = _start(tmp_path, site)
        start_together([reader])
        ((digests, stats, *_),) = _results([reader])
        assert digests == _digests(site)
    assert stats["num_hits"] == len(FILES)
    assert all(len(site.gets(path)) == 1 for path in FILES)
