"""Whether a store may hold a table: it must refuse to write a name that is taken."""

import functools
import os

from featstore.errors import UnsafeStoreError
from featstore.files.storage import has_put_if_absent
from featstore.redaction import redact


@functools.cache
def check_store(url: str) -> None:
    """UnsafeStoreError where the store of a table would let two writers commit one version; OSError
    where it takes no files.

    Tried once per process and table, and again after a failure: a result that is raised is not
    kept.
    """
    if "AWS_S3_LOCKING_PROVIDER" in os.environ or has_put_if_absent(url):
        return
    raise UnsafeStoreError(
        f"{redact(url)}: the store overwrites a name that is taken although it was told not to "
        f"(PUT with If-None-Match: *), "
        f"so that of two writers one would lose its commit unseen; expected a store with "
        f"conditional writes. Nothing was "
        f"committed: keep the table elsewhere, or set AWS_S3_LOCKING_PROVIDER=dynamodb where "
        f"delta-rs has a lock table"
    )
