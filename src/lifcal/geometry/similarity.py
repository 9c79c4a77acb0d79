"""Similarity transforms, and their estimation from pairs of points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.errors import InputError


@dataclass(frozen=True, eq=False)
class SimilarityTransform:
    """A scaled rotation followed by a translation: `x_target = scale * rotation @ x + translation`.

    Parameters
    ----------
    rotation : (3, 3) float64
    translation_mm : (3,) float64
    scale : float
        Scale factor; 1 for a rigid transform.
    """

    rotation: FloatArray
    translation_mm: FloatArray
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name, shape in (("rotation", (3, 3)), ("translation_mm", (3,))):
            array = check_array(getattr(self, name), name, shape, finite=True)
            object.__setattr__(self, name, read_only(array.copy()))

    @classmethod
    def align(
        cls, source_mm: npt.ArrayLike, target_mm: npt.ArrayLike, *, with_scale: bool = False
    ) -> SimilarityTransform:
        """Estimate the transform from source to target points by least squares.

        This is the closed-form solution of Umeyama (1991). The rotation comes from a singular value
        decomposition of the points' covariance; a sign is changed where it would be a reflection.

        Parameters
        ----------
        source_mm, target_mm : (n, 3) float64
            Three points or more, not on one line.
        with_scale : bool
            Whether the scale is estimated; otherwise it is 1.
        """
        source = check_array(source_mm, "source_mm", (None, 3), finite=True)
        target = check_array(target_mm, "target_mm", (len(source), 3), finite=True)
        if len(source) < 3:
            raise InputError(f"{len(source)} points do not determine a transform: needs 3 or more")
        centered = source - source.mean(axis=0)
        wanted = target - target.mean(axis=0)
        u, spread, vt = np.linalg.svd(wanted.T @ centered)
        signs = np.array([1.0, 1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
        rotation = (u * signs) @ vt
        scale = float((spread * signs).sum() / (centered**2).sum()) if with_scale else 1.0
        translation = target.mean(axis=0) - scale * rotation @ source.mean(axis=0)
        return cls(rotation, translation, scale)

    def apply(self, points_mm: FloatArray) -> FloatArray:
        """Return transformed points, (n, 3)."""
        return np.asarray(self.scale * points_mm @ self.rotation.T + self.translation_mm)
