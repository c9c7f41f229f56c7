"""Counting in a store that may do a request twice."""

import uuid
from typing import Any

import pytest

from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.base import counted, first_free
from tests.dispatch.repeating_store import RepeatingAddress


@pytest.fixture
def store() -> Any:
    return RepeatingAddress(bind(f"memory://{uuid.uuid4().hex}")).open()


def test_a_count_goes_up_by_one(store: Any) -> None:
    assert [counted(store, "n") for _ in range(20)] == list(range(1, 21))
    assert counted(store, "n", at_least=30) == 30
    assert counted(store, "n", at_least=30) == 31


def test_each_user_of_a_list_has_a_place_of_its_own(store: Any) -> None:
    def key(number: int) -> str:
        return f"list/{number}"

    assert [first_free(store, key, f"user {number}") for number in range(20)] == list(range(20))
    assert first_free(store, key, "user 7") == 7
