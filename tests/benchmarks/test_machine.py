"""The line that tells what a benchmark ran on."""

import json
import os

import pytest

from shared_parts.machine import machine, parse_cpu_info, print_result

HYPERTHREADS = """\
processor\t: 0
model name\t: Some CPU @ 2.5GHz
physical id\t: 0
core id\t: 0
flags\t: fpu sse2 avx2 bmi2 avx512f avx512bw avx512_vbmi2

processor\t: 1
model name\t: Some CPU @ 2.5GHz
physical id\t: 0
core id\t: 0
flags\t: fpu sse2 avx2 bmi2 avx512f avx512bw avx512_vbmi2

"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\n\nprocessor\t: 1\nFeatures\t: fp asimd sve\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HYPERTHREADS, ("Some CPU @ 2.5GHz", ["AVX2", "BMI2", "AVX-512F", "AVX-512BW"], 1)),
        (ARM, ("", ["NEON", "SVE"], 0)),
        ("", ("", [], 0)),
    ],
)
def test_cpu_info_is_read(text: str, expected: tuple[str, list[str], int]) -> None:
    assert parse_cpu_info(text) == expected


def test_this_machine_has_a_name_and_its_threads() -> None:
    found = machine()
    assert found.cpu
    assert found.num_threads == os.cpu_count()
    assert f"{found.cpu} (" in str(found)
    assert str(found).startswith(found.date)


def test_the_result_says_what_it_ran_on(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"ok": True})
    told, result = capsys.readouterr().out.splitlines()
    assert told.startswith("machine: ")
    parsed = json.loads(result.removeprefix("RESULT "))
    assert parsed["ok"] is True
    assert set(parsed["machine"]) >= {"cpu", "instruction_sets", "num_cores", "load_average"}
