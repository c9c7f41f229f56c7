"""The benchmark of the feed to a GPU is ready: every step of it runs, here on the CPU."""

import json

import pytest
import torch

import device_feed


@pytest.mark.slow
def test_a_dry_run_runs_every_step_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_feed.main(["--dry-run"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(line.removeprefix("RESULT "))
    assert found["is_dry_run"]
    assert found["batches_are_equal"]
    assert found["lookups_are_views"]
    assert found["num_steps"] == 3 * 4
    assert found["copy_ratio"] > 0
    assert found["rows_per_s"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_feed.main([]) == 0
    assert '"skipped": "no GPU"' in capsys.readouterr().out
