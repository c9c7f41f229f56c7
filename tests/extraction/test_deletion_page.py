"""docs/howto/delete.md: its commands and code do what it says."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import featstore
from featstore.tools.cli.program import cli
from tests.parquet_files import put_parquet

PAGE = (Path(__file__).parents[2] / "docs/howto/delete.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_deletes_rows_by_a_kept_column_and_by_a_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    users = [f"u{i % 4}" for i in range(20)]
    put_parquet(
        tmp_path / "raw" / "a.parquet",
        {"user": users, "price": [1.0] * 20, "clicked": [0, 1] * 10},
    )
    printed = []
    for language, text in BLOCKS:
        if language == "yaml":
            Path("spec.yaml").write_text(text)
            featstore.extract("spec.yaml", "raw", "table", partition={"dt": "1"})
        elif language == "python":
            exec(compile(text, "page", "exec"), {})
        for line in [] if language else text.splitlines():
            done = CliRunner().invoke(cli, shlex.split(line)[1:], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            printed.append(done.stdout)
    assert "would delete 10 rows" in printed[0]
    assert "deleted 10 rows" in printed[1]
    left = featstore.open_table("table")
    assert set(left.to_arrow().column("user").to_pylist()) == {"u0", "u3"}
    (sign,) = set(left.to_arrow(where="user = 'u3'").column("user_id").to_pylist())
    assert str(sign) in capsys.readouterr().out
    done = CliRunner().invoke(
        cli, ["table", "delete", "table", "--where", f"user_id = {sign}"], catch_exceptions=False
    )
    assert "deleted 5 rows" in done.stdout
