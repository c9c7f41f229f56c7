"""Training from Parquet that featstore stages, against training from TFRecord: epochs of one small
DLRM in plain torch over the same rows in the same batches.

- tfrecord: files of a remote store, downloaded ahead by a thread, read by tf.data
- tfrecord-gzip: the same, compressed
- pyarrow: Parquet, the selected columns read straight from the remote store
- featstore: Parquet, staged by featstore
- local: Parquet on the local disk, read by featstore

400 slots are stored and 40 are read. The store is one server for all sides, with a latency for each
request and one line of limited bandwidth, in three settings. Each epoch is a process of its own with
one thread for the model; sides run in turn, and ratios are medians of those of neighbouring runs.
Told of each: seconds, the share of them in which the model waited, and until the first batch, bytes
stored and moved, CPU seconds, also of the server, and the loss, which must be the same for all.

featstore and local are compared over longer epochs, too: the same files under four names each.
What is waited for the first file is the same there, and a smaller share.

Then tfrecord and featstore train in three processes of which one takes five times as long for each
step; a model for each, since what is measured is who reads how much until when.

tensorflow is installed into an environment of its own below DIR, once.

    python benchmarks/training.py [--small] [--setting NAME ...] [--repeats N] [--directory DIR]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shared_parts.machine import print_result
from staging_parts.table import Remote, sent_bytes, served, server_cpu_s
from training_parts.environment import tensorflow_python
from training_parts.rows import AdsRows

BATCH_SIZE = 1024
REQUIRED_OF_TFRECORD, ALLOWED_OF_LOCAL, ALLOWED_LOSS_DIFFERENCE = 1.3, 1.05, 1e-6
SETTINGS = (
    Remote(name="far", latency_s=0.05, bytes_per_s=50e6),
    Remote(name="near", latency_s=0.01, bytes_per_s=200e6),
    Remote(name="fast", latency_s=0.001, bytes_per_s=1e9),
)
# The format that each side reads; `local` reads it from the disk.
SIDES = {
    "tfrecord": "tfrecord",
    "tfrecord-gzip": "tfrecord-gzip",
    "pyarrow": "parquet",
    "featstore": "parquet",
    "local": "parquet",
}
# The sides that are compared over longer epochs, and how many names each file has there.
LONG_SIDES, NUM_NAMES = ("featstore", "local"), 4
# The sides that are compared with a slow worker, how many workers, and how much slower it is.
SHARED_SIDES, NUM_WORKERS, SLOWDOWN = ("tfrecord", "featstore"), 3, 5.0
TRAINER = Path(__file__).parent / "training_parts" / "trainer.py"
Epochs = dict[str, list[dict[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs epochs over one set of files.

    Attributes:
        of: The rows.
        folders: The folder of each format.
        scratch: Where to download to.
        tensorflow: The interpreter that has tensorflow.
    """

    of: AdsRows
    folders: Mapping[str, Path]
    scratch: Path
    tensorflow: str

    def epoch(self, side: str, url: str) -> dict[str, float]:
        """What one epoch took, by the names of `Epoch`, "moved_bytes" and "server_cpu_s"."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as directory:
            before, before_cpu_s = sent_bytes(url), server_cpu_s(url)
            with self._trainer(side, url, directory) as trainer:
                found = _told_by(trainer)
            found["moved_bytes"] = sent_bytes(url) - before
            found["server_cpu_s"] = server_cpu_s(url) - before_cpu_s
        if found["num_rows"] != self.of.num_rows:
            raise SystemExit(f"{side}: expected {self.of.num_rows} rows, found {found['num_rows']}")
        print(f"{side}: {found}", flush=True)
        return found

    def slow_worker(self, side: str, url: str) -> dict[str, float]:
        """An epoch of three workers of which one takes five times as long for a step: "epoch_s" of
        the last one to end, and "share_of_slow" of the rows. Files of TFRecord are dealt to them.
        """
        with tempfile.TemporaryDirectory(dir=self.scratch) as directory, ExitStack() as stack:
            trainers = []
            for rank in range(NUM_WORKERS):
                own = Path(directory, str(rank))
                own.mkdir()
                share = {
                    "rank": rank,
                    "num_ranks": NUM_WORKERS,
                    "store": f"sqlite://{directory}/epoch.sqlite",
                }
                slowdown = 1.0 if rank else SLOWDOWN
                trainer = self._trainer(side, url, str(own), share=share, slowdown=slowdown)
                trainers.append(stack.enter_context(trainer))
            epochs = [_told_by(trainer) for trainer in trainers]
        rows = [epoch["num_rows"] for epoch in epochs]
        if sum(rows) != self.of.num_rows:
            raise SystemExit(f"{side}: expected {self.of.num_rows} rows, found {rows}")
        took_s = max(epoch["epoch_s"] for epoch in epochs)
        return {"epoch_s": round(took_s, 2), "share_of_slow": round(rows[0] / sum(rows), 3)}

    def _trainer(self, side: str, url: str, directory: str, **more: Any) -> "subprocess.Popen[str]":
        folder = self.folders[SIDES[side]]
        names = sorted(path.name for path in folder.iterdir())
        told = {
            "rows": asdict(self.of),
            "batch_size": BATCH_SIZE,
            "local": str(folder),
            "urls": [] if side == "local" else [f"{url}/{folder.name}/{n}" for n in names],
            "directory": directory,
            "share": None,
            "slowdown": 1.0,
        }
        python = self.tensorflow if side.startswith("tfrecord") else sys.executable
        return subprocess.Popen(
            [python, str(TRAINER), side, json.dumps(told | more)],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def of_longer_epochs(self) -> "Runner":
        """The same for epochs that are longer: each Parquet file has further names."""
        folder = self.folders["parquet"]
        longer = folder.with_name(f"{folder.name}-under-{NUM_NAMES}-names")
        longer.mkdir(exist_ok=True)
        for path in folder.iterdir():
            for number in range(NUM_NAMES):
                name = longer / f"{number}-{path.name}"
                if not name.exists():
                    name.hardlink_to(path)
        of = replace(self.of, num_files=NUM_NAMES * self.of.num_files)
        return replace(self, of=of, folders={"parquet": longer})


def _told_by(trainer: "subprocess.Popen[str]") -> dict[str, float]:
    """What a trainer prints at its end."""
    out, _ = trainer.communicate()
    if trainer.returncode:
        raise SystemExit(f"a trainer ended with exit code {trainer.returncode}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        of = AdsRows(num_files=4 if arguments.small else 8, file_rows=16 * BATCH_SIZE)
        python = tensorflow_python(directory)
        print("writing what is missing of the rows", flush=True)
        runner = Runner(
            of=of, folders=of.write(directory), scratch=Path(temporary), tensorflow=python
        )
        parts = [
            _setting(runner, remote, arguments.repeats)
            for remote in SETTINGS
            if remote.name in (arguments.setting or [remote.name])
        ]
        result: dict[str, Any] = {
            "ok": all(part["ok"] for part in parts),
            "required_of_tfrecord": REQUIRED_OF_TFRECORD,
            "allowed_of_local": ALLOWED_OF_LOCAL,
            "num_rows": of.num_rows,
            "stored_mb": {
                name: round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6, 1)
                for name, folder in runner.folders.items()
            },
            "settings": {part.pop("name"): part for part in parts},
        }
    print_result(result)
    return 0 if result["ok"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="half of the rows, each side once")
    parser.add_argument(
        "--setting", action="append", choices=[of.name for of in SETTINGS], help="only this one"
    )
    parser.add_argument("--repeats", type=int, help="3, or 1 with --small")
    parser.add_argument("--directory", help="keep tensorflow and the rows here, and use them again")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.small else 3)
    return arguments


def _setting(runner: Runner, remote: Remote, repeats: int) -> dict[str, Any]:
    epochs: Epochs = {side: [] for side in SIDES}
    long_epochs: Epochs = {side: [] for side in LONG_SIDES}
    longer = runner.of_longer_epochs()
    with served(next(iter(runner.folders.values())).parent, remote) as url:
        for _ in range(repeats):
            for side, found in epochs.items():
                found.append(runner.epoch(side, url))
            for side, found in long_epochs.items():
                found.append(longer.epoch(side, url))
        shared = {side: runner.slow_worker(side, url) for side in SHARED_SIDES}
    of_tfrecord, of_local = _ratio(epochs, "tfrecord"), 1 / _ratio(long_epochs, "local")
    featstore = _medians(long_epochs["featstore"])
    line_s = featstore["moved_bytes"] / remote.bytes_per_s
    suffices = line_s < _medians(long_epochs["local"])["epoch_s"]
    differs_by = max(map(_losses_differ_by, (epochs, long_epochs)))
    part = {
        "name": remote.name,
        "ok": of_tfrecord >= REQUIRED_OF_TFRECORD
        and (of_local <= ALLOWED_OF_LOCAL or not suffices)
        and differs_by <= ALLOWED_LOSS_DIFFERENCE,
        "latency_s": remote.latency_s,
        "bytes_per_s": remote.bytes_per_s,
        "times_as_fast_as_tfrecord": round(of_tfrecord, 2),
        "long_epoch_over_local": round(of_local, 3),
        "epoch_over_local": round(1 / _ratio(epochs, "local"), 3),
        "slow_worker": shared,
        "slow_worker_times_as_fast_as_tfrecord": round(
            shared["tfrecord"]["epoch_s"] / shared["featstore"]["epoch_s"], 2
        ),
        "line_suffices": suffices,
        "losses_differ_by": differs_by,
        "sides": {side: _told(_medians(found)) for side, found in epochs.items()},
        "long": {side: _told(_medians(found)) for side, found in long_epochs.items()},
    }
    print({key: part[key] for key in part if key not in ("sides", "long")}, flush=True)
    return part


def _losses_differ_by(epochs: Epochs) -> float:
    losses = [epoch["loss"] for found in epochs.values() for epoch in found]
    return max(losses) - min(losses)


def _ratio(epochs: Epochs, other: str) -> float:
    """How many times as long the other side takes as featstore: the median of neighbours."""
    return statistics.median(
        theirs["epoch_s"] / ours["epoch_s"]
        for theirs, ours in zip(epochs[other], epochs["featstore"], strict=True)
    )


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(epoch[key] for epoch in found) for key in found[0]}


def _told(epoch: Mapping[str, float]) -> dict[str, float]:
    return {
        "epoch_s": round(epoch["epoch_s"], 2),
        "wait_share": round(epoch["waited_s"] / epoch["epoch_s"], 3),
        "first_s": round(epoch["first_s"], 3),
        "cpu_s": round(epoch["cpu_s"], 2),
        "server_cpu_s": round(epoch["server_cpu_s"], 2),
        "moved_mb": round(epoch["moved_bytes"] / 1e6, 1),
        "loss": round(epoch["loss"], 6),
    }


if __name__ == "__main__":
    sys.exit(main())
