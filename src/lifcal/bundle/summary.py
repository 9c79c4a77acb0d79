"""What an adjustment reports: how it went, what it rejected, what its residuals look like."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lifcal.arrays import BoolArray, FloatArray
from lifcal.bundle.linear import Layout
from lifcal.diagnostics import Finding
from lifcal.reconstruction import Observations, Reconstruction

_RADIUS_BINS = 4
"""Rings of a micro image by which rejected observations are counted: enough to see that outliers
crowd at the rim."""
_DEPTH_BINS = 4
"""Ranges of virtual depth by which residuals are compared. Each holds the same number of
observations."""


@dataclass(frozen=True)
class Stage:
    """One solve: its name, iterations, why it stopped, and its time."""

    name: str
    iterations: int
    reason: str
    seconds: float


@dataclass(frozen=True)
class OutlierCounts:
    """How many observations were rejected, and where.

    Parameters
    ----------
    total : int
    by_view : mapping of view id to (rejected, all)
    by_type : tuple of (rejected, all), for each lens type
    by_radius : tuple of (upper limit in px, rejected, all)
        By the distance of the measured point from the micro-image center.
    """

    total: int
    by_view: dict[int, tuple[int, int]]
    by_type: tuple[tuple[int, int], ...]
    by_radius: tuple[tuple[float, int, int], ...]


@dataclass(frozen=True)
class ResidualScale:
    """The mean magnification of residuals in the micro images of a lens type at a depth.

    Zero if the model holds. What differs between lens types is the focus-vignetting effect, and
    says how far B can be trusted.

    Parameters
    ----------
    lens_type : int
    u_low, u_high : float
        Range of virtual depth.
    n : int
    percent, sigma_percent : float
    """

    lens_type: int
    u_low: float
    u_high: float
    n: int
    percent: float
    sigma_percent: float


@dataclass(frozen=True)
class AdjustSummary:
    """How an adjustment went.

    Parameters
    ----------
    converged : bool
    reason : str
        Why the last solve stopped.
    stages : tuple of Stage
    n_observations, n_used, n_views, n_points : int
    rms_px : float
        Root mean square of the residuals per axis, over the observations that are used.
    rms_all_px : float
        The same over all observations.
    noise : float
        Estimated factor on the observations' sigmas: in px if none were given.
    scale_source : str or None
    outliers : OutlierCounts
    residual_scale : tuple of ResidualScale
    findings : tuple of Finding
        What was noticed of the input and the result, and what would help.
    """

    converged: bool
    reason: str
    stages: tuple[Stage, ...]
    n_observations: int
    n_used: int
    n_views: int
    n_points: int
    rms_px: float
    rms_all_px: float
    noise: float
    scale_source: str | None
    outliers: OutlierCounts
    residual_scale: tuple[ResidualScale, ...]
    findings: tuple[Finding, ...]

    @property
    def iterations(self) -> int:
        """Number of iterations of all stages together."""
        return sum(stage.iterations for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        content = asdict(self)
        content["iterations"] = self.iterations
        content["findings"] = [finding.as_dict() for finding in self.findings]
        content["outliers"]["by_view"] = {
            str(view): counts for view, counts in self.outliers.by_view.items()
        }
        return content


def count_outliers(observations: Observations, used: BoolArray, radius_px: float) -> OutlierCounts:
    """Count what was rejected by view, lens type and radius."""
    rejected = ~used
    views = observations.view_indices
    n_views = len(observations.view_ids)
    all_views = np.bincount(views, minlength=n_views)
    bad_views = np.bincount(views[rejected], minlength=n_views)
    all_types = np.bincount(observations.lens_types)
    bad_types = np.bincount(observations.lens_types[rejected], minlength=len(all_types))
    offsets = observations.points_raw_px - observations.centers_raw_px
    place = np.hypot(offsets[:, 0], offsets[:, 1]) / radius_px * _RADIUS_BINS
    bins = np.minimum(place.astype(np.int64), _RADIUS_BINS)
    all_bins = np.bincount(bins, minlength=_RADIUS_BINS + 1)
    bad_bins = np.bincount(bins[rejected], minlength=_RADIUS_BINS + 1)
    limits = [*(radius_px * (i + 1) / _RADIUS_BINS for i in range(_RADIUS_BINS))]
    limits.append(max(limits[-1], float(place.max()) * radius_px / _RADIUS_BINS))
    return OutlierCounts(
        int(rejected.sum()),
        {
            int(view): (int(bad), int(n))
            for view, bad, n in zip(observations.view_ids, bad_views, all_views, strict=True)
        },
        tuple((int(bad), int(n)) for bad, n in zip(bad_types, all_types, strict=True)),
        tuple(
            (float(limit), int(bad), int(n))
            for limit, bad, n in zip(limits, bad_bins, all_bins, strict=True)
        ),
    )


def measure_residual_scale(
    layout: Layout, state: Reconstruction, noise: float, edges_u: FloatArray | None = None
) -> list[ResidualScale]:
    """Return the magnification of the residuals by lens type and virtual depth.

    Parameters
    ----------
    layout : Layout
    state : Reconstruction
    noise : float
        Residuals beyond four times it are left out.
    edges_u : (n + 1,) float64, optional
        Edges of the bins of virtual depth; four bins of equal counts unless given.
    """
    observations = layout.problem.observations
    residuals = layout.compute_residuals(state)
    # offsets as predicted: measured ones hold the noise, which would look like a scale
    offsets = observations.points_raw_px + residuals - observations.centers_raw_px
    views, points = observations.view_indices, observations.point_indices
    depth = (
        np.einsum("pj,pj->p", state.rotations[views, 2], state.points_world_mm[points])
        + state.translations_mm[views, 2]
    )
    u = state.array.alpha + state.array.beta_mm / depth
    good = layout.active & (layout.whitened_lengths(residuals) < 4.0 * noise)
    if edges_u is None:
        edges_u = np.quantile(u[good], np.linspace(0.0, 1.0, _DEPTH_BINS + 1))
    found = []
    for kind in range(observations.n_types):
        for low, high in pairwise(edges_u.tolist()):
            chosen = good & (observations.lens_types == kind) & (u >= low) & (u <= high)
            power = float(np.sum(offsets[chosen] ** 2))
            if chosen.sum() < 10 or power == 0.0:
                continue
            # seen minus measured: a measured image that is too large gives a negative product
            scale = -float(np.sum(residuals[chosen] * offsets[chosen])) / power
            sigma = float(np.sqrt(np.mean(residuals[chosen] ** 2) / power))
            found.append(
                ResidualScale(
                    kind, float(low), float(high), int(chosen.sum()), 100.0 * scale, 100.0 * sigma
                )
            )
    return found
