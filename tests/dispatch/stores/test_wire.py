import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.stores.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    frame_bytes,
    is_proof,
    pack,
    proof,
    unpack,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.lists(JSON, min_size=1, max_size=5))
def test_a_message_comes_out_of_its_frame(message: list[object]) -> None:
    frame = pack(message)
    assert frame_bytes(frame[: LENGTH.size]) == len(frame) - LENGTH.size
    assert unpack(frame[LENGTH.size :]) == message


@given(
    st.text(), st.text(), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)
)
def test_a_proof_is_of_the_token_the_side_and_both_nonces(
    token: str, other: str, first: bytes, second: bytes
) -> None:
    shown = proof(token, "client", first, second)
    assert is_proof(shown, token, "client", first, second)
    assert is_proof(shown, other, "client", first, second) is (token == other)
    assert not is_proof(shown, token, "server", first, second)
    assert is_proof(shown, token, "client", second, first) is (first == second)


def test_the_length_of_a_frame_is_bounded() -> None:
    assert frame_bytes(LENGTH.pack(MAX_FRAME_BYTES)) == MAX_FRAME_BYTES
    with pytest.raises(ValueError, match="expected 67,108,864 at most"):
        frame_bytes(LENGTH.pack(MAX_FRAME_BYTES + 1))
