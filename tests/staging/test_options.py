import pytest

from featstore.errors import ConfigError
from featstore.staging import Staging


def test_ranges_is_said_to_come_later_with_the_modes_that_exist():
    with pytest.raises(ConfigError, match="'ranges' is not built yet; there are auto, whole, direct"):
        Staging(mode="ranges")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "hole"}, r"staging\.mode: expected one of auto, whole, direct, found 'hole'; did you mean 'whole'"),
        ({"ahead_files": 0}, r"staging\.ahead_files: expected a whole number above 0, found 0"),
        ({"ahead_files": True}, r"staging\.ahead_files"),
        ({"ahead_bytes": "many"}, r"staging\.ahead_bytes: expected a number of bytes"),
        ({"budget_bytes": 0}, r"staging\.budget_bytes: expected a number of bytes"),
        ({"directory": "s3://b/cache"}, r"staging\.directory: expected a local directory"),
    ],
)
def test_wrong_options_are_refused_when_made(fields, message):
    with pytest.raises(ConfigError, match=message):
        Staging(**fields)


def test_auto_stages_remote_files_only():
    assert [Staging(mode=mode).stages(url) for mode in ("auto", "whole", "direct") for url in ("/a", "s3://b/a")] == [
        *(False, True),
        *(True, True),
        *(False, False),
    ]
