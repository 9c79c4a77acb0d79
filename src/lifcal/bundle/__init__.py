"""The bundle adjustment: start values, problem, solver, scale and gauge, covariance.

`adjust` does the whole adjustment with `AdjustOptions`; `cross_validate` compares halves of the
recording. `start_from_observations` and `start_from_sfm` find start values. `adjust` is built on
three parts that can also be used alone: a `Problem` holds observations, start values and priors,
`solve` minimizes its cost, and `compute_covariance` returns the covariance of the solution.
"""

from lifcal.bundle.adjustment import Adjustment, AdjustOptions, adjust
from lifcal.bundle.covariance import Covariance, compute_covariance, describe_weakness
from lifcal.bundle.cross_validation import (
    CrossValidation,
    Split,
    compare_halves,
    cross_validate,
)
from lifcal.bundle.focus import FocusTerm, focal_planes_from_paper
from lifcal.bundle.linear import Layout, Loss
from lifcal.bundle.problem import Follows, JointPrior, Prior, Problem
from lifcal.bundle.scale import CameraPositions, Distances, read_distances
from lifcal.bundle.selection import grid_from_observations
from lifcal.bundle.solver import Iteration, SolverOptions, SolverSummary, solve
from lifcal.bundle.start import (
    Start,
    VirtualPoints,
    fit_depth_line,
    fit_virtual_points,
    refit_depth,
    register_views,
    start_from_observations,
    start_from_sfm,
)
from lifcal.bundle.summary import (
    AdjustSummary,
    OutlierCounts,
    ResidualScale,
    Stage,
    measure_residual_scale,
)
from lifcal.bundle.virtual_start import VirtualStart, VirtualTracks, adjust_virtual

__all__ = [
    "AdjustOptions",
    "AdjustSummary",
    "Adjustment",
    "CameraPositions",
    "Covariance",
    "CrossValidation",
    "Distances",
    "FocusTerm",
    "Follows",
    "Iteration",
    "JointPrior",
    "Layout",
    "Loss",
    "OutlierCounts",
    "Prior",
    "Problem",
    "ResidualScale",
    "SolverOptions",
    "SolverSummary",
    "Split",
    "Stage",
    "Start",
    "VirtualPoints",
    "VirtualStart",
    "VirtualTracks",
    "adjust",
    "adjust_virtual",
    "compare_halves",
    "compute_covariance",
    "cross_validate",
    "describe_weakness",
    "fit_depth_line",
    "fit_virtual_points",
    "focal_planes_from_paper",
    "grid_from_observations",
    "measure_residual_scale",
    "read_distances",
    "refit_depth",
    "register_views",
    "solve",
    "start_from_observations",
    "start_from_sfm",
]
