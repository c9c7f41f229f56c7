import gc
import os
import pickle
import subprocess
import sys

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.stores.address import bind
from tests.programs import run_python

FORKED = """
import os, sys
from featstore.dispatch.stores.address import bind
address = bind("memory://")
store = address.open()
store.set("k", "1")
uses = [lambda: store.get_or_none("k"), address.open, lambda: bind("memory://").open()]
pid = os.fork()
if pid == 0:
    for use in uses:
        try:
            use()
            print("no error")
        except Exception as error:
            print(type(error).__name__, error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print(store.get_or_none("k"))
"""
PICKLED = "import sys, pickle; pickle.load(sys.stdin.buffer).open()"


def test_each_url_is_a_separate_store() -> None:
    one, other = bind("memory://one"), bind("memory://other")
    one.open().set("k", "1")
    assert bind("memory://one").open().get_or_none("k") == "1"
    assert other.open().get_or_none("k") is None


def test_values_live_as_long_as_an_address_or_a_handle() -> None:
    address = bind("memory://lifetime")
    address.open().set("k", "1")
    store = bind("memory://lifetime").open()
    del address
    gc.collect()
    assert store.get_or_none("k") == "1"
    del store
    gc.collect()
    assert bind("memory://lifetime").open().get_or_none("k") is None


def test_a_forked_process_gets_an_error_instead_of_a_copy() -> None:
    done = run_python(FORKED)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all(
        line.startswith("DispatchError")
        and "the epoch would be read twice; use dispatch store sqlite:///" in line
        for line in lines[:3]
    )
    assert lines[3] == "1"


def test_a_pickled_address_is_refused_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PICKLED],
        input=pickle.dumps(bind("memory://")),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"belongs to process {os.getpid()}".encode() in done.stderr


def test_an_unpickled_address_works_only_in_the_process_that_made_it() -> None:
    address = bind("memory://pickled")
    address.open().set("k", "1")
    copy = pickle.loads(pickle.dumps(address))
    assert copy.open().get_or_none("k") == "1"


def test_a_memory_store_is_refused_in_a_job_of_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(
        DispatchError, match=r"one of 8 processes .*; use dispatch store sqlite:///"
    ):
        bind("memory://")
