"""Reads as many bytes as were asked for: one call of the system, or of a store, may give fewer."""

from typing import BinaryIO


def read_on(source: BinaryIO, num_bytes: int) -> bytes:
    """So many bytes of a file from its position on, or fewer where it ends before."""
    found = data = bytes(source.read(num_bytes))
    while data and len(found) < num_bytes:
        data = source.read(num_bytes - len(found))
        found += data
    return found
