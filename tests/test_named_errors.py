import errno
import os

import pytest

from featstore.base.errors import (
    AccessError,
    DataFileError,
    DiskFullError,
    InputError,
    MissingValueError,
    StoreError,
)
from featstore.base.named_errors import NamedErrors

NAMED = NamedErrors("s3://me:secret@bucket/t")


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.EIO, StoreError, "check the disk, mount or store"),
        (errno.EACCES, AccessError, "grant this user access"),
        (errno.ENOSPC, DiskFullError, "make room there"),
        (errno.EMFILE, StoreError, "raise the limit of open files"),
    ],
)
def test_an_error_of_the_system_names_the_file_or_else_the_place_and_keeps_its_number(
    number: int, kind: type[StoreError], said: str
) -> None:
    words = os.strerror(number)
    with (
        pytest.raises(kind, match=rf"^table s3://bucket/t: .*: {words}; .*{said}") as raised,
        NAMED,
    ):
        raise OSError(number, words)
    assert (type(raised.value), raised.value.errno) == (kind, number)
    with (
        pytest.raises(kind, match=r"^/t/a: a file that is needed for table s3://bucket/t: "),
        NAMED,
    ):
        raise OSError(number, words, "/t/a")


def test_an_error_without_a_number_is_named_without_its_secrets() -> None:
    said = r"^table s3://bucket/t: the system failed: no https://h/x; "
    with pytest.raises(StoreError, match=said), NAMED:
        raise ConnectionError("no https://u:secret@h/x?key=1")


def test_an_error_of_a_data_file_names_the_table_once_and_what_to_do() -> None:
    error = DataFileError("a.parquet: cannot be read: no page")
    with pytest.raises(DataFileError) as raised, NAMED, NAMED:
        raise error from ValueError("no page")
    assert raised.value is error
    assert str(error) == (
        "a.parquet: cannot be read: no page; table s3://bucket/t: restore the file from a copy, or "
        "write it again, such as by extracting its partition anew"
    )


@pytest.mark.parametrize("kind", [DataFileError, MissingValueError])
def test_what_is_wrong_with_a_sound_file_says_itself_what_to_do(kind: type[DataFileError]) -> None:
    with pytest.raises(kind, match=r"^a\.parquet: no; upgrade it; table s3://bucket/t$"), NAMED:
        raise kind("a.parquet: no; upgrade it")


def test_the_words_of_arrow_and_of_sockets_name_what_failed() -> None:
    said = r"the system failed: Failed to open '/t/a\.parquet'; check the disk"
    with pytest.raises(StoreError, match=said), NAMED:
        raise OSError(errno.EIO, "Failed to open '/t/a.parquet'")


@pytest.mark.parametrize(
    "error", [InputError("x"), StoreError("y"), KeyboardInterrupt(), KeyError("z")]
)
def test_errors_of_featstore_and_others_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, NAMED:
        raise error
    assert raised.value is error
