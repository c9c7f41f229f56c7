"""The contract of a coordinator's store, run by every implementation, and by torch's TCPStore as
the reference.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.server import serve
from tests.threads import run_together


class _TorchHandle:
    """torch's own store under our verbs: shows that `compare_set` and `add` mean what they mean
    there.
    """

    def __init__(self, server: Any) -> None:
        self._store = server

    def set(self, key: Any, value: Any) -> None:
        self._store.set(key, value)

    def add(self, key: Any, amount: Any) -> Any:
        return self._store.add(key, amount)

    def compare_set(self, key: Any, expected: Any, desired: Any) -> Any:
        return self._store.compare_set(key, expected, desired).decode()

    def check(self, keys: Any) -> Any:
        return self._store.check(keys)

    def get_or_none(self, key: Any) -> Any:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def get_many(self, keys: Any) -> Any:
        return [self.get_or_none(key) for key in keys]

    def close(self) -> None:
        pass


def _memory(tmp_path: Path, at_end: ExitStack) -> Any:
    address = bind(f"memory://{uuid.uuid4().hex}")
    return address.open


def _sqlite(tmp_path: Path, at_end: ExitStack) -> Any:
    return bind(f"sqlite://{tmp_path}/dispatch.db").open


def _tcp(tmp_path: Path, at_end: ExitStack) -> Any:
    return bind(at_end.enter_context(serve()).url).open


def _torch_handle(tmp_path: Path, at_end: ExitStack) -> Any:
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = bind(f"torch://127.0.0.1:{server.port}")

    def open_while_served(server: Any = server) -> Any:
        return address.open()

    return open_while_served


def _torch(tmp_path: Path, at_end: ExitStack) -> Any:
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: _TorchHandle(server)


_OPENERS = {
    "memory": _memory,
    "sqlite": _sqlite,
    "tcp": _tcp,
    "torch": _torch_handle,
    "torch itself": _torch,
}


@pytest.fixture(params=list(_OPENERS))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as at_end:
        yield _OPENERS[request.param](tmp_path, at_end)


@pytest.fixture
def store(opener: Any, closed_at_end: Callable[[Any], Any]) -> Any:
    return closed_at_end(opener())


def test_a_missing_key_is_none_and_set_writes_over(store: Any) -> None:
    assert store.get_or_none("k") is None
    store.set("k", "a")
    store.set("k", "b")
    assert store.get_or_none("k") == "b"


def test_values_are_any_text(store: Any) -> None:
    for value in ("", " ", "é\n☃", '{"a":1}', "x" * 100_000):
        store.set("k", value)
        assert store.get_or_none("k") == value


def test_add_begins_at_zero_and_returns_the_sum(store: Any) -> None:
    assert [store.add("n", 1), store.add("n", 5), store.add("n", 0), store.add("n", -2)] == [
        1,
        6,
        6,
        4,
    ]
    assert store.get_or_none("n") == "4"


def test_check_asks_for_all_keys(store: Any) -> None:
    store.set("a", "1")
    assert store.check(["a"])
    assert not store.check(["a", "b"])


def test_get_many_says_of_each_key_what_get_or_none_says(store: Any) -> None:
    for number in range(0, 600, 2):
        store.set(str(number), f"v{number}")
    keys = [str(number) for number in range(600)]
    assert store.get_many(keys) == [None if int(key) % 2 else f"v{key}" for key in keys]
    assert store.get_many(keys[::2]) == [f"v{key}" for key in keys[::2]]
    assert store.get_many([]) == []


def test_compare_set_writes_where_the_expectation_holds(store: Any) -> None:
    store.set("k", "old")
    assert store.compare_set("k", "old", "new") == "new"
    assert store.get_or_none("k") == "new"


def test_compare_set_returns_what_is_held_where_it_does_not(store: Any) -> None:
    store.set("k", "held")
    assert store.compare_set("k", "other", "new") == "held"
    assert store.compare_set("k", "", "new") == "held"
    assert store.get_or_none("k") == "held"


def test_an_empty_expectation_creates_a_missing_key(store: Any) -> None:
    assert store.compare_set("k", "", "new") == "new"
    assert store.get_or_none("k") == "new"


def test_another_expectation_on_a_missing_key_writes_nothing_and_is_returned(store: Any) -> None:
    assert store.compare_set("k", "expected", "new") == "expected"
    assert store.get_or_none("k") is None


def test_an_empty_value_counts_as_the_empty_expectation(store: Any) -> None:
    store.set("k", "")
    assert store.compare_set("k", "", "new") == "new"


def test_handles_of_one_store_see_each_other(opener: Any) -> None:
    one, other = opener(), opener()
    for number in range(200):  # A server that answers late is seen in a few of them.
        one.set(f"k{number}", "1")
        assert other.get_or_none(f"k{number}") == "1"
    one.set("k", "1")
    one.close()
    one.close()
    assert other.compare_set("k", "1", "2") == "2"
    other.close()


@pytest.mark.parametrize("shared", [True, False], ids=["one handle", "a handle each"])
def test_threads_lose_no_addition_and_win_each_key_once(opener: Any, shared: bool) -> None:
    first = opener()
    wins, totals = [], []

    def work(name: Any) -> None:
        store = first if shared else opener()
        for step in range(50):
            totals.append(store.add("n", 1))
            if store.compare_set(f"k{step}", "", name) == name:
                wins.append(step)
        if not shared:
            store.close()

    run_together(*(partial(work, f"worker-{i}") for i in range(4)))
    first.close()
    assert sorted(totals) == list(range(1, 201))
    assert sorted(wins) == list(range(50))


def test_a_closed_handle_says_so(opener: Any) -> None:
    store = opener()
    if isinstance(store, _TorchHandle):
        return
    store.close()
    uses: list[Callable[[], Any]] = [
        lambda: store.get_or_none("k"),
        lambda: store.add("k", 1),
        lambda: store.compare_set("k", "", "x"),
    ]
    for use in uses:
        with pytest.raises(DispatchError, match="closed"):
            use()
