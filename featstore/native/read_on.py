"""Reads as many bytes as were asked for: one call of the system, or of a store, may give fewer."""

import os
from typing import BinaryIO


def read_on(source: BinaryIO, num_bytes: int) -> bytes:
    """So many bytes of a file from its position on, or fewer where it ends before."""
    found = data = bytes(source.read(num_bytes))
    while data and len(found) < num_bytes:
        data = source.read(num_bytes - len(found))
        found += data
    return found


def pread_on(file: int, num_bytes: int, first: int) -> bytes:
    """So many bytes of an open file from byte `first` on, or fewer where it ends before.

    Args:
        file: Its descriptor.
        num_bytes: How many.
        first: The first one.
    """
    found = data = os.pread(file, num_bytes, first)
    while data and len(found) < num_bytes:
        data = os.pread(file, num_bytes - len(found), first + len(found))
        found += data
    return found
