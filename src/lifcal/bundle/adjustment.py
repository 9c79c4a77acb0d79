"""The whole adjustment: scale, noise, outliers, the choice of distortion terms.

`solve` minimises one cost; `adjust` is the sequence of solves that ends in a calibrated camera.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, read_only
from lifcal.bundle.covariance import (
    Covariance,
    add_magnification_error,
    add_scale_error,
    add_tilt_error,
    compare_lengths,
    compute_covariance,
    describe_weakness,
    hold_uncertain,
)
from lifcal.bundle.cross_validation import CrossValidation
from lifcal.bundle.degeneracy import (
    check_count,
    check_enough,
    describe_geometry,
    describe_misfit,
    list_ids,
)
from lifcal.bundle.focus import FocusTerm
from lifcal.bundle.linear import LOSSES, Layout, count_parameters
from lifcal.bundle.minima import OtherMinimum, describe_other_minimum, find_other_minimum
from lifcal.bundle.problem import LENGTHS, JointPrior, Prior, Problem
from lifcal.bundle.scale import CameraPositions, Distances, compute_spans, find_ids
from lifcal.bundle.selection import (
    check_inside,
    grid_from_observations,
    keep_known_points,
    keep_known_views,
    mend_depth,
    restrict,
    select,
    select_distances,
    select_positions,
)
from lifcal.bundle.solver import Iteration, SolverOptions, SolverSummary, solve
from lifcal.bundle.start import Start
from lifcal.bundle.summary import AdjustSummary, Stage, count_outliers, measure_residual_scale
from lifcal.camera import (
    TILT_PARAMETERS,
    ArrayTilt,
    MicroLensGrid,
    NoDistortion,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.camera.distortion import DISTORTION_MODELS
from lifcal.diagnostics import Finding
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, Reconstruction, find_worlds

_RAYLEIGH_MEDIAN = 1.1774
"""Median length of a residual of two normal coordinates, in standard deviations."""
_LEAST_NOISE = 1e-5
"""Least factor on the sigmas of observations. Exact observations would drown what else is known
(distances, priors) in rounding."""

_TRIED = ("k1", "k2")
"""Brown's terms that 'auto' tries, in this order; each needs the one before. k0, p0 and p1 are
always estimated: left out although they are there, they move c and F by several sigmas."""
_PRICE = 2.0
"""By how much twice the cost must fall for each term (Akaike's criterion). Chance alone makes it
fall by 1."""
_CLEAR_TILT = 16.0
"""Least square of the tilt in its own sigmas, from which on it is estimated. Errors that points of
one surface share look like a tilt of two to three sigmas on cameras that have none."""
_ERROR_ACROSS = 2.0
"""Error of the magnification of micro images between the middle and a border of the image, as a
multiple of that between near and far points. On 24 small simulated recordings with a tilted array,
the tilt comes out too small by what an error of 0.045 % explains, and on three of a Raytrix R5 by
what 0.02 to 0.03 % do."""
_TILT_SIGMA_CORNER = 0.02
"""Standard deviation of the prior on the array's tilt where no scale is known and B is not metric:
the relative change of B from the principal point to the image's corner. 0.05 degrees make it 1.7 %
for a Raytrix R5."""
TILTS = ("auto", "none", "free")
"""What can be asked of the tilt of the micro-lens array."""
_MOST_SOLVES = 8
"""Solves of a stage until noise and outliers must have settled; three are usual."""
_MANY_REJECTED = 0.2
"""Share of rejected observations from which a finding says so: a detector is rarely wrong so
often."""
_ROUGH = 1e-4
"""A solve to this tolerance or a larger one only has to come near the solution."""
_MOST_OFF_KNOWN = 0.2
"""Relative difference between known f_L and B and what the images say from which the known ones are
of another lens."""
_CONTRADICTION = 0.1
"""Relative difference of lengths that no noise explains. A distance that is off by more, or a
position that is off by this part of the extent of all, is left out."""
_DOUBT = 0.01
"""Error of a known camera position, as a part of the extent of all, from which the position is
named but kept."""
_CONTRADICTS, _LEAST_WRONG = 6.0, 0.005
"""A known distance contradicts the others if it is off by more than this many sigmas, and by more
than this relative error."""
_END_ERROR_PX = 0.1
"""Error of an end of a distance that all its observations share, in px of the virtual image. Places
in micro images have a common error of about 0.03 px, which the virtual image shows about three
times as large. It counts for small markers: at a side of 20 px it is 0.7 % of the length."""
_WRONG_SHARE = 0.5
"""A view with a larger share of rejected observations does not belong to the others."""


@dataclass(frozen=True, eq=False)
class AdjustOptions:
    """Options of `adjust`: which parameters are estimated, and how.

    Parameters
    ----------
    loss : 'none', 'huber' or 'cauchy'
        Robust loss on the length of a residual. With the Cauchy loss, wrong matches have hardly any
        influence.
    distortion : str
        'auto', 'none', 'brown' or 'division'. With 'auto', Brown's k0, p0 and p1 are estimated, and
        k1 and k2 if they lower the cost enough (Akaike's criterion).
    tilt : 'auto', 'none' or 'free'
        Whether the tilt of the micro-lens array is estimated: 'auto' estimates it if it lowers the
        cost enough, 'none' never, and 'free' always.
    tilt_sigma_deg : float
        Standard deviation of the prior on each of the two tilt angles of the array; the mean of the
        prior is zero. The published calibration of a Raytrix R12 has angles of 0.02 degrees. If no
        scale is known, a fixed prior on the relative change of B over the image is used instead.
    fixed : mapping of str to float or None
        Intrinsics that are held, by name: at the given value, or at the start value if it is None.
    priors : mapping of str to Prior
        Priors of intrinsics, by name.
    focus : FocusTerm or None
        The focus-vignetting term; if None, the model has no such term.
    focus_strength : float or Prior
        Strength of the focus-vignetting term. A number is held, and a prior is estimated.
    plane_error : float
        Relative error that all focal planes of `focus` have in common. It is added to the
        covariance. The focal planes themselves are held, so their `plane_sigma` must be 0.
    clustered : bool
        Whether the errors of observations of the same point may be correlated. If so, the
        correlation is estimated from the residuals, and the sigmas grow accordingly.
    scale_error : float
        Relative error that all known lengths have in common. It is added to the covariance.
    magnification_error : float
        Relative error of the magnification of micro images between near and far points. It is added
        to the covariance. Twice as much is assumed between the middle of the image and its border;
        this is an error of the tilt.
    reject_sigmas : float or None
        Observations whose residual is larger than this many sigmas are rejected; if None, none are.
    max_iterations : int
        Largest number of iterations of each solve.
    poses, points : bool
        Whether the covariances of poses and of points are computed too.
    """

    loss: str = "cauchy"
    distortion: str = "brown"
    tilt: str = "auto"
    tilt_sigma_deg: float = 0.05
    fixed: Mapping[str, float | None] = field(default_factory=dict)
    priors: Mapping[str, Prior] = field(default_factory=dict)
    focus: FocusTerm | None = None
    focus_strength: float | Prior = 0.0
    plane_error: float = 0.0
    scale_error: float = 0.0
    magnification_error: float = 0.0
    clustered: bool = False
    reject_sigmas: float | None = 5.0
    max_iterations: int = 50
    poses: bool = False
    points: bool = False

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError.unknown("loss", self.loss, LOSSES)
        if not self.tilt_sigma_deg > 0.0:
            raise InputError(f"tilt_sigma_deg is {self.tilt_sigma_deg}, needs a positive number")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}, needs 1 or more")
        if self.distortion != "auto" and self.distortion not in DISTORTION_MODELS:
            raise ConfigError.unknown(
                "distortion model", self.distortion, ("auto", *DISTORTION_MODELS)
            )
        if self.tilt not in TILTS:
            raise ConfigError.unknown("tilt option", self.tilt, TILTS)
        if not min(self.plane_error, self.scale_error, self.magnification_error) >= 0.0:
            raise InputError(
                "plane_error, scale_error and magnification_error need 0 or a positive number"
            )
        if self.plane_error > 0.0 and self.focus is not None and self.focus.plane_sigma > 0.0:
            raise InputError("focal planes are held with an error or estimated, not both")
        if self.reject_sigmas is not None and not self.reject_sigmas >= 3.0:
            raise InputError(
                f"reject_sigmas is {self.reject_sigmas}: below 3 good observations would go"
            )


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Result of the bundle adjustment: the calibrated camera, poses, points and their covariance.

    Parameters
    ----------
    camera : PlenopticCamera
        The calibrated camera.
    problem : Problem
        The problem that was solved last. Its observations include the rejected ones.
    state : Reconstruction
        The solution.
    covariance : Covariance
    residuals_px : (n_obs, 2) float64
        Predicted minus measured place of each observation.
    summary : AdjustSummary
    cross_validation : CrossValidation or None
        Comparison of halves of the recording, if `cross_validate` was called.
    """

    camera: PlenopticCamera
    problem: Problem
    state: Reconstruction
    covariance: Covariance
    residuals_px: FloatArray
    summary: AdjustSummary
    cross_validation: CrossValidation | None = None

    @property
    def cam_from_world(self) -> tuple[RigidTransform, ...]:
        """Pose of each view."""
        return self.state.cam_from_world


class _Stage(NamedTuple):
    state: Reconstruction
    problem: Problem
    layout: Layout
    noise: float
    cost: float


def adjust(
    observations: Observations,
    start: Start | Reconstruction,
    pixel_size_mm: float,
    grid: MicroLensGrid | tuple[int, int],
    options: AdjustOptions | None = None,
    *,
    distances: Distances | None = None,
    positions: CameraPositions | None = None,
    joint: JointPrior | None = None,
    on_iteration: Callable[[str, Iteration], None] | None = None,
) -> Adjustment:
    """Calibrate a camera from observations and start values.

    Parameters
    ----------
    observations : Observations
    start : Start or Reconstruction
        Start values: the result of `start_from_sfm` or `start_from_observations`, or a
        reconstruction from elsewhere.
    pixel_size_mm : float
    grid : MicroLensGrid or (int, int)
        The grid of the camera, or the image size. If only the size is given, the grid is the list
        of the centers in the observations.
    options : AdjustOptions, optional
    distances, positions : optional
        Known distances and known camera positions, which give the metric scale. Without them (and
        without known f_L, b_L0 or B), lengths in the scene, beta and B have no metric meaning, and
        the summary says so.
    joint : JointPrior, optional
        What is known of intrinsics of the pinhole-array form, with their correlations.
    on_iteration : callable, optional
        Called with the name of the stage and the `Iteration` after every iteration.

    Raises
    ------
    InputError
        If the arguments contradict each other, for example in their shapes or ids.
    EstimationError
        If the input does not determine the camera; the message says why and what to do.
    """
    options = options or AdjustOptions()
    if not isinstance(grid, MicroLensGrid):
        grid = grid_from_observations(observations, grid)
    check_inside(observations, grid.image_size)
    findings: list[Finding] = []
    observations, state = select(observations, start, grid, findings)
    check_enough(observations)
    state = mend_depth(observations, state, pixel_size_mm)
    distances = keep_known_points(distances, observations, findings)
    positions = keep_known_views(positions, observations, findings)
    run = _Run(options, on_iteration)
    problem = _make_problem(observations, state, pixel_size_mm, options, distances, positions)
    problem = replace(problem, joint=joint)
    problem = _add_tilt_prior(problem, options, grid.image_size)
    if problem.scale_source is None:
        findings.append(
            Finding.of(
                "no-scale",
                "no scale was given: F, c, alpha and the distortion do not need one, but lengths "
                "in the scene, beta, B, b_L0 and f_L have no metric meaning. Give distances, "
                "markers or camera positions",
            )
        )
    try:
        check_count(Layout(problem))
        stage = _try_tilt(run, _choose_terms(run, run.settle_shape(problem)))
        residuals = stage.layout.compute_residuals(stage.state)
        inflation = _inflation(stage, options, residuals)
        covariance = _covariance(stage, options, inflation, grid)
        other = run.look_elsewhere(stage, covariance, inflation)
        if other is not None and not other.comparable and other.excess < 0.0:
            stage = run.settle(
                "from another start", replace(stage.problem, start=other.state), stage.noise
            )
            residuals = stage.layout.compute_residuals(stage.state)
            inflation = _inflation(stage, options, residuals)
            covariance = _covariance(stage, options, inflation, grid)
    except EstimationError as error:
        reasons = describe_geometry(problem.start, observations)
        if reasons:
            raise EstimationError(
                f"{_join(reasons)} ({error})", stage=error.stage, evidence=error.evidence
            ) from error
        raise
    reasons = describe_geometry(stage.state, stage.problem.observations)
    rejected = 1.0 - float(stage.problem.active_mask.mean())
    if rejected > _MANY_REJECTED:
        reasons.append(
            Finding.of(
                "many-rejected",
                f"{100.0 * rejected:.0f} % of the observations do not fit and are rejected: are "
                "points matched wrongly, or is this more than one camera, or one that was "
                "refocused?",
                share=rejected,
            )
        )
    if other is not None and other.comparable:
        reasons.append(describe_other_minimum(stage.state, other))
    _check_worth(covariance, stage.state, reasons)
    last = run.last
    if not last.converged:
        findings.append(
            Finding.of(
                "not-converged",
                f"the adjustment did not converge ({last.reason})",
                reason=last.reason,
            )
        )
    metric = stage.problem.scale_source is not None
    findings += reasons
    findings += describe_misfit(stage.layout, stage.state, stage.noise)
    findings += describe_weakness(covariance, stage.state, pixel_size_mm, metric=metric)
    findings += run.findings
    findings += _check_known_optics(run, stage)
    n_camera = stage.problem.n_camera
    camera = PlenopticCamera.from_pinhole_array(
        stage.state.array,
        pixel_size_mm,
        grid,
        stage.state.distortion,
        stage.problem.scale_source,
        covariance.array[:n_camera, :n_camera],
        stage.state.array_tilt,
    )
    used = stage.problem.active_mask
    summary = AdjustSummary(
        converged=last.converged,
        reason=last.reason,
        stages=tuple(run.stages),
        n_observations=len(stage.problem.observations),
        n_used=int(used.sum()),
        n_views=len(stage.problem.observations.view_ids),
        n_points=len(stage.problem.observations.point_ids),
        rms_px=float(np.sqrt(np.mean(residuals[used] ** 2))),
        rms_all_px=float(np.sqrt(np.mean(residuals**2))),
        noise=stage.noise,
        scale_source=stage.problem.scale_source,
        outliers=count_outliers(stage.problem.observations, used, grid.radius_px),
        residual_scale=tuple(measure_residual_scale(stage.layout, stage.state, stage.noise)),
        findings=tuple(findings),
    )
    return Adjustment(camera, stage.problem, stage.state, covariance, read_only(residuals), summary)


def _covariance(
    stage: _Stage, options: AdjustOptions, inflation: float, grid: MicroLensGrid
) -> Covariance:
    """Return the covariance, with the errors that the observations know nothing of."""
    problem, state = stage.problem, stage.state
    uncertain = options.plane_error > 0.0
    free = problem
    if options.tilt == "auto" and not set(TILT_PARAMETERS) & set(options.fixed):
        # A tilt that was left out is not known to be zero, and takes a part in every sigma.
        free = _release(free, TILT_PARAMETERS)
    if free.focus is not None and uncertain:
        # free, with any prior: it drops out again
        free = replace(free, focus=replace(free.focus, plane_sigma=1.0))
    layout = stage.layout if free is problem else Layout(replace(free, start=state))
    covariance = compute_covariance(
        layout,
        state,
        stage.noise,
        inflation=inflation,
        clustered=SolverOptions(loss=options.loss, noise=stage.noise).make_loss()
        if options.clustered
        else None,
        bend=grid.bend,
        poses=options.poses,
        points=options.points,
    )
    if problem.focus is not None and uncertain:
        inverse_planes = 1.0 / state.focal_planes
        names = covariance.names[-len(inverse_planes) :]
        common = options.plane_error * inverse_planes
        covariance = hold_uncertain(covariance, names, np.outer(common, common))
    if options.scale_error > 0.0 and problem.scale_source is not None:
        covariance = add_scale_error(covariance, state, problem.pixel_size_mm, options.scale_error)
    if options.magnification_error > 0.0:
        pair_points, pair_views, _ = stage.layout.pairs
        axes = state.rotations[pair_views, 2]
        depth = np.sum(axes * state.points_world_mm[pair_points], axis=1)
        depth += state.translations_mm[pair_views, 2]
        u = state.array.alpha + state.array.beta_mm / depth
        error, pixel_size_mm = options.magnification_error, problem.pixel_size_mm
        if not problem.uses_physical:
            covariance = add_magnification_error(covariance, state, pixel_size_mm, u, error)
        reach_px = 0.5 * np.array(grid.image_size)
        covariance = add_tilt_error(
            covariance, state, pixel_size_mm, u, reach_px, _ERROR_ACROSS * error
        )
    return covariance


# Before the first solve


def _make_problem(
    observations: Observations,
    state: Reconstruction,
    pixel_size_mm: float,
    options: AdjustOptions,
    distances: Distances | None,
    positions: CameraPositions | None,
) -> Problem:
    model = "brown" if options.distortion == "auto" else options.distortion
    if state.distortion.name != model:
        if model == "none":
            state = replace(state, distortion=NoDistortion())
        else:
            state = replace(state, distortion=DISTORTION_MODELS[model]())
    fixed = dict(options.fixed)
    priors = dict(options.priors)
    if options.distortion == "auto":
        fixed.update({name: 0.0 for name in _TRIED if name not in (*fixed, *options.priors)})
    if isinstance(options.focus_strength, Prior):
        strength = options.focus_strength.value
        if options.focus is not None:
            priors["g"] = options.focus_strength
    else:
        strength = options.focus_strength
        if options.focus is not None:
            fixed["g"] = strength
    state = state.with_focus(
        None if options.focus is None else options.focus.focal_planes, strength
    )
    if options.tilt == "none":
        state = replace(state, tilt=np.zeros(0))
    elif options.tilt == "auto" or len(state.tilt) == 0:
        state = replace(state, tilt=np.zeros(2))
    problem = Problem(
        observations,
        pixel_size_mm,
        state,
        tuple(fixed),
        priors,
        distances,
        positions,
        options.focus,
    )
    # each world is that of its first view
    poses = state.cam_from_world
    state = problem.worlds.move(
        state, {world: poses[view] for world, view in problem.held_views.items()}
    )
    problem = replace(problem, start=_scale_state(state, observations, distances, positions))
    return replace(problem, start=_apply_fixed(problem, fixed))


def _add_tilt_prior(
    problem: Problem, options: AdjustOptions, image_size: tuple[int, int]
) -> Problem:
    """Return the problem with a prior on the array's tilt, which is held where it is only tried."""
    if options.tilt == "none":
        return problem
    if problem.scale_source is None:
        sigma = _TILT_SIGMA_CORNER / (0.5 * float(np.hypot(*image_size)))
    else:
        b = problem.start.array.to_physical(problem.pixel_size_mm).array_to_sensor_mm
        angles = np.array([options.tilt_sigma_deg, 0.0])
        sigma = abs(ArrayTilt.from_angles(angles, b, problem.pixel_size_mm).x_per_px)
    weak = {name: Prior(0.0, sigma) for name in TILT_PARAMETERS}
    fixed = problem.fixed
    if options.tilt == "auto" and not set(TILT_PARAMETERS) & {*fixed, *problem.priors}:
        fixed = (*fixed, *TILT_PARAMETERS)
    return replace(problem, fixed=fixed, priors={**weak, **problem.priors})


def _scale_state(
    state: Reconstruction,
    observations: Observations,
    distances: Distances | None,
    positions: CameraPositions | None,
) -> Reconstruction:
    """Bring the start to the scale (and frame) of what is known."""
    if positions is not None:
        worlds = find_worlds(observations)
        views = find_ids(positions.view_ids, observations.view_ids, "view")
        of_places = worlds.of_views[views]
        places = state.positions_world_mm()[views]
        target = positions.positions_world_mm
        centered, wanted = worlds.center(places, of_places), worlds.center(target, of_places)
        spread = float(np.sum(centered**2))
        if spread == 0.0:
            raise EstimationError(
                "the camera stood still, its known positions moved: they do not belong together",
                stage="scale",
            )
        # each world is turned on its own, and all are scaled by one factor
        rotations, along = {}, 0.0
        for world in np.unique(of_places).tolist():
            mine = of_places == world
            u, _, vt = np.linalg.svd(wanted[mine].T @ centered[mine])
            sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
            rotations[world] = (u * sign) @ vt
            along += float(np.sum(wanted[mine] * (centered[mine] @ rotations[world].T)))
        factor = along / spread
        if not factor > 0.0:
            raise EstimationError("the known camera positions do not fit the views", stage="scale")
        state = state.scaled(factor)
        moves = {}
        for world, rotation in rotations.items():
            mine = of_places == world
            middle = places[mine].mean(axis=0) * factor
            moves[world] = RigidTransform(rotation, target[mine].mean(axis=0) - rotation @ middle)
        return worlds.move(state, moves)
    if distances is not None:
        ids = distances.point_ids
        ends = find_ids(ids.ravel(), observations.point_ids, "point").reshape(ids.shape)
        lengths = np.linalg.norm(compute_spans(state.points_world_mm, ends), axis=1)
        good = lengths > 0.0
        if not good.any():
            raise EstimationError(
                "the points between which distances are known coincide at the start", stage="scale"
            )
        factor = float(np.median(distances.lengths_mm[good] / lengths[good]))
        return state.scaled(factor)
    return state


def _apply_fixed(problem: Problem, fixed: Mapping[str, float | None]) -> Reconstruction:
    """Return the start with the held values in it."""
    state = problem.start
    values = {name: float(value) for name, value in fixed.items() if value is not None}
    vector = state.as_vector()
    for name, value in values.items():
        if name not in LENGTHS:
            vector[problem.names.index(name)] = value
    state = state.with_intrinsics(vector)
    known = {name: values[name] for name in LENGTHS if name in values}
    for name, prior in problem.priors.items():
        if name == "B" and problem.distances is None and problem.positions is None:
            known.setdefault(name, prior.value)
    if not known:
        return state
    s, array = problem.pixel_size_mm, state.array
    length = array.focal_px * s
    if "f_L" in known and "B" in known:
        # alpha comes from the images: L^2 - L (B + f_L) + alpha B f_L = 0
        f, b = known["f_L"], known["B"]
        root = (b + f) ** 2 - 4.0 * array.alpha * b * f
        if not root > 0.0:
            raise EstimationError(
                f"f_L = {f:g} mm and B = {b:g} mm do not fit the images (alpha = "
                f"{array.alpha:.4g})",
                stage="scale",
            )
        found = 0.5 * (b + f + np.sqrt(root))
        if abs(found / length - 1.0) > _MOST_OFF_KNOWN:
            raise EstimationError(
                f"f_L = {f:g} mm and B = {b:g} mm do not fit the images: they say b_L0 + B = "
                f"{found:.4g} mm, the images {length:.4g} mm at pixels of {1000.0 * s:g} um",
                stage="scale",
            )
        length = found
    elif "b_L0" in known and "B" in known:
        length = known["b_L0"] + known["B"]
    if "B" in known:
        b = known["B"]
    elif "b_L0" in known:
        b = length - known["b_L0"]
    else:
        b = array.to_physical(s).array_to_sensor_mm
    beta = length**2 / b - length
    state = state.scaled(beta / array.beta_mm)
    array = replace(state.array, focal_px=length / s)
    physical = array.to_physical(s)
    physical = PhysicalParameters(
        known.get("f_L", physical.focal_length_mm),
        known.get("b_L0", physical.lens_to_array_mm),
        b,
        array.principal_x_px,
        array.principal_y_px,
    )
    return replace(state, array=physical.to_pinhole_array(s))


# Solves


class _Run:
    """The solves of one adjustment, and their record."""

    def __init__(
        self, options: AdjustOptions, on_iteration: Callable[[str, Iteration], None] | None
    ) -> None:
        self.options = options
        self.on_iteration = on_iteration
        self.stages: list[Stage] = []
        self.findings: list[Finding] = []
        self.last: SolverSummary

    def solve_once(
        self, name: str, problem: Problem, layout: Layout, noise: float, tolerance: float = 1e-8
    ) -> Reconstruction:
        """Solve and record."""
        # Cauchy's loss lets go of what is matched wrongly; Huber's is pulled by it.
        rough = tolerance > _ROUGH and self.options.loss == "huber"
        options = SolverOptions(
            loss="cauchy" if rough else self.options.loss,
            noise=noise,
            max_iterations=self.options.max_iterations,
            cost_tolerance=tolerance,
        )
        tell = self.on_iteration
        state, self.last = solve(
            problem,
            options,
            layout=layout,
            on_iteration=None if tell is None else lambda iteration: tell(name, iteration),
        )
        self.stages.append(
            Stage(
                name,
                len(self.last.iterations),
                self.last.reason,
                sum(iteration.seconds for iteration in self.last.iterations),
            )
        )
        return state

    def settle_shape(self, problem: Problem) -> _Stage:
        """Settle without distances and positions first, then with them.

        The scale is a gauge: far from the solution, stiff lengths only stand in the way.
        """
        distances, positions = problem.distances, problem.positions
        if distances is None and positions is None:
            return self.settle("adjustment", problem)
        loose = replace(problem, distances=None, positions=None)
        stage = self.settle("shape", loose, last=False)
        observations = stage.problem.observations
        if distances is not None:
            distances = self.agreeing_distances(stage, distances)
        if positions is not None:
            positions = self.agreeing_positions(stage.state, observations, positions)
        if distances is not None and positions is not None:
            self._compare_scales(stage.state, observations, distances, positions)
        state = _scale_state(stage.state, observations, distances, positions)
        problem = replace(stage.problem, start=state, distances=distances, positions=positions)
        return self.settle("adjustment", problem, stage.noise)

    def agreeing_distances(self, stage: _Stage, distances: Distances) -> Distances:
        """Leave out distances that contradict the others, by what the images know of them.

        Raises
        ------
        EstimationError
            If there is no majority, and they differ so much that no sigma explains it.
        """
        distances = select_distances(distances, stage.problem.observations)
        n = len(distances.lengths_mm)
        if n < 2:
            return distances
        found, covariance = compare_lengths(stage.problem, stage.state, distances, stage.noise)
        if covariance is None:
            return distances
        off = np.log(distances.lengths_mm / found)
        shown_px = _measure_on_images(stage, distances, found)
        covariance = covariance + np.diag(
            (distances.sigmas_mm / distances.lengths_mm) ** 2
            + 2.0 * (_END_ERROR_PX / shown_px) ** 2
        )
        good = np.ones(n, np.bool_)
        while good.sum() > 1:
            inverse = np.linalg.inv(covariance[np.ix_(good, good)])
            pull = inverse @ (off[good] - np.median(off[good]))
            sigmas = np.abs(pull) / np.sqrt(np.diag(inverse))
            wrong = pull / np.diag(inverse)  # by so much, if all others are right
            worst = int(np.argmax(sigmas))
            if sigmas[worst] < _CONTRADICTS or abs(wrong[worst]) < _LEAST_WRONG:
                break
            index = int(np.flatnonzero(good)[worst])
            given = float(distances.lengths_mm[index])
            said = (
                f"the distance of {distances.labels[index]} is "
                f"{given * np.exp(-wrong[worst]):.4g} mm by the others, not {given:g} mm"
            )
            if good.sum() - 1 <= n / 2.0:
                if abs(wrong[worst]) > _CONTRADICTION:
                    raise EstimationError(
                        f"the known distances contradict each other: {said}. Check them, their "
                        "units, and whether points are matched rightly",
                        stage="scale",
                    )
                self.findings.append(
                    Finding.of(
                        "distances-disagree",
                        "the known distances disagree by more than their sigmas, and bend the "
                        f"result: {said}",
                        distance=distances.labels[index],
                        relative_error=float(wrong[worst]),
                    )
                )
                return distances
            good[index] = False
        if not good.all():
            names = "; ".join(distances.labels[i] for i in np.flatnonzero(~good)[:5])
            self.findings.append(
                Finding.of(
                    "distances-left-out",
                    f"{int((~good).sum())} of {n} distances contradict the others and are left out "
                    f"({names}): {said}",
                    distances=[distances.labels[i] for i in np.flatnonzero(~good)],
                )
            )
        return distances.select(good)

    def _compare_scales(
        self,
        state: Reconstruction,
        observations: Observations,
        distances: Distances,
        positions: CameraPositions,
    ) -> None:
        """Say if distances and positions are not of one scale."""
        first, second = (
            _scale_state(state, observations, *known).array.beta_mm
            for known in ((distances, None), (None, positions))
        )
        if abs(first / second - 1.0) > _LEAST_WRONG:
            self.findings.append(
                Finding.of(
                    "scales-disagree",
                    "the known lengths disagree: they are "
                    f"{100.0 * abs(first / second - 1.0):.2g} % "
                    f"{'larger' if first > second else 'smaller'} by the distances than by the "
                    "camera positions. One of them is wrong, and the result is between them",
                    ratio=float(first / second),
                )
            )

    def agreeing_positions(
        self, state: Reconstruction, observations: Observations, positions: CameraPositions
    ) -> CameraPositions:
        """Leave out known positions that are far from where the images put the camera.

        Raises
        ------
        EstimationError
            If those are more than a third.
        """
        positions = select_positions(positions, observations)
        kept = positions
        while True:
            places = find_ids(kept.view_ids, observations.view_ids, "view")
            aligned = _scale_state(state, observations, None, kept)
            off = np.linalg.norm(
                aligned.positions_world_mm()[places] - kept.positions_world_mm, axis=1
            )
            worlds = find_worlds(observations)
            spread = worlds.center(kept.positions_world_mm, worlds.of_views[places])
            size = float(np.sqrt(np.mean(np.sum(spread**2, axis=1))))
            worst = int(np.argmax(off / np.maximum(10.0 * kept.sigmas_mm, _CONTRADICTION * size)))
            if off[worst] <= max(10.0 * float(kept.sigmas_mm[worst]), _CONTRADICTION * size):
                break
            if len(kept.view_ids) - 1 < max(3, 2 * len(positions.view_ids) // 3):
                raise EstimationError(
                    f"the known camera positions do not fit the views: that of view "
                    f"{kept.view_ids[worst]} is off by {off[worst]:.3g} mm, and others too. Check "
                    "units, axes and which view is which",
                    stage="scale",
                )
            kept = select_positions(
                kept.select(np.arange(len(kept.view_ids)) != worst), observations
            )
        if off[worst] > max(10.0 * float(kept.sigmas_mm[worst]), _DOUBT * size):
            self.findings.append(
                Finding.of(
                    "position-far",
                    f"the known position of view {kept.view_ids[worst]} is {off[worst]:.3g} mm "
                    "from where the images put it, many of its sigmas",
                    view=int(kept.view_ids[worst]),
                    distance_mm=float(off[worst]),
                )
            )
        if len(kept.view_ids) < len(positions.view_ids):
            gone = np.setdiff1d(positions.view_ids, kept.view_ids)
            self.findings.append(
                Finding.of(
                    "positions-left-out",
                    f"{len(gone)} known camera positions are left out, because the images put the "
                    f"camera elsewhere: views {list_ids(gone.tolist())}",
                    views=gone.tolist(),
                )
            )
        return kept

    def settle(
        self, name: str, problem: Problem, noise: float | None = None, *, last: bool = True
    ) -> _Stage:
        """Solve until the noise and the set of outliers do not change.

        Without `last`, nearly: another stage follows that does so from there.
        """
        layout = Layout(problem)
        state = problem.start
        end = 1e-8 if last else _ROUGH
        tolerance = end
        if noise is None:
            # Far from the solution: the median; the first solve only has to come near, and what is
            # matched wrongly must not bend the lens.
            noise, tolerance = _estimate_noise(layout, state, "huber"), 1e-3
            lens = tuple(state.distortion.parameter_names())
            held = tuple(name for name in lens if name not in problem.fixed)
            layout = Layout(replace(problem, fixed=(*problem.fixed, *held)))
        for _ in range(_MOST_SOLVES):
            state = self.solve_once(name, layout.problem, layout, noise, tolerance)
            rough, tolerance = tolerance > end, end
            lengths = layout.whitened_lengths(layout.compute_residuals(state))
            found = _estimate_noise(layout, state, self.options.loss)
            active = problem.active_mask
            if self.options.reject_sigmas is not None:
                active = lengths <= self.options.reject_sigmas * found
            wrong = np.zeros_like(active)
            if rough:
                active = _keep_points(layout, active)  # they may still find their places
            else:
                wrong = self.find_wrong(problem, active)
            changed = int((active != problem.active_mask).sum())
            settled = abs(found - noise) < 0.02 * noise and changed < 1e-3 * len(active) + 1
            settled = (settled or not last) and not rough and not wrong.any()
            noise = found
            problem = replace(problem, start=state, active=read_only(active))
            if wrong.any():
                problem = _leave_out(problem, wrong)
                state = problem.start
            if settled:
                break
            layout = Layout(problem)
        else:
            layout = Layout(problem)
            if last:
                self.findings.append(
                    Finding.of(
                        "not-settled",
                        "noise and outliers still changed when the adjustment stopped",
                    )
                )
        loss = SolverOptions(loss=self.options.loss, noise=noise).make_loss()
        return _Stage(state, problem, layout, noise, layout.compute_cost(state, loss))

    def look_elsewhere(
        self, stage: _Stage, covariance: Covariance, inflation: float
    ) -> OtherMinimum | None:
        """Return another minimum, if the observations leave one."""
        options = SolverOptions(
            loss=self.options.loss, noise=stage.noise, max_iterations=self.options.max_iterations
        )
        sigma = covariance.sigmas()["F"]
        return find_other_minimum(stage.problem, stage.state, options, sigma, inflation)

    def find_wrong(self, problem: Problem, active: BoolArray) -> BoolArray:
        """Tell which observations are of views or points that do not fit at all, and note these."""
        observations = problem.observations
        views, points = observations.view_indices, observations.point_indices
        good = np.bincount(views[active], minlength=len(observations.view_ids))
        of_view = good / np.bincount(views, minlength=len(good)) < 1.0 - _WRONG_SHARE
        wrong = of_view[views]
        if wrong.any():
            names = observations.view_ids[of_view].tolist()
            self.findings.append(
                Finding.of(
                    "views-left-out",
                    f"{len(names)} of {len(of_view)} views are left out, because they fit none of "
                    f"the others: {list_ids(names)}. Are their points matched wrongly, or is "
                    "another camera among them?",
                    views=names,
                )
            )
        if of_view.sum() > 0.5 * len(of_view):
            raise EstimationError(
                "most views do not fit one camera and one scene: are points matched wrongly, or is "
                "this more than one camera, or one that was refocused in between?",
                stage="bundle",
            )
        left = np.bincount(points[active & ~wrong], minlength=len(observations.point_ids))
        of_point = (left < 2) & (np.bincount(points[~wrong], minlength=len(left)) > 0)
        if of_point.any():
            names = observations.point_ids[of_point].tolist()
            self.findings.append(
                Finding.of(
                    "points-left-out",
                    f"{len(names)} of {len(of_point)} points are left out, because they fit in no "
                    f"view: {list_ids(names)}",
                    points=names,
                )
            )
        return np.asarray(wrong | of_point[points])


def _measure_on_images(stage: _Stage, distances: Distances, lengths: FloatArray) -> FloatArray:
    """Return about how long distances are in the virtual images that show them, px, (n,)."""
    state, observations = stage.state, stage.problem.observations
    points, views, _ = observations.pairs
    depth = np.einsum("pj,pj->p", state.rotations[views, 2], state.points_world_mm[points])
    depth += state.translations_mm[views, 2]
    n_points = len(observations.point_ids)
    counts = np.maximum(np.bincount(points, minlength=n_points), 1)
    means = np.bincount(points, depth, minlength=n_points) / counts
    ends = replace(stage.problem, distances=distances).distance_points
    of_ends = np.maximum(means[ends].mean(axis=(1, 2)), 1e-9)
    return np.asarray(np.maximum(state.array.focal_px * lengths / of_ends, 1e-9))


def _leave_out(problem: Problem, wrong: BoolArray) -> Problem:
    """Return the problem without some observations, and with what is known of the rest."""
    observations, state = restrict(problem.observations, problem.start, ~wrong)
    check_enough(observations)
    distances, positions = problem.distances, problem.positions
    if distances is not None:
        distances = select_distances(distances, observations)
    if positions is not None:
        positions = select_positions(positions, observations)
    return replace(
        problem,
        observations=observations,
        start=state,
        distances=distances,
        positions=positions,
        active=read_only(problem.active_mask[~wrong]),
    )


def _keep_points(layout: Layout, active: BoolArray) -> BoolArray:
    """Use all observations of a point that would be left with fewer than two."""
    index = layout.problem.observations.point_indices
    counts = np.bincount(index[active], minlength=layout.n_points)
    kept: BoolArray = active | (counts[index] < 2)
    return kept


def _estimate_noise(layout: Layout, state: Reconstruction, loss: str) -> float:
    """Return the factor on the sigmas: from the rms without a robust loss, else from the median."""
    lengths = layout.whitened_lengths(layout.compute_residuals(state))[layout.active]
    equations = 2 * len(lengths)
    correction = np.sqrt(equations / max(equations - count_parameters(layout, layout.active), 1))
    if loss == "none":
        noise = np.sqrt(np.mean(lengths**2) / 2.0) * correction
    else:
        noise = np.median(lengths) / _RAYLEIGH_MEDIAN * correction
    return max(float(noise), _LEAST_NOISE)


def _inflation(stage: _Stage, options: AdjustOptions, residuals: FloatArray) -> float:
    """Return the variance of the robust estimate over that of least squares with the same noise.

    E[psi^2] / E[psi']^2 over the residuals found; 1.05 for Huber and normal noise.
    """
    layout = stage.layout
    lengths = layout.whitened_lengths(residuals)[layout.active] / stage.noise
    s = lengths**2
    loss = SolverOptions(loss=options.loss).make_loss()
    limit = loss.scale**2
    weight, second = np.ones_like(s), np.zeros_like(s)
    if loss.name == "huber":
        far = s > limit
        weight[far] = loss.scale / lengths[far]
        second[far] = -0.5 * weight[far] / s[far]
    elif loss.name == "cauchy":
        weight = 1.0 / (1.0 + s / limit)
        second = -(weight**2) / limit
    equations = 2 * len(s)
    correction = equations / max(equations - count_parameters(layout, layout.active), 1)
    top = 0.5 * float(np.mean(weight**2 * s)) * correction
    value = top / float(np.mean(weight + second * s)) ** 2
    return max(value, (_LEAST_NOISE / stage.noise) ** 2)


def _choose_terms(run: _Run, stage: _Stage) -> _Stage:
    """Free further radial terms, each if it lowers the cost by more than chance would."""
    options = run.options
    if options.distortion != "auto":
        return stage
    chosen, gained = stage.problem, 0.0
    for name in _TRIED:
        if name in options.fixed or name in options.priors:
            continue
        freed = _release(chosen, (name,))
        fall = _predict_fall(run, stage, freed)
        if 2.0 * (fall - gained) <= _PRICE:
            break
        chosen, gained = freed, fall
    if chosen is stage.problem:
        return stage
    return run.settle("with further terms", replace(chosen, start=stage.state), stage.noise)


def _try_tilt(run: _Run, stage: _Stage) -> _Stage:
    """Free the tilt of the array if it lowers the cost by more than chance would.

    Observations of one point err together, and make the cost fall by more than its price even where
    there is no tilt: so the tilt must also be four of its own sigmas from zero.
    """
    options, price = run.options, _PRICE * len(TILT_PARAMETERS)
    if options.tilt != "auto" or set(TILT_PARAMETERS) & {*options.fixed, *options.priors}:
        return stage
    freed = _release(stage.problem, TILT_PARAMETERS)
    if 2.0 * _predict_fall(run, stage, freed) <= price:
        return stage
    tilted = run.settle("with tilt", replace(freed, start=stage.state), stage.noise)
    loss = SolverOptions(loss=options.loss, noise=tilted.noise).make_loss()
    covariance = compute_covariance(
        tilted.layout, tilted.state, tilted.noise, clustered=loss if options.clustered else None
    )
    places = [covariance.names.index(name) for name in TILT_PARAMETERS]
    inverse = np.linalg.inv(covariance.array[np.ix_(places, places)])
    tilt = tilted.state.tilt
    return tilted if float(tilt @ inverse @ tilt) > _CLEAR_TILT else stage


def _release(problem: Problem, names: tuple[str, ...]) -> Problem:
    """Return the problem with some parameters not held any more."""
    return replace(problem, fixed=tuple(name for name in problem.fixed if name not in names))


def _predict_fall(run: _Run, stage: _Stage, freed: Problem) -> float:
    """Return by how much the cost would fall, told by one step: the others are at their minimum."""
    solver = SolverOptions(loss=run.options.loss, noise=stage.noise)
    layout = Layout(replace(freed, start=stage.state))
    linearization = layout.linearize(stage.state, solver.make_loss())
    step = linearization.reduce(1e-9).solve(solver.sparse_from_views)
    return 0.0 if step is None else step.predicted


def _check_worth(covariance: Covariance, state: Reconstruction, reasons: list[Finding]) -> None:
    """Raise EstimationError if F or alpha is hardly determined at all."""
    sigmas = covariance.sigmas()
    relative = sigmas["F"] / state.array.focal_px
    if relative > 0.1:
        why = _join(reasons) or (
            "record more views, turned and from other distances, or check that points are matched "
            "rightly"
        )
        raise EstimationError(
            f"the observations do not determine the camera: F is known to {100 * relative:.0f} % "
            f"only: {why}",
            stage="bundle",
            evidence={"sigma_F_px": sigmas["F"], "F_px": state.array.focal_px},
        )


def _join(findings: list[Finding]) -> str:
    """Return what findings say, as one sentence."""
    return "; ".join(finding.text for finding in findings)


def _check_known_optics(run: _Run, stage: _Stage) -> list[Finding]:
    """Ask whether the images agree with a known f_L and B: with f_L free, what would it be?"""
    problem = stage.problem
    known = {*problem.fixed, *problem.priors}
    if not {"f_L", "B"} <= known or problem.distances is not None or problem.positions is not None:
        return []
    fixed = tuple(name for name in problem.fixed if name != "f_L")
    priors = {name: prior for name, prior in problem.priors.items() if name != "f_L"}
    freed = replace(problem, fixed=fixed, priors=priors, start=stage.state)
    layout = Layout(freed)
    state = run.solve_once("with f_L free", freed, layout, stage.noise)
    covariance = compute_covariance(layout, state, stage.noise)
    value = state.array.to_physical(problem.pixel_size_mm).focal_length_mm
    sigma = covariance.sigmas()["f_L"]
    prior = problem.priors.get("f_L")
    if prior is None:
        assumed = stage.state.array.to_physical(problem.pixel_size_mm).focal_length_mm
        spread = sigma
    else:
        # With f_L free nothing but its own prior tells B, so both f_L are compared at one B.
        assumed = prior.value
        names = covariance.physical_names
        i, j = names.index("f_L"), names.index("B")
        physical = covariance.physical
        slope = physical[i, j] / physical[j, j] if physical[j, j] > 0.0 else 0.0
        by_images = physical[i, i] - slope**2 * physical[j, j]
        follows = 0.0 if prior.follows is None else prior.follows.slope
        spread = float(
            np.sqrt(by_images + (slope - follows) ** 2 * physical[j, j] + prior.sigma**2)
        )
    pull = abs(value - assumed) / max(spread, 1e-300)
    fits = pull < 4.0
    verdict = "they fit" if fits else "the assumed f_L and B do not fit these images"
    return [
        Finding.of(
            "known-optics-fit" if fits else "known-optics-misfit",
            f"with f_L free it would be {value:.5g} +- {sigma:.2g} mm, {pull:.1f} sigma from the "
            f"assumed {assumed:.5g}: {verdict}",
            free_mm=value,
            sigma_mm=sigma,
            assumed_mm=assumed,
        )
    ]
