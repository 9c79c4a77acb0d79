"""Tests with other Pythons and dependencies: `nox`. Interpreters that are not there are skipped."""

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
