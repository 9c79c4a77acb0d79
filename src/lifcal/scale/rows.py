"""Reading the lines of text files with known distances."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lifcal.errors import DataError
from lifcal.files import read_bytes


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the words of each line that is not empty; # begins a comment."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    rows = [
        (number, words)
        for number, line in enumerate(text.splitlines(), start=1)
        if (words := line.partition("#")[0].replace(",", " ").split())
    ]
    if not rows:
        raise DataError(f"{path}: holds no distances")
    return rows


def check_length(path: Path, number: int, length: float, sigma: float) -> None:
    """Raise DataError unless a distance and its sigma are positive numbers."""
    if not (np.isfinite([length, sigma]).all() and length > 0.0 and sigma > 0.0):
        raise DataError(
            f"{path}: line {number}: distance {length:g} +- {sigma:g} mm, needs positive numbers"
        )
