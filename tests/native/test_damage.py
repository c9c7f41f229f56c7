"""What says that bytes are wrong, and what says only that the process or the store fails."""

import errno
import os
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import (
    AccessError,
    BudgetError,
    DataFileError,
    FeatstoreError,
    InputError,
    OutOfMemoryError,
    StoreError,
)
from featstore.native.damage import damage_as
from featstore.native.format import FooterError


class Damaged(Exception):
    pass


def raised(error: BaseException, where: str | None = "t/a.parquet") -> BaseException:
    with (
        pytest.raises(BaseException) as found,  # noqa: PT011 - which one is the question
        damage_as(lambda found: Damaged(str(found)), where),
    ):
        raise error
    return found.value


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowInvalid("no page"),
        pa.ArrowNotImplementedError("a codec"),
        FooterError("no magic"),
        OSError("Couldn't deserialize thrift"),  # As Arrow raises it: without a number.
        FileNotFoundError(errno.ENOENT, "No such file"),
        OverflowError("a number"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a name"),
    ],
)
def test_wrong_bytes_and_a_file_that_is_gone_are_damage(error: Exception) -> None:
    for where in ("t/a.parquet", None):
        found = raised(error, where)
        assert isinstance(found, Damaged)
        assert found.__cause__ is error


FAULTS = [
    (errno.EMFILE, StoreError, "ulimit -n"),
    (errno.ENFILE, StoreError, "fs.file-max"),
    (errno.EACCES, AccessError, "grant this user access"),
    (errno.EPERM, AccessError, "grant this user access"),
    (errno.ENOMEM, StoreError, "more memory"),
    (errno.ESTALE, StoreError, "check the disk"),
    (errno.EAGAIN, StoreError, "check the disk"),
    (errno.ETIMEDOUT, StoreError, "check the disk"),
    (errno.ECONNRESET, StoreError, "check the disk"),
    (errno.EIO, StoreError, "check the disk"),
    (errno.EISDIR, StoreError, "check the disk"),
]


@pytest.mark.parametrize(("number", "kind", "advice"), FAULTS)
def test_a_fault_of_the_system_keeps_its_number_and_names_the_file(
    number: int, kind: type[StoreError], advice: str
) -> None:
    error = OSError(number, os.strerror(number))
    found = raised(error)
    assert type(found) is kind
    assert found.errno == number
    assert str(found).startswith(f"t/a.parquet: cannot be read: {os.strerror(number)}; ")
    assert advice in str(found)
    assert raised(error, None) is error


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError])
def test_a_broken_connection_without_a_number_is_none_of_the_file(kind: type[OSError]) -> None:
    found = raised(kind("the peer is gone"))
    assert isinstance(found, StoreError)
    assert "the peer is gone" in str(found)


@pytest.mark.parametrize("error", [MemoryError("of Python"), pa.ArrowMemoryError("malloc failed")])
def test_a_lack_of_memory_is_told_as_such(error: MemoryError) -> None:
    found = raised(error)
    assert isinstance(found, OutOfMemoryError)
    assert not isinstance(found, DataFileError)
    assert str(found).startswith(f"t/a.parquet: there is no memory to read it ({error}); ")
    assert raised(error, None) is error


@pytest.mark.parametrize(
    "error",
    [
        StoreError("503"),
        DataFileError("damaged"),
        BudgetError("too small"),
        InputError("a row"),
        OutOfMemoryError("no memory"),
    ],
)
def test_errors_of_featstore_pass_as_they_are(error: FeatstoreError) -> None:
    assert raised(error) is error


@pytest.mark.parametrize("error", [KeyError("ours"), TypeError("ours"), KeyboardInterrupt()])
def test_errors_of_our_own_code_pass_as_they_are(error: Any) -> None:
    assert raised(error) is error


def test_the_error_that_was_raised_may_pass() -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file")
    with pytest.raises(FileNotFoundError) as found, damage_as(lambda found: found, "a"):
        raise error
    assert found.value is error
    assert error.__cause__ is None
