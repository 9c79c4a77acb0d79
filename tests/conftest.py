"""Fixtures for all rooms."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers seeded from the test's own id."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def shared_data() -> Path:
    """Real recordings beside the repository, never part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder.name}")
    return folder
