"""Requests go through the HTTP proxy that the environment names."""

from pathlib import Path
from typing import Any

import pytest

import featstore
from tests.parquet_files import put_parquet
from tests.programs import run_python

SPEC = {
    "spec": 1,
    "inputs": {"user": "string"},
    "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
}
READ = """
import sys
import featstore
print(featstore.open_table(sys.argv[1]).to_arrow().num_rows)
"""
FAIL = """
import sys
import featstore
try:
    featstore.open_table(sys.argv[1])
except featstore.FeatstoreError as error:
    print(error)
"""


@pytest.fixture
def bucket(tmp_path: Path, loopback: Any) -> str:
    """A table in a bucket of a host whose name never resolves: only a proxy can reach it."""
    put_parquet(tmp_path / "raw.parquet", {"user": ["a", "b", "a"]})
    (tmp_path / "spec.yaml").write_text(str(SPEC))
    featstore.extract(str(tmp_path / "spec.yaml"), tmp_path / "raw.parquet", tmp_path / "table")
    for path in (tmp_path / "table").rglob("*"):
        if path.is_file():
            name = path.relative_to(tmp_path).as_posix()
            loopback.files[f"/bucket/{name}"] = path.read_bytes()
    return "s3://bucket/table"


def variables(loopback: Any, **more: str) -> dict[str, str]:
    proxy = loopback.url.replace("://", "://user:a-secret-word@")
    return {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "mine",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://store.invalid:9000",
        "AWS_ALLOW_HTTP": "true",
        "HTTP_PROXY": proxy,
        "http_proxy": proxy,
        "NO_PROXY": "",
        "no_proxy": "",
    } | more


def test_the_log_of_a_table_and_its_data_come_through_the_proxy(bucket: str, loopback: Any) -> None:
    done = run_python(READ, bucket, variables=variables(loopback))
    assert done.stdout.split() == ["3"]
    asked = {path for _, path, _ in loopback.log}
    assert any("_delta_log" in path for path in asked)
    assert any(path.endswith(".parquet") for path in asked)


def test_a_host_that_no_proxy_names_is_asked_directly_and_no_password_is_shown(
    bucket: str, loopback: Any
) -> None:
    direct = variables(loopback, NO_PROXY="store.invalid", no_proxy="store.invalid")
    done = run_python(FAIL, bucket, variables=direct)
    assert "store.invalid:9000 does not resolve" in done.stdout
    assert not loopback.log
    assert "a-secret-word" not in done.stdout + done.stderr
