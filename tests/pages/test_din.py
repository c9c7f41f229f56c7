"""examples/din: the page, the model, checkpoints after a kill, and ranks."""

import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from tests.pages.page import ROOT, run_page
from tests.programs import run_python, torchrun
from website.links import linked, resolve

EXAMPLE = ROOT / "examples" / "din"
CPU = torch.device("cpu")
# A process that is killed in its 25th step, five after a checkpoint, if it has rank 1 or is alone;
# with "-" in place of 25 it is not. Each writes the times of the rows of its batches, which tell
# them apart.
SEEN = """
import json, os, runpy, signal, sys
import torch

killed_at, out = sys.argv.pop(1), sys.argv.pop(1)
rank, num_steps = os.environ.get("RANK", "1"), 0
sys.path.insert(0, os.getcwd())
import model

forward, step = model.Din.forward, torch.optim.Adam.step


def noting(self, batch):
    if torch.is_grad_enabled():
        rows = [] if batch.is_padding else batch.extras["ts"].cast("int64").to_pylist()
        with open(f"{out}-{rank}.jsonl", "a") as file:
            file.write(json.dumps(rows) + "\\n")
    return forward(self, batch)


def stepping(self, *arguments):
    global num_steps
    num_steps += 1
    if rank == "1" and str(num_steps) == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments)


model.Din.forward, torch.optim.Adam.step = noting, stepping
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's training, as a module. One thread: others would spin while cores are busy."""
    num_threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield import_module("train")
        torch.set_num_threads(num_threads)
    for name in ("make_log", "model", "train"):
        sys.modules.pop(name, None)


def test_links_of_the_page_lead_somewhere() -> None:
    page = PurePosixPath("examples/din/README.md")
    targets = linked((ROOT / page).read_text())
    assert targets
    for target in targets:
        resolve(ROOT, page, target)


def copied(directory: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__")))


@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 5), max_size=6), seed=st.integers(0, 1 << 20))
def test_attention_sums_the_weighted_events_of_each_row(
    example: Any, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    attention = import_module("model").Attention(dim=4, hidden=3)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    candidates, events = torch.randn(len(lengths), 4), torch.randn(sum(lengths), 4)
    ages = torch.rand(sum(lengths)) * 100
    found = attention(candidates, events, ages, offsets)
    assert found.shape == (len(lengths), 4)
    for row in range(len(lengths)):
        expected = torch.zeros(4)
        for event in range(int(offsets[row]), int(offsets[row + 1])):
            inputs = [events[event], candidates[row], events[event] * candidates[row]]
            weight = attention.weight(torch.cat([*inputs, torch.log1p(ages[event : event + 1])]))
            expected = expected + weight * events[event]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_continues_with_equal_losses(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied(tmp_path / "din"))
    import_module("make_log").make_log(Path(), num_users=60)
    featstore.extract(
        "spec.yaml",
        "raw",
        "table",
        partition_from_path=["dt"],
        events={"clicks": "clicks.parquet"},
    )
    config = yaml.safe_load(Path("train.yaml").read_text())

    def losses(*, save_after: int = -1) -> tuple[list[float], int, Any]:
        torch.manual_seed(1)
        model = import_module("model").Din(example.buckets_of(config))
        optimizer, found = example.optimizer_of(model), []
        with featstore.FeatureLoader.from_config(config) as loader:
            step = example.load(Path("checkpoint.pt"), model, optimizer, loader)
            for number, loss in enumerate(example.train(model, optimizer, loader, CPU), step + 1):
                found.append(loss.item())
                if number == save_after:
                    example.save(Path("checkpoint.pt"), number, model, optimizer, loader)
        return found, step, model.state_dict()

    whole, begun_at, model = losses(save_after=5)
    assert begun_at == 0
    assert len(whole) > 10
    rest, begun_at, resumed = losses()
    assert begun_at == 5
    assert rest == whole[5:]
    assert all(torch.equal(values, resumed[name]) for name, values in model.items())


@pytest.fixture(scope="module")
def followed(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the page was followed."""
    directory = copied(tmp_path_factory.mktemp("page") / "din")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run_page("examples/din/README.md", directory) == 1
    return directory


def again(followed: Path, directory: Path) -> Path:
    """The same table without what was trained; and the program that can be killed."""
    shutil.copytree(followed, directory)
    for path in directory.glob("*.pt"):
        path.unlink()
    (directory / "seen.py").write_text(SEEN)
    with (directory / "train.yaml").open("a") as config:
        config.write("extras: [ts]\n")
    return directory


@pytest.mark.slow
def test_a_model_with_history_is_better_than_one_without(
    example: Any, followed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(followed)
    config = yaml.safe_load(Path("train.yaml").read_text())
    model_of, areas = import_module("model").Din, {}
    for with_history in (True, False):
        model = model_of(example.buckets_of(config), with_history=with_history)
        if not with_history:  # Beside the files of the first one.
            run_python(Path("train.py"), "--no-history")
        model.load_state_dict(torch.load(f"{'' if with_history else 'no-history-'}model.pt"))
        held_out: dict[str, Any] = {"where": example.HELD_OUT, "shuffle": None}
        with featstore.FeatureLoader.from_config(config, **held_out) as loader:
            areas[with_history], _, num_rows = example.evaluate(model, loader, CPU)
        assert num_rows == pq.read_table("raw/dt=2026-11-28").num_rows
    assert areas[True] - areas[False] > 0.1, areas


@pytest.mark.slow
def test_a_killed_process_continues_to_the_same_model(
    followed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(again(followed, tmp_path / "din"))
    run_python(Path("seen.py"), 25, "before", status=-signal.SIGKILL)
    assert torch.load("checkpoint.pt")["step"] == 20
    run_python(Path("seen.py"), "-", "after")
    expected, found = torch.load(followed / "model.pt"), torch.load("model.pt")
    assert all(torch.equal(values, found[name]) for name, values in expected.items())


@pytest.mark.slow
def test_ranks_of_which_one_is_killed_train_on_each_row_once(
    followed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two epochs, whose border the ranks cross at different steps."""
    monkeypatch.chdir(again(followed, tmp_path / "din"))
    with Path("train.yaml").open("a") as config:
        config.write("num_epochs: 2\n")
    killed = torchrun(Path("seen.py"), 25, "before")
    assert "SIGKILL" in killed.stderr
    saved_at = torch.load("checkpoint.pt")["step"]
    assert saved_at == 20
    done = torchrun(Path("seen.py"), "-", "after")
    assert done.returncode == 0, done.stderr[-5000:]
    held_out = pq.read_metadata(next(Path("raw/dt=2026-11-28").iterdir())).num_rows
    assert f"held-out rows: {held_out:,}," in done.stdout + done.stderr
    seen = Counter[int]()
    for rank in range(2):
        before, after = (
            [json.loads(line) for line in Path(f"{when}-{rank}.jsonl").read_text().splitlines()]
            for when in ("before", "after")
        )
        assert len(before) > saved_at
        assert after
        for rows in (*before[:saved_at], *after):
            seen.update(rows)
    days = [pq.read_table(path)["ts"] for path in sorted(Path("raw").iterdir())[:-1]]
    assert seen == Counter(time for day in days for time in day.cast("int64").to_pylist() * 2)
