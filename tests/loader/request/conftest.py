"""The small table of the loader's tests."""

from tests.loader.conftest import snapshot, table_url

__all__ = ["snapshot", "table_url"]
