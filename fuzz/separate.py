"""For runs with sanitizers, as a plugin of pytest or imported: a column's offsets and its values get memory of their own, of
exactly the size that is asked for, so that what is written between them is seen."""

import pyarrow as pa

from featstore.reading import pages


def separate(offset_bytes: int, value_bytes: int) -> pages.Memory:
    offsets, values = bytearray(offset_bytes), bytearray(value_bytes)
    return pages.Memory(memoryview(offsets), memoryview(values), pa.py_buffer(offsets), pa.py_buffer(values))


pages.allocated = separate
