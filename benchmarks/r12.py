"""Real corners of a Raytrix R12 (`../shared/data/R12-A`): a board, treated as unknown points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import Distances
from lifcal.camera import CompoteIntrinsics, read_compote
from lifcal.files import read_json
from lifcal.reconstruction import Observations

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "R12-A"
COLUMNS, ROWS, SPACING_MM = 9, 5, 10.0


@dataclass(frozen=True, eq=False)
class R12:
    """The corners as observations, and the calibration that was published with them."""

    observations: Observations
    published: CompoteIntrinsics

    @property
    def focal_planes(self) -> FloatArray:
        """Published focal planes, as virtual depth u, for each lens type."""
        planes = self.published.focal_planes()
        assert planes is not None
        return planes


def read_r12(folder: Path = FOLDER) -> R12:
    """Read the corners; the micro-image centers are those of the lattice fitted by the authors."""
    corners = np.genfromtxt(folder / "bap-R12-A.csv", delimiter=",", names=True)
    published = read_compote(folder / "intrinsics.js")
    k, l = (corners[name].astype(np.int64) for name in ("k", "l"))  # noqa: E741
    observations = Observations.from_arrays(
        corners["frame"].astype(np.int64),
        corners["cluster"].astype(np.int64),
        published.mesh.centers(k, l),
        np.column_stack([corners["u"], corners["v"]]),
        lens_types=published.mesh.types(k, l, 3),
    )
    return R12(observations, published)


def published_focal_px(published: CompoteIntrinsics, ratio: float) -> float:
    """Return F of the published lengths if micro-lens centers are `ratio` times image centers.

    If the distance of the exit pupil is free, `1/u = 1 - ratio + ratio / v`, and the pinhole image
    has `F = f_L B / (s A)` with `A = (1 - ratio) (f_L - b_L0) + ratio B`. For the ratio of the thin
    lens, `b_L0 / (b_L0 + B)`, this is `(b_L0 + B) / s`.
    """
    p = published.parameters
    f, b0, b = p.focal_length_mm, p.lens_to_array_mm, p.array_to_sensor_mm
    inner = (1.0 - ratio) * (f - b0) + ratio * b
    return f * b / (inner * published.pixel_size_mm)


def published_ratio(folder: Path = FOLDER) -> float:
    """Return the ratio of the published pitches of the micro lenses and of the micro images."""
    content = read_json(folder / "intrinsics.js")
    lenses = float(content["mla"]["mesh"]["pitch"][0][0])
    images = float(content["mia"]["mesh"]["pitch"][0][0])
    return lenses / (images * float(content["sensor"]["scale"]))


def board_distances(sigma_mm: float = 0.02) -> Distances:
    """Return the lengths of the board's two long edges, which give the scale."""
    last = COLUMNS * (ROWS - 1)
    ends = np.array([[0, COLUMNS - 1], [last, last + COLUMNS - 1]])
    lengths = np.full(2, SPACING_MM * (COLUMNS - 1))
    return Distances(ends, lengths, np.full(2, sigma_mm))


def neighbors(point_ids: IntArray) -> IntArray:
    """Return indices of corners that are 10 mm apart on the board, (n, 2)."""
    column, row = point_ids % COLUMNS, point_ids // COLUMNS
    place = {(int(c), int(r)): i for i, (c, r) in enumerate(zip(column, row, strict=True))}
    found = []
    for (c, r), i in place.items():
        for other in ((c + 1, r), (c, r + 1)):
            if other in place:
                found.append((i, place[other]))
    return np.array(found, np.int64)


def judge_board(points_mm: FloatArray, point_ids: IntArray) -> tuple[float, float]:
    """Return the rms deviations of spacings from 10 mm, and of points from a plane, in mm."""
    ends = points_mm[neighbors(point_ids)]
    spacing = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
    centered = points_mm - points_mm.mean(axis=0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    height = centered @ axes[2]
    return (
        float(np.sqrt(np.mean((spacing - SPACING_MM) ** 2))),
        float(np.sqrt(np.mean(height**2))),
    )
