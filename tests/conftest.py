from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

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
