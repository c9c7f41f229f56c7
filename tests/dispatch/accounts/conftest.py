"""A store for one test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featstore.dispatch.stores.address import StoreAddress
from featstore.dispatch.stores.base import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/x.db"


@pytest.fixture
def store(address: StoreAddress, closed_at_end: Callable[[Any], Any]) -> Store:
    opened: Store = closed_at_end(address.open())
    return opened
