"""The focus-vignetting term: a defocused micro image is magnified, by lens type and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.bundle import _kernels
from lifcal.camera import MicroLensGrid, OverlapDiscs
from lifcal.errors import ConfigError, InputError

FOCUS_SHAPES = ("linear", "overlap", "devignetted")
"""Shapes of the focus-vignetting term (docs/theory/bundle.md)."""
_SHAPE_IDS = {
    "linear": _kernels.FOCUS_LINEAR,
    "overlap": _kernels.FOCUS_OVERLAP,
    "devignetted": _kernels.FOCUS_DEVIGNETTED,
}
"""Numbers by which the compiled loops know the shapes."""
FocusShape = Literal["linear", "overlap", "devignetted"]


@dataclass(frozen=True, eq=False)
class FocusTerm:
    """How a point out of focus is displaced in a micro image, up to a strength g.

    A point at offset `m` from the micro-image center is seen at `m (1 + g h)`:

    - linear: `h = 1 / u_T - 1 / u`;
    - overlap: `m h` is how far the centroid of the overlap of both apertures moves the spot, from
      the discs that a white image shows; then g = 1 is a centroid of the whole spot;
    - devignetted: the same for images that were divided by the white image. Each of their pixels is
      the mean over the overlap at that very pixel, so the centroid is that of the white image at
      the place where the point is seen, and g = 1.

    All use the virtual depth `u` with micro-image centers, so neither depends on the scale. With
    the paper's `v`, the linear strength is `g k`, `k = b_L0 / (b_L0 + B)`.

    Parameters
    ----------
    focal_planes : (n_types,) float64
        `u_T`, the virtual depth at which each lens type is in focus.
    shape : 'linear', 'overlap' or 'devignetted'
    discs : OverlapDiscs or None
        Needed for 'overlap' and 'devignetted'.
    plane_sigma : float
        Standard deviation of each 1 / u_T. 0: they are exact. Else they are estimated with this
        prior, and the differences between lens types decide.
    """

    focal_planes: FloatArray
    shape: FocusShape = "linear"
    discs: OverlapDiscs | None = None
    plane_sigma: float = 0.0

    def __post_init__(self) -> None:
        planes = check_array(self.focal_planes, "focal_planes", (None,), finite=True)
        if not 1 <= len(planes) <= 3 or (planes == 0.0).any():
            raise InputError(
                f"focal_planes is {planes.tolist()}, needs one number other than 0 for each type"
            )
        if self.shape not in FOCUS_SHAPES:
            raise ConfigError.unknown("focus shape", self.shape, FOCUS_SHAPES)
        if not (math.isfinite(self.plane_sigma) and self.plane_sigma >= 0.0):
            raise InputError(f"plane_sigma is {self.plane_sigma}, needs 0 or a positive number")
        if self.shape != "linear":
            if self.discs is None:
                raise InputError(f"the {self.shape} shape needs the discs of a white image")
            if len(self.discs.micro_px) != len(planes):
                raise InputError(
                    f"{len(self.discs.micro_px)} micro discs for {len(planes)} focal planes"
                )
        object.__setattr__(self, "focal_planes", read_only(planes.copy()))

    @classmethod
    def from_grid(
        cls,
        grid: MicroLensGrid,
        shape: FocusShape = "linear",
        plane_sigma: float = 0.0,
    ) -> FocusTerm:
        """Build from the focal planes (and discs) that a grid holds."""
        if grid.focal_planes is None:
            raise InputError("the grid has no focal planes")
        return cls(grid.focal_planes, shape, grid.discs, plane_sigma)

    def compute_magnification(
        self, offset_px: float, lens_type: int, virtual_depth: float, strength: float = 1.0
    ) -> float:
        """Return h for one micro image; only 'devignetted' depends on the strength."""
        focus = self.packed()
        inverse = 1.0 / self.focal_planes[lens_type]
        found = _kernels.focus_magnification(
            focus.shape,
            strength,
            inverse,
            focus.main,
            focus.micro[lens_type],
            offset_px,
            virtual_depth,
        )
        return float(found.h)

    def packed(self) -> _kernels.FocusModel:
        """Return the term as the kernels take it."""
        shape = _SHAPE_IDS[self.shape]
        if self.discs is None:
            return _kernels.FocusModel(shape, 1.0, np.ones(len(self.focal_planes)))
        return _kernels.FocusModel(shape, self.discs.main_px, np.array(self.discs.micro_px))

    def as_dict(self) -> dict[str, Any]:
        """Return the term for JSON."""
        return {
            "shape": self.shape,
            "focal_planes": self.focal_planes.tolist(),
            "plane_sigma": self.plane_sigma,
        }


def focal_planes_from_paper(
    focal_planes_v: Sequence[float] | FloatArray, lens_to_array_mm: float, array_to_sensor_mm: float
) -> FloatArray:
    """Return `u_T` for focal planes given as the paper's virtual depth `v_T`."""
    total = lens_to_array_mm + array_to_sensor_mm
    if not (math.isfinite(total) and lens_to_array_mm > 0.0 and array_to_sensor_mm > 0.0):
        raise InputError("lens_to_array_mm and array_to_sensor_mm need to be positive")
    k = lens_to_array_mm / total
    v = np.asarray(focal_planes_v, np.float64)
    return np.asarray(v / ((1.0 - k) * v + k))


NO_FOCUS = _kernels.FocusModel(_kernels.FOCUS_OFF, 1.0, np.ones(3))
"""The term as the kernels take it where it is off."""
