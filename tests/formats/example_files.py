"""Writes TFRecord files of Examples with the protobuf package alone."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import google_crc32c

from featstore.formats.tfrecord import example_class


def framed(record: bytes) -> bytes:
    """A record with its length and checksums."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, _masked(length), record, _masked(record)])


def example(row: Mapping[str, list[Any] | None]) -> bytes:
    """An Example: bytes, floats or ints by feature; one that is None is left out."""
    message = example_class()()
    for name, values in row.items():
        if values is not None:
            kind = {bytes: "bytes_list", float: "float_list"}.get(
                type(values[0]) if values else int, "int64_list"
            )
            target = getattr(message.features.feature[name], kind)
            target.SetInParent()
            target.value.extend(values)
    return bytes(message.SerializeToString())


def tfrecord(rows: Iterable[Mapping[str, list[Any] | None]]) -> bytes:
    return b"".join(framed(example(row)) for row in rows)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
