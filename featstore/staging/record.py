"""What a staged file remembers of itself: where it came from and which of its bytes are there."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from isal import isal_zlib

from featstore.redaction import redact
from featstore.staging.ranges import Span, covers, num_bytes, union

FORMAT = 3
# A span of a file and the CRC-32 of its bytes.
Sum = tuple[int, int, int]


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 of the bytes, as zlib's: alone, or after those that `before` is of."""
    return isal_zlib.crc32(data, before)


def united_checksum(sums: Iterable[Sum], size_bytes: int) -> int | None:
    """The CRC-32 of a whole file from those of its spans, None where they are not all of it."""
    crc, at = 0, 0
    for first, end, of_span in sorted(sums):
        if first != at:
            return None
        crc, at = isal_zlib.crc32_combine(crc, of_span, end - first), end
    return crc if at == size_bytes else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """`url` without credentials, `tag` the version that the store gave with the bytes, `held` the
    spans that are there, `sums` the checksums of spans that make them up. `is_checked`: the bytes
    were compared with what their writer said of them."""

    url: str
    size_bytes: int
    tag: str
    held: tuple[Span, ...]
    sums: tuple[Sum, ...]
    is_checked: bool = False

    @classmethod
    def of(
        cls, url: str, size_bytes: int, tag: str, sums: Iterable[Sum], *, is_checked: bool = False
    ) -> "Record":
        sums = tuple(sorted(sums))
        held = _spans(sums)
        return cls(
            url=redact(url),
            size_bytes=size_bytes,
            tag=tag,
            held=held,
            sums=sums,
            is_checked=is_checked,
        )

    @property
    def held_bytes(self) -> int:
        return num_bytes(self.held)

    @property
    def is_whole(self) -> bool:
        return covers(self.held, [(0, self.size_bytes)])

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Record | None":
        """None for a text that is no whole record, as a crash of the machine may leave it, whatever
        it holds.
        """
        try:
            found = json.loads(text)
            if found.pop("format") != FORMAT:
                return None
            held = tuple((int(first), int(end)) for first, end in found.pop("held"))
            sums = tuple((int(first), int(end), int(crc)) for first, end, crc in found.pop("sums"))
            told = {"held": held, "sums": sums, "size_bytes": int(found["size_bytes"])}
            told |= {
                "url": str(found["url"]),
                "tag": str(found["tag"]),
                "is_checked": found["is_checked"] is True,
            }
            record = cls(**(found | told))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        is_sound = _spans(record.sums) == record.held and covers(
            [(0, record.size_bytes)], record.held
        )
        return record if is_sound else None


def _spans(sums: Iterable[Sum]) -> tuple[Span, ...]:
    return union((first, end) for first, end, _ in sums)
