"""Networks of hosts for tests; without root or iproute2 their tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.hosts import Network, why_none


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """A network without hosts."""
    if reason := why_none():
        pytest.skip(reason)
    with Network(tmp_path) as made:
        yield made
