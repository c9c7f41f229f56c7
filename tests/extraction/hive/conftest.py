"""Locations are tested on the tables of `tests/table`."""

from tests.table.conftest import schema as schema
