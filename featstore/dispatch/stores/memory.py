"""A store for the threads of one process. A second process that meets it gets an error, never a
copy.
"""

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence

from featstore.errors import DispatchError
from featstore.redaction import redact

_PROCESS = uuid.uuid4().hex
_FIX = "use dispatch store sqlite:///absolute/path for the processes of one host"


class MemoryRoom:
    """What a memory store holds, and the process that it belongs to; handles of one URL share a
    room.

    Pickling carries the owner but not the values: in the same process the copy is the room itself,
    anywhere else it is one that refuses.
    """

    def __init__(self, url: str, owner: tuple[int, str]) -> None:
        self.url, self.owner = url, owner
        self.values: dict[str, str] = {}
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., "MemoryRoom"], tuple[str, tuple[int, str]]]:
        return _find_room, (self.url, self.owner)

    def require_owner(self) -> None:
        """DispatchError where another process, or a pickled copy, uses the room."""
        if self.owner != _this_process():
            raise DispatchError(
                f"dispatch store {redact(self.url)} belongs to process {self.owner[0]} and was met "
                f"by process {os.getpid()}, "
                f"where it would be empty and the epoch read twice; {_FIX}"
            )


_rooms: "weakref.WeakValueDictionary[str, MemoryRoom]" = weakref.WeakValueDictionary()
_rooms_lock = threading.Lock()


def enter_room(url: str) -> MemoryRoom:
    """The room that this process keeps for `url`, made on first use. After a fork it is still the
    parent's.

    DispatchError in a process that says it is one of several (`WORLD_SIZE`): each would find a room
    of its own.
    """
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise DispatchError(
            f"dispatch store {redact(url)} in one of {os.environ['WORLD_SIZE']} processes "
            f"(WORLD_SIZE); {_FIX}"
        )
    return _find_room(url, None)


def _find_room(url: str, owner: tuple[int, str] | None) -> MemoryRoom:
    if owner is not None and owner != _this_process():
        return MemoryRoom(url, owner)
    with _rooms_lock:
        room = _rooms.get(url)
        if room is None:
            room = _rooms[url] = MemoryRoom(url, _this_process())
        return room


def _this_process() -> tuple[int, str]:
    return os.getpid(), _PROCESS


class MemoryStore:
    """A handle on a room; see `Store`."""

    def __init__(self, room: MemoryRoom) -> None:
        room.require_owner()
        self._room: MemoryRoom | None = room

    def set(self, key: str, value: str) -> None:
        room = self._enter()
        with room.lock:
            room.values[key] = value

    def add(self, key: str, amount: int) -> int:
        room = self._enter()
        with room.lock:
            total = int(room.values.get(key, "0")) + amount
            room.values[key] = str(total)
            return total

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        room = self._enter()
        with room.lock:
            held = room.values.get(key)
            if held == expected or (held is None and not expected):
                room.values[key] = held = desired
            return expected if held is None else held

    def check(self, keys: list[str]) -> bool:
        room = self._enter()
        with room.lock:
            return all(key in room.values for key in keys)

    def get_or_none(self, key: str) -> str | None:
        room = self._enter()
        with room.lock:
            return room.values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        room = self._enter()
        with room.lock:
            return [room.values.get(key) for key in keys]

    def close(self) -> None:
        self._room = None

    def _enter(self) -> MemoryRoom:
        room = self._room
        if room is None:
            raise DispatchError("this handle of a memory store is closed")
        room.require_owner()
        return room
