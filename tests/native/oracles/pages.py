"""Pages against their checksums, in Python."""

import os
import zlib

from featstore.base.intervals import Span
from tests.native.oracles.page_header import read_page_header


def is_intact(file: int, span: Span) -> bool:
    """Whether a column chunk consists of whole pages, each of which matches its checksum if it has
    one.
    """
    at, end = span
    while at < end:
        header = read_page_header(
            lambda num_bytes, first: os.pread(file, num_bytes, first), at, end
        )
        if header is None or at + header.num_bytes + header.size_bytes > end:
            return False
        first, at = at + header.num_bytes, at + header.num_bytes + header.size_bytes
        if header.crc is not None and header.crc != zlib.crc32(os.pread(file, at - first, first)):
            return False
    return True
