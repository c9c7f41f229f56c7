"""The cores, the memory and the open files that a process may use."""

import os
import resource
from pathlib import Path

import pytest

from featstore.base import host
from featstore.base.host import (
    allow_descriptors,
    cores_of_rank,
    descriptor_limit,
    may_be_bound,
    memory_bytes,
    num_cores,
    ranks_on_host,
)
from tests.programs import run_python


def test_a_process_that_may_run_on_one_core_has_one() -> None:
    code = """
import os
from featstore.base.host import num_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(num_cores())
"""
    assert run_python(code).stdout == "1\n"
    assert num_cores() >= 1


def test_a_container_that_may_use_less_than_the_machine_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "_LIMITS", (limit,))
    whole = memory_bytes()
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit.write_text("max\n")
    assert memory_bytes() == whole
    limit.write_text("1000000000\n")
    assert memory_bytes() == 1_000_000_000


@pytest.mark.parametrize(
    ("soft", "hard", "num_needed", "expected"),
    [
        (1_024, 4_096, 1_000, 1_024),
        (1_024, 4_096, 1_024, 1_024),
        (1_024, 4_096, 1_025, 1_025),
        (1_024, 4_096, 9_000, 4_096),
        (1_024, 1_024, 9_000, 1_024),
        (1_024, resource.RLIM_INFINITY, 9_000, 9_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9_000, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_of_descriptors_is_raised_to_what_is_needed_and_possible(
    soft: int, hard: int, num_needed: int, expected: int
) -> None:
    assert descriptor_limit(soft, hard, num_needed) == expected


def test_as_many_files_as_were_asked_for_can_be_opened(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = list[int]()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 5, before[1])
    )
    try:
        allow_descriptors(200)
        opened += [os.open(tmp_path, os.O_RDONLY) for _ in range(200)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in opened:
            os.close(descriptor)
    assert len(opened) == 200


SLURM = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": ""}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        (SLURM, 3),
        (SLURM | {"SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": "0"}, 6),
        ({"LOCAL_WORLD_SIZE": "8"} | SLURM, 8),
        # A batch script is one process, whatever was asked of the nodes.
        ({"SLURM_TASKS_PER_NODE": "8", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "6"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": "9"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "(x2)", "SLURM_NODEID": "0"}, 1),
        ({"MPI_LOCALNRANKS": "0"}, 1),
    ],
)
def test_launchers_tell_how_many_ranks_a_host_has(variables: dict[str, str], ranks: int) -> None:
    assert ranks_on_host(variables) == ranks


def test_a_number_of_ranks_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="many"):
        ranks_on_host({"LOCAL_WORLD_SIZE": "many"})


def test_only_mpi_and_slurm_may_bind_ranks_to_cores() -> None:
    assert may_be_bound(SLURM)
    assert may_be_bound({"MPI_LOCALNRANKS": "2"})
    assert not may_be_bound({"LOCAL_WORLD_SIZE": "8"} | SLURM)
    assert not may_be_bound({"MPI_LOCALNRANKS": "1"})
    assert not may_be_bound({})


@pytest.mark.parametrize(
    ("ranks", "cores", "is_bound", "own"),
    [
        (1, 128, False, 128),
        (8, 128, False, 16),  # torchrun
        (8, 32, False, 4),  # in a container of a quarter of the machine
        (8, 128, True, 16),  # srun without binding
        (8, 16, True, 16),  # and with it
        (8, 1, True, 1),  # mpirun --bind-to core
        (200, 128, False, 1),
    ],
)
def test_cores_are_divided_once(ranks: int, cores: int, is_bound: bool, own: int) -> None:
    assert cores_of_rank(ranks, cores, 128, is_bound=is_bound) == own
