"""Files whose bytes are changed in place."""

from pathlib import Path


def overwrite(path: Path, first: int, num_bytes: int = 40) -> None:
    """Sets all bits of these bytes."""
    data = path.read_bytes()
    path.write_bytes(data[:first] + b"\xff" * num_bytes + data[first + num_bytes :])


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
