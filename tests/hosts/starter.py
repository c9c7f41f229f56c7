"""Starts workers on a host. It reads JSON, a line for each, and forks, so that none waits until torch
is imported: `{"work": ...}` answers with the pid of a worker, `{"signal": ..., "pid": ...}` sends one
a signal.

A worker notes each batch that it delivers, with the time, in `NAME.rows` before it asks for the next
one. It writes what it logs to `NAME.log`, and at its end its status to `NAME.end`; one that is killed
leaves none.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import featstore


def deliver(work: dict[str, Any]) -> None:
    """Reads what there is for this worker, at its pace."""
    torch.set_num_threads(1)
    with (
        Path(f"{work['name']}.rows").open("w", buffering=1) as ledger,
        featstore.FeatureLoader(work["table"], **work["loader"]) as loader,
    ):
        for batch in loader:
            ledger.write(f"{time.time()} {json.dumps(batch['row'].tolist())}\n")
            time.sleep(work["pause_s"])


def _begin(work: dict[str, Any]) -> None:
    """The life of a worker's process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{work['name']}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    status = 3
    try:
        deliver(work)
        status = 0
    except BaseException:  # noqa: BLE001  a process's boundary
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        end = Path(f"{work['name']}.new")
        end.write_text(str(status))
        end.rename(end.with_suffix(".end"))
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel buries them.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        if "signal" in asked:
            os.kill(asked["pid"], asked["signal"])
            continue
        pid = os.fork()
        if not pid:
            _begin(asked["work"])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
