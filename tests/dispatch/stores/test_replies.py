"""What a server's file holds: each numbered request is answered once."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from featstore.dispatch.stores.sqlite import ReplyingStore


def test_a_request_that_comes_again_is_answered_and_not_done_again(tmp_path: Path) -> None:
    with closing(ReplyingStore(tmp_path / "d.db", is_durable=True)) as store:
        assert store.answer("a", 1, "add", "n", 1) == 1
        assert store.answer("b", 1, "add", "n", 1) == 2
        assert store.answer("a", 1, "add", "n", 1) == 1
        assert store.answer("a", 2, "compare_set", "n", "2", "x") == "x"
        store.answer("b", 2, "set", "n", "y")
        assert store.answer("a", 2, "compare_set", "n", "2", "x") == "x"
        assert store.answer("a", 3, "get_many", ["n", "m"]) == ["y", None]
    with closing(ReplyingStore(tmp_path / "d.db", is_durable=True)) as store:
        assert store.answer("a", 2, "compare_set", "n", "2", "x") == "x"
        assert store.get_or_none("n") == "y"


def test_the_reply_of_a_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    with closing(ReplyingStore(tmp_path / "d.db", is_durable=False)) as store:
        store.answer("a", 1, "add", "n", 1)
        store.answer("b", 1, "add", "n", 1)
        store.answer("a", 1, "leave")
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        assert connection.execute("SELECT client FROM replies").fetchall() == [("b",)]


def test_a_verb_that_is_none_is_refused(tmp_path: Path) -> None:
    with (
        closing(ReplyingStore(tmp_path / "d.db", is_durable=False)) as store,
        pytest.raises(ValueError, match="no verb 'drop'"),
    ):
        store.answer("a", 1, "drop")
