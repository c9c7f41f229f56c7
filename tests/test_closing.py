"""What is cleaned up after a failure hides nothing of it."""

import gc
from typing import NoReturn

import pytest

from featstore.base.closing import cleaned_up_on_failure, noted_on_failure, when_gone


class Owner:
    pass


def test_the_end_is_called_once_when_its_owner_is_gone() -> None:
    ended: list[int] = []
    owner = Owner()
    when_gone(owner, lambda: ended.append(1))
    del owner
    gc.collect()
    assert ended == [1]


def test_only_a_block_that_fails_is_cleaned_up() -> None:
    cleaned: list[str] = []
    with cleaned_up_on_failure(lambda: cleaned.append("well")):
        pass
    with pytest.raises(KeyboardInterrupt), cleaned_up_on_failure(lambda: cleaned.append("failed")):
        raise KeyboardInterrupt
    assert cleaned == ["failed"]


def test_an_error_of_the_clean_up_is_a_note_of_the_first_error() -> None:
    def fail() -> NoReturn:
        raise OSError("the store is gone")

    with (
        pytest.raises(ValueError, match="the first") as raised,
        noted_on_failure("and then"),
        cleaned_up_on_failure(fail),
    ):
        raise ValueError("the first")
    assert raised.value.__notes__ == [
        "The clean-up after it failed too: OSError('the store is gone')",
        "and then",
    ]
