"""The table of the loader's tests."""

from tests.loader.conftest import table_url

__all__ = ["table_url"]
