"""The record beside a staged file: where it came from, and which of its bytes are there."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from isal import isal_zlib

from featstore.base.intervals import Span, covers, num_bytes, united
from featstore.base.processes import cached_property
from featstore.base.redaction import redact

FORMAT = 3
# (first, end, crc): a span of a file and the CRC-32 of its bytes.
SpanChecksum = tuple[int, int, int]


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 of the bytes, equal to zlib's.

    ISA-L computes it at 13.8 GB/s of CPU time, zlib at 1.6 to 7 (docs/design/staging.md).

    Args:
        data: The bytes.
        before: The CRC-32 of the bytes before them, to go on from.
    """
    return isal_zlib.crc32(data, before)


def united_checksum(sums: Iterable[SpanChecksum], size_bytes: int) -> int | None:
    """The CRC-32 of a whole file, combined from those of its spans.

    None if the spans have a gap, overlap, or do not cover the file.
    """
    crc, at = 0, 0
    for first, end, of_span in sorted(sums):
        if first != at:
            return None
        crc, at = isal_zlib.crc32_combine(crc, of_span, end - first), end
    return crc if at == size_bytes else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a staged file.

    Attributes:
        url: Where the file came from, without credentials.
        size_bytes: The size of the whole file.
        tag: The version that the store gave with the bytes, such as an ETag.
        sums: The checksums of the spans that are there, ascending.
        is_checked: Whether the bytes were compared with the checksum that their writer gave.
    """

    url: str
    size_bytes: int
    tag: str
    sums: tuple[SpanChecksum, ...]
    is_checked: bool = False

    @classmethod
    def of(
        cls,
        url: str,
        size_bytes: int,
        tag: str,
        sums: Iterable[SpanChecksum],
        *,
        is_checked: bool = False,
    ) -> "Record":
        """The record of a file that holds the spans of `sums`.

        Args:
            url: Where the file came from; credentials are removed.
            size_bytes: The size of the whole file.
            tag: The version that the store gave with the bytes.
            sums: The checksums of the held spans, in any order.
            is_checked: Whether the bytes were compared with their writer's checksum.
        """
        return cls(
            url=redact(url),
            size_bytes=size_bytes,
            tag=tag,
            sums=tuple(sorted(sums)),
            is_checked=is_checked,
        )

    @cached_property
    def held(self) -> tuple[Span, ...]:
        """The spans that are there."""
        return spans_of(self.sums)

    @property
    def held_bytes(self) -> int:
        """How many bytes are there."""
        return num_bytes(self.held)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the file are there."""
        return covers(self.held, [(0, self.size_bytes)])

    def to_json(self) -> str:
        """The text of the record's file."""
        fields = {"format": FORMAT, "held": self.held} | vars(self)
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Record | None":
        """Reads what `to_json` wrote.

        None for any other text: a crash of the machine may leave part of a record, or anything.
        """
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                return None
            held = tuple((int(first), int(end)) for first, end in fields.pop("held"))
            sums = tuple((int(first), int(end), int(crc)) for first, end, crc in fields.pop("sums"))
            record = cls(
                url=str(fields.pop("url")),
                size_bytes=int(fields.pop("size_bytes")),
                tag=str(fields.pop("tag")),
                sums=sums,
                is_checked=fields.pop("is_checked") is True,
                **fields,  # An unknown field is a TypeError.
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        # A torn or forged record may contradict itself.
        is_sound = held == record.held and covers([(0, record.size_bytes)], held)
        return record if is_sound else None


def spans_of(sums: Iterable[SpanChecksum]) -> tuple[Span, ...]:
    """The spans to which the checksums belong, together."""
    return united((first, end) for first, end, _ in sums)
