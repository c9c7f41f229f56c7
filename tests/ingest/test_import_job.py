"""The arguments of an import, checked before any file is opened."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError, InputError
from featstore.ingest.import_job import import_job


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"format_name": "cvs"},
            r"format: expected one of csv, json, libsvm, pairs, tfrecord, found 'cvs'",
        ),
        ({"output_url": "s3://a/b"}, "s3://a/b: the output is published by renaming a directory"),
        ({"output_url": "in/out"}, "the output in/out lies within the input in; use separate"),
        ({"columns": {"a": "lnog"}}, "column 'a': expected a type of .*did you mean 'long'"),
        ({"delimeter": ";"}, r"csv: expected options of delimiter, .*did you mean 'delimiter'"),
        ({"format_name": "json", "delimiter": ";"}, "json: expected options of none, found 'delim"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(given: dict[str, Any], said: str) -> None:
    arguments = {"format_name": "csv", "input_url": "in", "output_url": "out"} | given
    with pytest.raises(InputError, match=said):
        import_job(**arguments)


def test_a_bound_is_a_number() -> None:
    with pytest.raises(ConfigError, match="max_malformed: expected an integer of 0 or more, found"):
        import_job("csv", "in", "out", max_malformed=-1)
