"""Sessions of nox: tests with other Pythons and dependencies, coverage, documentation.

`nox` runs all of them and skips those whose interpreter is not installed; `nox -s docs` runs one.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

nox.options.error_on_missing_interpreters = False
PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests with the newest dependencies."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest Python, and the oldest dependencies that are allowed."""
    text = (Path(__file__).parent / "pyproject.toml").read_text()
    block = text.partition("\ndependencies = [")[2].partition("]")[0]
    lowest = [
        f"{name}=={version}.*" for name, version in re.findall(r'"([\w-]+)>=([\d.]+)"', block)
    ]
    session.install(".[test]", *lowest)
    session.run("pytest", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure which lines of the package the tests execute; compiled loops are left out."""
    session.install(".[test]")
    # Under the limit on file sizes of this test, coverage cannot write its own data.
    full_disk = "tests/cli/test_cli.py::test_a_full_disk_is_one_line"
    session.run(
        "pytest", "--cov=lifcal", "--cov-report=term", f"--deselect={full_disk}", *session.posargs
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation's site; a warning is an error."""
    session.install(".[docs]")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
