"""Other readers of the same files, each a `Reader` (see reading.py) by its name; those that are not installed are left out."""

from loader_parts.reading import Reader

PEERS: dict[str, Reader] = {}
