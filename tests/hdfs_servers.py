"""Servers of HDFS that fall silent, without Java: name nodes that answer little, or nothing."""

import contextlib
import functools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from typing import TypeAlias

# A field of a Protobuf message: its number, and a number, bytes, or a message's fields.
Message: TypeAlias = "list[tuple[int, int | bytes | Message]]"
Answer: TypeAlias = "Callable[[str], Message | None]"
Stream: TypeAlias = BufferedRWPair
BLOCK_BYTES, PACKET_BYTES = 1 << 20, 1 << 16
NO_SUCH_FILE: Message = [(4, b"java.io.FileNotFoundException"), (5, b"there is none")]


@contextlib.contextmanager
def silent_server(*, is_cut_off: bool = False) -> Iterator[str]:
    """The address of a server that accepts connections and never answers, or whose host drops all
    packets: the kernel does that while a queue of connections is full.
    """
    with contextlib.ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        if is_cut_off:
            sockets.enter_context(socket.create_connection(server.getsockname()))
        else:
            server.listen(64)
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def name_node(answer: Answer, accepts_after_s: float = 0.0) -> Iterator[str]:
    """The address of a name node.

    Args:
        answer: For a method the answer, or the fields of an error; None: there is never one.
        accepts_after_s: So long no connection is made.
    """
    with _server(lambda stream: _answer_calls(stream, answer), accepts_after_s) as address:
        yield address


@contextlib.contextmanager
def data_node(*num_packets: int, breaks: bool = True) -> Iterator[str]:
    """The address of a data node that has the block of `one_block`, of zeros.

    Args:
        num_packets: How many packets each connection brings before it breaks; all connections
            after these bring the whole block.
        breaks: False: they fall silent.
    """
    broken = iter(num_packets)

    def send(stream: Stream) -> None:
        _send_block(stream, next(broken, None), breaks)

    with _server(send) as address:
        yield address


@contextlib.contextmanager
def _server(converse: Callable[[Stream], None], accepts_after_s: float = 0.0) -> Iterator[str]:
    """The address of a server that has a thread for each connection."""
    done = threading.Event()

    def run(client: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), client, client.makefile("rwb") as stream:
            converse(stream)

    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        if accepts_after_s:  # This one fills the queue until then.
            opened.enter_context(socket.create_connection(server.getsockname()))

        def serve() -> None:
            done.wait(accepts_after_s)
            server.listen(64)
            with contextlib.suppress(OSError):  # The server is closed.
                while True:
                    client, _ = server.accept()
                    opened.callback(_end, client)
                    threading.Thread(target=run, args=(client,)).start()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _end(client: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The other side has ended it.
        client.shutdown(socket.SHUT_RDWR)


def _answer_calls(stream: Stream, answer: Answer) -> None:
    """Answers the calls of a connection, until it ends."""
    stream.read(7)  # the greeting
    while True:
        (num_bytes,) = struct.unpack(">I", stream.read(4))
        header, rest = _delimited(stream.read(num_bytes))
        call = _fields(header)[3]
        assert isinstance(call, int)
        number = (call >> 1) ^ -(call & 1)
        if number < 0:  # what a connection begins with
            continue
        method = _fields(_delimited(rest)[0])[1]
        assert isinstance(method, bytes)
        if (found := answer(method.decode())) is None:
            continue
        is_error = found is NO_SUCH_FILE
        said = _sized(_encoded([(1, number), (2, int(is_error)), *(found if is_error else [])]))
        said += b"" if is_error else _sized(_encoded(found))
        stream.write(struct.pack(">I", len(said)) + said)
        stream.flush()


def _send_block(stream: Stream, num_packets: int | None, breaks: bool) -> None:
    """Answers the reads of a connection, which ends after so many packets; None: never."""
    while stream.read(3):
        first, num_bytes = _read_of(stream)
        stream.write(_sized(_encoded([(1, 0)])))
        offsets = range(first - first % PACKET_BYTES, first + num_bytes, PACKET_BYTES)
        for number, offset in enumerate(offsets):
            if number == num_packets:
                if not breaks:
                    stream.read()  # until the client has lost patience
                return
            stream.write(_packet(offset, number, bytes(PACKET_BYTES)))
            stream.flush()
        stream.write(_packet(first + num_bytes, len(offsets), b""))
        stream.flush()
        stream.read(3)  # that the client has it


def _read_of(stream: Stream) -> tuple[int, int]:
    """The position and the number of bytes that a request asks for."""
    size = b""
    while not size or size[-1] & 0x80:
        size += stream.read(1)
    fields = _fields(stream.read(_read_number(size)[0]))
    first, num_bytes = fields[2], fields[3]
    assert isinstance(first, int)
    assert isinstance(num_bytes, int)
    return first, num_bytes


def _packet(offset: int, number: int, data: bytes) -> bytes:
    header = struct.pack("<BqBqBBBi", 0x09, offset, 0x11, number, 0x18, not data, 0x25, len(data))
    return struct.pack(">IH", 4 + len(data), len(header)) + header + data


def one_block(*data_nodes: str) -> Message:
    """The answer to `getBlockLocations`: a file of one block, which these have."""
    locations: Message = []
    for address in data_nodes:
        host, _, port = address.rpartition(":")
        node: Message = [(1, host.encode()), (2, b"node"), (3, b"id"), (4, int(port))]
        locations.append((3, [(1, [*node, (5, 0), (6, 0)])]))
    block: Message = [(1, b"pool"), (2, 1), (3, 1), (4, BLOCK_BYTES)]
    token: Message = [(1, b""), (2, b""), (3, b""), (4, b"")]
    located: Message = [(1, block), (2, 0), *locations, (4, 0), (5, token)]
    return [(1, [(1, BLOCK_BYTES), (2, located), (3, 0), (5, 1)])]


SERVER_DEFAULTS: Message = [
    (1, [(1, 128 << 20), (2, 512), (3, 64 << 10), (4, 2), (5, 4096), (6, 0), (7, 0), (8, 2)])
]


def _encoded(message: Message) -> bytes:
    parts = list[bytes]()
    for number, value in message:
        if isinstance(value, int):
            parts += [_number(number << 3), _number(value)]
        else:
            data = value if isinstance(value, bytes) else _encoded(value)
            parts += [_number(number << 3 | 2), _sized(data)]
    return b"".join(parts)


def _number(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _number(high) if high else bytes([low])


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


def _read_number(data: bytes) -> tuple[int, bytes]:
    size = next(index for index, byte in enumerate(data) if byte < 0x80) + 1
    groups = [byte & 0x7F for byte in data[:size]]
    return functools.reduce(lambda high, low: high << 7 | low, reversed(groups)), data[size:]


def _delimited(data: bytes) -> tuple[bytes, bytes]:
    """A message with its size before it, and what comes after it."""
    size, rest = _read_number(data)
    return rest[:size], rest[size:]


def _fields(data: bytes) -> dict[int, "int | bytes"]:
    found = dict[int, int | bytes]()
    while data:
        tag, data = _read_number(data)
        value, data = _delimited(data) if tag & 7 == 2 else _read_number(data)
        found[tag >> 3] = value
    return found
