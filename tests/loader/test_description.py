"""What a loader is made of: its keywords in groups, and what they say of a table."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import ConfigError
from featstore.loader.description import _FIELDS, described
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.job import BatchOptions, EpochOptions, ProcessOptions
from featstore.loader.request.train_config import COLUMN_KEYS, KEYS
from tests.loader.conftest import source_of

OF_JOB = (EpochOptions, BatchOptions, ProcessOptions)
# What says where files come from, where workers meet, and whom a loader tells.
OF_SOURCE = ("dispatch", "staging", "follow", "stale_groups", "on_stats", "candidates")


def test_every_parameter_is_in_one_group() -> None:
    names = [each.name for kind in OF_JOB for each in fields(kind)] + [*COLUMN_KEYS, *OF_SOURCE]
    assert sorted(names) == sorted(_FIELDS.get(key, key) for key in KEYS if key != "table")


def test_what_is_left_out_is_as_the_signature_of_a_loader_says(table_url: str) -> None:
    found = described(table_url, slots=["row"])
    with FeatureLoader(table_url, slots=["row"]) as loader:
        job = source_of(loader).job
    for kind in OF_JOB:
        for each in fields(kind):
            assert getattr(found.job, each.name) == getattr(job, each.name)
    assert found.job.key == job.key
    assert (found.job.in_step, found.job.terms) == (job.in_step, job.terms)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"seed": -1}, "seed: expected an integer of 0 or more"),
        ({"order": {"kin": "rank"}}, "order: unknown key 'kin'"),
        ({"dispatch": 3}, "dispatch: expected keys of Dispatch"),
        ({"tail": "cut"}, "tail: expected one of drop, pad, join, found 'cut'"),
        ({"tail": "pad", "dispatch": {"in_step": False}}, "tail pad and dispatch.in_step false"),
    ],
)
def test_options_are_judged_before_a_table_is_opened(
    tmp_path: Path, keyword: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        described(str(tmp_path / "nothing"), slots=["row"], **keyword)


def test_one_of_several_has_its_part_of_what_a_process_takes(table_url: str) -> None:
    staging = {"mode": "whole", "decoded": True, "budget_bytes": "1GB"}
    found = described(table_url, slots=["row"], staging=staging)
    shared = found.shared(4)
    assert (found.job.num_sharing, shared.job.num_sharing, shared.job.in_step) == (1, 4, True)
    assert found.staging is not None
    assert shared.staging is not None
    assert shared.staging.num_budget_bytes == found.staging.num_budget_bytes // 4
