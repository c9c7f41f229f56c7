import errno
from typing import Any

import pytest

from featstore.base.errors import BudgetError, ReplacedError, StagingError
from featstore.staging.retry import is_retryable


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("x"),
        TimeoutError("x"),
        EOFError("x"),
        OSError(errno.EIO, "x"),
        OSError("x"),
        ConnectionResetError("x"),
    ],
)
def test_a_broken_transport_is_retried(error: Any) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("x"),
        PermissionError("x"),
        IsADirectoryError("x"),
        StagingError("x"),
        ReplacedError("x"),
        BudgetError("x"),
        ValueError("x"),
        KeyboardInterrupt(),
        OSError(errno.EINVAL, "refused"),
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EROFS, "read-only"),
        OSError(errno.EFBIG, "too large"),
        OSError(errno.EDQUOT, "quota"),
    ],
)
def test_an_error_that_will_repeat_is_not_retried(error: Any) -> None:
    assert not is_retryable(error)
