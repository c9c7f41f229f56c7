"""Download, decode and training at the same time: what an epoch takes beside what its slowest part
takes alone.

- remote: a server of 20 ms and `--line` MB/s, no model, against one `curl` of the same files, one
  after the other, from it.
- decoding: a server several times faster than decoding, no model, against the same epoch over the
  same files on the local disk. Both decode in one thread, in the files' own order, so that decoding
  is what limits, and the server, which would be another machine, and the download have a core.
  Where decoding and the gathering of shuffled rows, or decoding in a thread for each core, take all
  cores by themselves, what the download takes is added: told, no demand.
- model: rows shuffled, steps that take twice as long as the data of a batch (a pause, as for a
  device), and the share of the time that is spent in `next()`, the making of the batch with it.

The sides run in turn, `--repeats` times; the ratios are medians of neighbouring runs.

    python benchmarks/staging_overlap.py [--small] [--repeats N] [--directory DIR]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from featstore.tensors.batch import Batch
from shared_parts.machine import print_result
from staging_parts.table import Remote, at, served, write_flat, write_lists

MOST_OF_SLOWEST, MOST_WAIT_SHARE = 1.05, 0.02
BATCH_SIZE = 4096
SHUFFLE = {"window_rows": 100_000}
NUM_TOLD = 3
TOLD: dict[str, tuple[int | str, dict[str, int] | None]] = {
    "shuffled_in_one_thread": (1, SHUFFLE),
    "shuffled_on_all_cores": ("auto", SHUFFLE),
    "decoding_on_all_cores": ("auto", None),
}


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.directory or temporary)
        flat = write_flat(
            directory / f"flat{arguments.num_files}",
            num_files=arguments.num_files,
            file_bytes=arguments.file_bytes,
        )
        lists = write_lists(
            directory / f"lists{arguments.num_lists}",
            num_files=arguments.num_lists,
            num_rows=100_000,
        )
        found = [_remote(flat, arguments), _decoding(lists, arguments), _model(lists)]
        told = {} if arguments.small else {name: _told(lists, *case) for name, case in TOLD.items()}
    result = {"ok": all(part["ok"] for part in found), **{part["part"]: part for part in found}}
    result |= {name: {"figure": round(figure, 4)} for name, figure in told.items()}
    print_result(result)
    return 0 if result["ok"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="6 files of 40 MB over the slow line instead of 16 of 64 MB, 48 to decode instead of "
        "192",
    )
    parser.add_argument(
        "--line", type=float, default=40.0, help="MB/s of the remote that is the bottleneck"
    )
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--directory", help="keep the data here, and use it again")
    arguments = parser.parse_args()
    arguments.num_files = 6 if arguments.small else 16
    arguments.file_bytes = 40_000_000 if arguments.small else 64_000_000
    arguments.num_lists = 48 if arguments.small else 192
    arguments.num_pairs = arguments.repeats or (5 if arguments.small else 15)
    arguments.repeats = arguments.repeats or (1 if arguments.small else 3)
    return arguments


def _remote(flat: Snapshot, arguments: argparse.Namespace) -> dict[str, Any]:
    remote = Remote(name="line", latency_s=0.02, bytes_per_s=arguments.line * 1e6)
    ratios, said = [], ""
    with served(Path(flat.data_files[0].url).parent, remote) as url:
        for _ in range(arguments.repeats):
            alone_s = _curl_s(at(flat, url))
            epoch_s, said, _ = _epoch(at(flat, url), "whole")
            ratios.append(epoch_s / alone_s)
            print(f"download alone {alone_s:.2f} s, epoch {epoch_s:.2f} s; {said}", flush=True)
    return _part(
        "remote",
        statistics.median(ratios),
        MOST_OF_SLOWEST,
        said,
        "the remote store is the bottleneck",
    )


def _decoding(lists: Snapshot, arguments: argparse.Namespace) -> dict[str, Any]:
    ratio, said = _decoding_ratio(lists, arguments.num_pairs, num_threads=1, shuffle=None)
    return _part("decoding", ratio, MOST_OF_SLOWEST, said, "decoding is the bottleneck")


def _told(lists: Snapshot, num_threads: int | str, shuffle: dict[str, int] | None) -> float:
    return _decoding_ratio(lists, NUM_TOLD, num_threads=num_threads, shuffle=shuffle)[0]


def _decoding_ratio(
    lists: Snapshot, num_pairs: int, *, num_threads: int | str, shuffle: dict[str, int] | None
) -> tuple[float, str]:
    """The median ratio of neighbouring epochs, and what the loader said of the last."""
    options: dict[str, Any] = {"decode_threads": num_threads, "shuffle": shuffle}
    remote = Remote(name="fast", latency_s=0.001, bytes_per_s=400e6)
    ratios, said = [], ""
    _epoch(lists, "auto", **options)  # the files into the kernel's cache, for both sides
    with served(Path(lists.data_files[0].url).parent, remote) as url:
        for _ in range(num_pairs):
            alone_s, _, _ = _epoch(lists, "auto", **options)
            epoch_s, said, _ = _epoch(at(lists, url), "whole", **options)
            ratios.append(epoch_s / alone_s)
            print(
                f"{num_threads} threads, shuffle {shuffle}: decoding of local files alone {alone_s:.2f} s, epoch {epoch_s:.2f} s; "
                f"{said}",
                flush=True,
            )
    return statistics.median(ratios), said


def _model(lists: Snapshot) -> dict[str, Any]:
    num_batches = sum(file.num_rows for file in lists.data_files) // BATCH_SIZE
    with served(
        Path(lists.data_files[0].url).parent,
        Remote(name="fast", latency_s=0.001, bytes_per_s=400e6),
    ) as url:
        alone_s, _, _ = _epoch(at(lists, url), "whole", shuffle=SHUFFLE)
        _, said, share = _epoch(
            at(lists, url), "whole", step_s=2 * alone_s / num_batches, shuffle=SHUFFLE
        )
    print(f"waited {share:.2%} of the time after the first batch; {said}", flush=True)
    return _part("model", share, MOST_WAIT_SHARE, said, "the model is the bottleneck")


def _part(name: str, figure: float, at_most: float, said: str, expected: str) -> dict[str, Any]:
    is_right = expected in said
    return {
        "part": name,
        "ok": figure <= at_most and is_right,
        "figure": round(figure, 4),
        "required_at_most": at_most,
        "verdict_is_right": is_right,
    }


def _curl_s(snapshot: Snapshot) -> float:
    with tempfile.TemporaryDirectory() as target:
        names = [part for file in snapshot.data_files for part in ("--remote-name", file.url)]
        since = time.perf_counter()
        subprocess.run(["curl", "--silent", "--fail", *names], check=True, cwd=target)
        return time.perf_counter() - since


def _epoch(
    snapshot: Snapshot, mode: str, *, step_s: float = 0.0, **options: Any
) -> tuple[float, str, float]:
    """Seconds, what the loader says of the epoch, and the share of the time after the first batch
    that was spent waiting.
    """
    since = time.perf_counter()
    with FeatureLoader(
        snapshot, slots=["*"], batch_size=BATCH_SIZE, staging={"mode": mode}, **options
    ) as loader:
        batches = iter(loader)
        batch: Batch | None = next(batches)
        first_s, waited_s = time.perf_counter(), 0.0
        while batch is not None:
            time.sleep(step_s)
            asked_s = time.perf_counter()
            following = next(batches, None)
            waited_s += time.perf_counter() - asked_s
            batch = following  # only now the one before is let go of, as a loop does
        ended_s = time.perf_counter()
        return ended_s - since, loader.verdict(), waited_s / (ended_s - first_s)


if __name__ == "__main__":
    sys.exit(main())
