from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import Any

# The threads of OpenBLAS wait in a busy loop, which takes the cores from the other tests. This must
# be set before numpy is imported; commands that the tests start inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from lifcal.diagnostics import KINDS, Finding

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the repository, which is not part of it."""
    folder = REPOSITORY / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data are not here: ../shared/data")
    return folder.resolve()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's own id: another test, another stream; the same every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def live_recording() -> Any:
    """Twelve frames of a small camera, for the tests of online calibration."""
    from tests.calibration.live_recording import Recording

    return Recording()


# Every code of a finding is raised by some input: a run of all tests fails if one is not.

_raised: set[str] = set()


def pytest_configure() -> None:
    """Note the codes of findings that the package itself makes."""
    original = Finding.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Finding], code: str, text: str, **evidence: Any) -> Finding:
        if sys._getframe(1).f_globals["__name__"].startswith("lifcal."):
            _raised.add(code)
        found: Finding = original(cls, code, text, **evidence)
        return found

    Finding.of = classmethod(of)  # type: ignore[method-assign, assignment]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect what a worker of pytest-xdist noted."""
    _raised.update(getattr(node, "workeroutput", {}).get("raised", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["raised"] = sorted(_raised)
        return
    repeated = getattr(config.option, "lf", False)
    chosen = config.option.keyword or repeated or config.option.markexpr != "not slow"
    whole = config.args == config.getini("testpaths") and not chosen
    missing = sorted(set(KINDS) - _raised)
    if whole and missing and session.exitstatus == 0:
        session.exitstatus = 1
        config.stash[_MISSING] = missing


_MISSING = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    missing = config.stash.get(_MISSING, [])
    if missing:
        terminalreporter.write_line(
            f"no test raises these findings: {', '.join(missing)}", red=True
        )
