"""The stager against `curl`: the same file from the same server (nginx where there is one) to the
same disk, in turn.

`curl` is measured alone and with a `sync` of the file, which the stager does too before anybody may
read it: the demanded ratio is against the latter on a line that is faster than any network
(loopback), and against plain `curl` on one of 200 MB/s. Then eight processes of one host over one
cold cache, counted by the server.

    python benchmarks/staging_download.py [--small] [--directory DIR]
"""

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from featstore.staging import StageItem, Stager, Staging
from shared_parts.machine import print_result
from staging_parts.table import Remote, sent_bytes, served

REQUIRED_RATIO = 0.9
NAME = "file.bin"
NGINX = """
daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;
events {{}}
http {{ access_log off; sendfile on; tcp_nopush off; client_body_temp_path {root}/b; proxy_temp_path {root}/p;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port}; root {files}; }} }}
"""
READER = """
import json, sys
from featstore.staging import StageItem, Stager, Staging
with Stager(Staging(directory=sys.argv[1], mode="whole")) as stager:
    for staged in stager.stage([StageItem(key=url, url=url, size_bytes=size) for url, size in json.loads(sys.argv[2])]):
        staged.release()
"""


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where the stager is too slow, or a byte
    came twice.
    """
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        root = Path(temporary)
        root.chmod(0o755)
        data = root / "files"
        data.mkdir()
        (data / NAME).write_bytes(np.random.default_rng(0).bytes(arguments.file_bytes))
        with _nginx(root, data) as url:
            loopback = _compare(url, root, arguments)
        line = Remote(name="line", latency_s=0.001, bytes_per_s=200e6)
        with served(data, line) as url:
            limited = _compare(url, root, arguments)
        shared = _eight(data, root)
    ok = (
        loopback["of_curl_with_sync"] >= REQUIRED_RATIO
        and limited["of_curl"] >= REQUIRED_RATIO
        and shared["times_sent"] == 1
    )
    result = {
        "ok": ok,
        "required_ratio": REQUIRED_RATIO,
        "file_mb": arguments.file_bytes / 1e6,
        "loopback": loopback,
        "200_mb_per_s": limited,
        "eight_processes": shared,
    }
    print_result(result)
    return 0 if ok else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a file of 60 MB instead of 400 MB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--directory", help="the disk to write to; its temporary directory otherwise"
    )
    arguments = parser.parse_args()
    arguments.file_bytes = 60_000_000 if arguments.small else 400_000_000
    return arguments


@contextlib.contextmanager
def _nginx(root: Path, data: Path) -> Iterator[str]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        print("no nginx: the server is one in Python, which both sides have to wait for")
        with served(data, Remote(name="loopback", latency_s=0.0, bytes_per_s=0)) as url:
            yield url
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (root / "nginx.conf").write_text(NGINX.format(root=root, port=port, files=data))
    with subprocess.Popen(
        [program, "-p", str(root), "-e", str(root / "error.log"), "-c", str(root / "nginx.conf")]
    ) as process:
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if time.monotonic() > deadline:
                raise SystemExit("nginx does not listen")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def _compare(url: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of MB/s and of the ratios of neighbouring runs."""
    sides: dict[str, Callable[[], None]] = {
        "curl": lambda: _curl(url, root, with_sync=False),
        "curl_with_sync": lambda: _curl(url, root, with_sync=True),
        "stager": lambda: _stage(url, root, arguments.file_bytes),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.repeats):
        for name, act in sides.items():
            since = time.perf_counter()
            act()
            seconds[name].append(time.perf_counter() - since)
            shutil.rmtree(root / "target", ignore_errors=True)
    found: dict[str, Any] = {
        f"{name}_mb_per_s": round(arguments.file_bytes / statistics.median(values) / 1e6)
        for name, values in seconds.items()
    }
    for name in ("curl", "curl_with_sync"):
        ratios = [
            other / mine for other, mine in zip(seconds[name], seconds["stager"], strict=True)
        ]
        found[f"of_{name}"] = round(statistics.median(ratios), 2)
    print(found, flush=True)
    return found


def _curl(url: str, root: Path, *, with_sync: bool) -> None:
    target = root / "target" / NAME
    target.parent.mkdir()
    subprocess.run(
        ["curl", "--silent", "--fail", "--output", str(target), f"{url}/{NAME}"], check=True
    )
    if with_sync:
        subprocess.run(["sync", str(target)], check=True)


def _stage(url: str, root: Path, size_bytes: int) -> None:
    with Stager(Staging(directory=str(root / "target"), mode="whole")) as stager:
        next(stager.stage([StageItem(key=0, url=f"{url}/{NAME}", size_bytes=size_bytes)])).release()


def _eight(data: Path, root: Path) -> dict[str, Any]:
    """Bytes that the server sent to eight processes over one cold cache, held against the bytes of
    the files.
    """
    (data / NAME).unlink()
    sizes = {f"part-{i}.bin": 5_000_000 + i for i in range(12)}
    for name, size_bytes in sizes.items():
        (data / name).write_bytes(bytes(size_bytes))
    with served(data, Remote(name="loopback", latency_s=0.0, bytes_per_s=0)) as url:
        items = json.dumps([(f"{url}/{name}", size_bytes) for name, size_bytes in sizes.items()])
        command = [sys.executable, "-c", READER, str(root / "shared"), items]
        processes = [subprocess.Popen(command) for _ in range(8)]
        codes = [process.wait() for process in processes]
        sent = sent_bytes(url)
    if any(codes):
        raise SystemExit(f"a process failed: {codes}")
    found = {
        "files_bytes": sum(sizes.values()),
        "sent_bytes": sent,
        "times_sent": sent / sum(sizes.values()),
    }
    print(found, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
