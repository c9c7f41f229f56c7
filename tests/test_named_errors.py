import errno
import os

import pytest

from featstore.errors import AccessError, DiskFullError, InputError, StoreError
from featstore.named_errors import NamedErrors

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


@pytest.mark.parametrize(
    "error", [InputError("x"), StoreError("y"), KeyboardInterrupt(), KeyError("z")]
)
def test_errors_of_featstore_and_others_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, NAMED:
        raise error
    assert raised.value is error
