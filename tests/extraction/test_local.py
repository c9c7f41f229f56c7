import pyarrow as pa
import pytest

from featstore.extraction.local import kept_memory


def test_arrow_takes_memory_from_the_c_library_within_the_block_only() -> None:
    before = pa.default_memory_pool().backend_name
    with kept_memory():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before


def test_a_failure_gives_the_former_pool_back() -> None:
    before = pa.default_memory_pool().backend_name
    with pytest.raises(RuntimeError, match="a unit failed"), kept_memory():
        raise RuntimeError("a unit failed")
    assert pa.default_memory_pool().backend_name == before
