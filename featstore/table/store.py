"""Checks that a file store may hold a table: it must support conditional writes."""

import functools
import os

from featstore.errors import UnsafeStoreError
from featstore.files.storage import has_put_if_absent
from featstore.redaction import redact


@functools.cache
def check_store(url: str) -> None:
    """Checks, by writing a small object, that two writers cannot commit the same version.

    The result is cached per process and table. A failure is not cached.

    Raises:
        UnsafeStoreError: The store overwrites an existing object despite `If-None-Match: *`.
        OSError: The store cannot be written to.
    """
    # With a lock table delta-rs does not rely on conditional writes.
    if "AWS_S3_LOCKING_PROVIDER" in os.environ or has_put_if_absent(url):
        return
    raise UnsafeStoreError(
        f"{redact(url)}: the store overwrites an existing object although the request forbids it "
        f"(PUT with If-None-Match: *), so that one of two writers would lose its commit silently; "
        f"expected a store with conditional writes. Nothing was committed: keep the table "
        f"elsewhere, or set AWS_S3_LOCKING_PROVIDER=dynamodb if delta-rs has a lock table"
    )
