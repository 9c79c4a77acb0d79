"""The mean error of the virtual depth in depth maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, check_array, cut_rows, read_only
from lifcal.errors import InputError

_MOST = 0.05


@dataclass(frozen=True, eq=False)
class DepthBias:
    """Mean relative error of the virtual depth in depth maps, as a function of virtual depth.

    It is given at nodes, interpolated linearly between them, and constant beyond them.

    Parameters
    ----------
    u : (n,) float64
        Virtual depths of the nodes, ascending.
    relative : (n,) float64
        Relative error at each node: (measured u - true u) / true u.
    """

    u: FloatArray
    relative: FloatArray

    def __post_init__(self) -> None:
        u = check_array(self.u, "u", (None,), finite=True)
        relative = check_array(self.relative, "relative", (len(u),), finite=True)
        if len(u) == 0 or not (np.diff(u) > 0.0).all():
            raise InputError("u of a depth bias needs ascending numbers")
        if not (np.abs(relative) < _MOST).all():
            raise InputError(
                f"relative of a depth bias has {np.abs(relative).max():g}, needs less than {_MOST}"
            )
        object.__setattr__(self, "u", read_only(u.copy()))
        object.__setattr__(self, "relative", read_only(relative.copy()))

    def remove(self, u: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return virtual depths without the bias, of the same type; NaN stays NaN."""
        u = np.asarray(u)
        out = np.empty_like(u)
        for part in cut_rows(u):
            out[part] = u[part] / (1.0 + np.interp(u[part], self.u, self.relative))
        return out
