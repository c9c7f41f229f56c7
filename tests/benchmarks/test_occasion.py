"""The text of an occasion, out of the benchmark's output."""

import json

import pytest

from loader_parts.occasion import occasion

SPEED = {
    "featstore": {"median": 1.2, "least": 1.1, "most": 1.4},
    "share_of_limit_by_cpu_time": {"floor": 0.1, "featstore": 0.12},
    "limit": {"one_core_ms": {"read": 2.0, "decompress": 4.5, "write": 6.7}},
    "costs": {
        "user_ms": 60.0,
        "system_ms": 20.5,
        "training_thread_ms": 13.7,
        "minor_faults": 293,
    },
    "profile": {"decode": 0.33, "interpreter": 0.26},
    "by_cpu_time": {"featstore": 1.3},
    "required": 1.3,
    "ok": False,
}


def _told(**cases: object) -> list[str]:
    return ["a: {}", "machine: 2026-11-23, Some CPU", f"RESULT {json.dumps(cases)}"]


def test_a_speed_tells_its_share_of_the_floor_and_of_the_limit() -> None:
    text = occasion(_told(unshuffled=SPEED, ok=False))
    assert text.startswith("### 2026-11-23, Some CPU\n")
    assert "| unshuffled (missed) | 1.3 | 1.2 (1.1 to 1.4) | 1.3 | 0.12 (0.1) |" in text
    assert (
        "| unshuffled | 80.5 | 2 / 4.5 / 6.7 | 13.7 | 293 | decode 33 %, interpreter 26 % |" in text
    )


def test_other_cases_tell_their_figures() -> None:
    text = occasion(_told(serial={"share": 0.2, "most": 0.06, "ok": False}, ok=False))
    assert "| serial (missed) | share 0.2, most 0.06 |" in text


def test_a_profile_that_could_not_be_taken_says_why() -> None:
    assert "perf is not installed" in occasion(
        _told(unshuffled=SPEED | {"profile": "perf is not installed"})
    )


def test_an_unfinished_run_is_no_occasion() -> None:
    with pytest.raises(ValueError, match=r"expected a line 'RESULT \{json\}'"):
        occasion(["machine: x"])
