import errno

import pytest

from featstore.base.errors import (
    AccessError,
    CheckFailedError,
    CommitConflictError,
    DiskFullError,
    InputError,
    StoreError,
    TableNotFoundError,
    WorkerError,
)
from featstore.extraction.spark.yarn import is_final


def store_error(number: int) -> StoreError:
    error = StoreError("s3://b/x: ...")
    error.errno = number
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CheckFailedError("share of missing"), True),
        (InputError("no raw files at raw"), True),
        (TableNotFoundError("no table"), True),
        (AccessError("refused"), True),
        (store_error(errno.EINVAL), True),
        (store_error(errno.EIO), False),
        (DiskFullError("full"), False),
        (InputError("a file changed while it was read: run it again"), False),
        (CommitConflictError("another writer"), False),
        (WorkerError("died"), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
    ],
    ids=str,
)
def test_what_would_fail_again_is_final(error: Exception, expected: bool) -> None:
    assert is_final(error) is expected
