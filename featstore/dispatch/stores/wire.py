"""How a TCP store and its server talk: a handshake by which both show that they know the same
token, then numbered requests and their replies.

The server sends the greeting and 32 random bytes; the client 32 random bytes and its proof; the
server `ACCEPTED` and its own proof, or `REFUSED`. A proof is the HMAC-SHA256 (RFC 2104), with the
token as the key, of who proves and both random parts. So the token itself is never sent, and a
recorded proof is worth nothing. Nothing after the handshake is encrypted.

A frame is the length of its JSON text (4 bytes, big-endian) and the text. The client's first frame
is `[client]`, the server's `[name, is_durable]`; then come `[number, verb, ...]` and `[reply]`, or
`[null, error]`.
"""

import hmac
import json
import struct
from typing import Any

TOKEN_VARIABLE = "FEATSTORE_DISPATCH_TOKEN"
CA_VARIABLE = "FEATSTORE_DISPATCH_CA"
GREETING = b"featstore dispatch 1\n"
NONCE_BYTES = PROOF_BYTES = 32
ACCEPTED, REFUSED = b"\x01", b"\x00"
LENGTH = struct.Struct(">I")
# What a program that is no client, but knows the token, can make the server allocate.
MAX_FRAME_BYTES = 64 << 20


def proof(token: str, who: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What shows that `who`, `client` or `server`, knows the token: 32 bytes."""
    return hmac.digest(token.encode(), who.encode() + server_nonce + client_nonce, "sha256")


def is_proof(found: bytes, token: str, who: str, server_nonce: bytes, client_nonce: bytes) -> bool:
    """Whether these bytes are that proof. Takes as long for almost equal bytes as for others."""
    return hmac.compare_digest(found, proof(token, who, server_nonce, client_nonce))


def pack(message: list[Any]) -> bytes:
    """A message as a frame."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def unpack(text: bytes) -> list[Any]:
    """The message in a frame.

    Raises:
        ValueError: It is no JSON list.
    """
    message = json.loads(text)
    if not isinstance(message, list) or not message:
        raise ValueError("expected a JSON list")
    return message


def frame_bytes(length: bytes) -> int:
    """The length of a frame's text from its first 4 bytes.

    Raises:
        ValueError: It is longer than any message.
    """
    num_bytes = int(LENGTH.unpack(length)[0])
    if num_bytes > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {num_bytes:,} bytes: expected {MAX_FRAME_BYTES:,} at most")
    return num_bytes
