from typing import Any

import pytest

from featstore.base.errors import ConfigError
from featstore.dispatch.store_keys import run_prefix


@pytest.mark.parametrize("part", ["", "a/b", "a b", "x" * 129, "é"])
def test_parts_of_a_key_cannot_hold_a_separator(part: Any) -> None:
    with pytest.raises(ConfigError, match=r"run_id .* may hold only letters"):
        run_prefix(part)
    with pytest.raises(ConfigError, match=r"loader .* may hold only letters"):
        run_prefix("run", loader=part)
