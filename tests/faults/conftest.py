"""How hard the faults are: `make faults` runs a campaign, `make test` a short version of it."""

import pytest


@pytest.fixture
def is_campaign(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--hypothesis-profile") == "campaign")
