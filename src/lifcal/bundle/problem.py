"""What the adjustment solves: observations, start, what is held or known beforehand, the scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array, read_only
from lifcal.bundle.focus import FocusTerm
from lifcal.bundle.scale import CameraPositions, Distances, find_ids
from lifcal.camera import (
    ARRAY_PARAMETERS,
    TILT_PARAMETERS,
    PhysicalParameters,
)
from lifcal.errors import ConfigError, InputError
from lifcal.reconstruction import Observations, Reconstruction, Worlds, find_worlds

FOCUS_STRENGTH = "g"
"""Name of the strength of the focus-vignetting term among the parameters."""
LENGTHS = ("f_L", "b_L0", "B")
"""The physical parameters that the pinhole-array form does not have."""

_ARRAY_LENGTHS = ("F", "alpha", "beta")
"""Parameters of the pinhole-array form that the physical form does not have."""


@dataclass(frozen=True)
class Follows:
    """How the expected value of a parameter changes with that of another.

    Parameters
    ----------
    name : str
        The other parameter.
    value : float
        The other's value at which the prior has its own value.
    slope : float
        Change of the expected value by that of the other.
    """

    name: str
    value: float
    slope: float


@dataclass(frozen=True)
class Prior:
    """A value known beforehand, with its standard deviation.

    Parameters
    ----------
    value, sigma : float
    follows : Follows or None
        For a parameter that is correlated with another: sigma is then that given the other, which
        needs a prior of its own. Both must be of f_L, b_L0 and B.
    """

    value: float
    sigma: float
    follows: Follows | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.sigma) and self.sigma > 0.0):
            raise InputError(
                f"a prior of {self.value} +- {self.sigma} needs finite, positive sigma"
            )


@dataclass(frozen=True, eq=False)
class JointPrior:
    """What is known of several intrinsics together: a normal distribution.

    It is what is left of observations that have been used before, or of an earlier calibration.

    Parameters
    ----------
    names : tuple of str
        Intrinsics of the pinhole-array form.
    mean : (n,) float64
    covariance : (n, n) float64
        Positive definite.
    source : str
        Where it comes from; it gives the scale if beta is among the names.
    """

    names: tuple[str, ...]
    mean: FloatArray
    covariance: FloatArray
    source: str

    def __post_init__(self) -> None:
        n = len(self.names)
        mean = check_array(self.mean, "mean", (n,), finite=True)
        covariance = check_array(self.covariance, "covariance", (n, n), finite=True)
        object.__setattr__(self, "mean", read_only(mean.copy()))
        object.__setattr__(self, "covariance", read_only(covariance.copy()))
        scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        if len(set(self.names)) != n or not (scale > 0.0).all():
            raise InputError(f"a joint prior of {', '.join(self.names)} needs positive variances")
        scaled = covariance / scale[:, None] / scale
        if not np.linalg.eigvalsh(0.5 * (scaled + scaled.T))[0] > 0.0:
            raise InputError("the covariance of a joint prior is not positive definite")

    @cached_property
    def whitening(self) -> FloatArray:
        """Matrix that takes a deviation from the mean to independent standard deviations."""
        scale = np.sqrt(np.diag(self.covariance))
        factor = np.linalg.cholesky(self.covariance / scale[:, None] / scale)
        return read_only(np.linalg.inv(factor) / scale)

    def select(self, names: Collection[str]) -> JointPrior | None:
        """Return what is known of some of them, whatever the others are; None if of none."""
        places = [i for i, name in enumerate(self.names) if name in names]
        if not places:
            return None
        return JointPrior(
            tuple(self.names[i] for i in places),
            self.mean[places],
            self.covariance[np.ix_(places, places)],
            self.source,
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """A bundle adjustment, ready to be solved.

    Parameters
    ----------
    observations : Observations
    pixel_size_mm : float
    start : Reconstruction
        With one pose for each view and one point for each point of the observations.
    fixed : tuple of str
        Intrinsics that are held at their start values: F, c_x, c_y, alpha, beta, f_L, b_L0, B,
        a distortion coefficient, t_x, t_y, or g. All others are estimated; focal planes only if
        their sigma is not 0. Lengths of only one form (F, alpha, beta or f_L, b_L0, B) can be held.
    priors : mapping of str to Prior
        On any of the same names.
    distances : Distances or None
    positions : CameraPositions or None
    focus : FocusTerm or None
        None: the term is off. Else the start must have a strength: `Reconstruction.with_focus`.
    active : (n_obs,) bool or None
        Observations to use; None: all.
    joint : JointPrior or None
        On intrinsics of the pinhole-array form, besides `priors`.
    """

    observations: Observations
    pixel_size_mm: float
    start: Reconstruction
    fixed: tuple[str, ...] = ()
    priors: Mapping[str, Prior] = field(default_factory=dict)
    distances: Distances | None = None
    positions: CameraPositions | None = None
    focus: FocusTerm | None = None
    active: BoolArray | None = None
    joint: JointPrior | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.pixel_size_mm) and self.pixel_size_mm > 0.0):
            raise InputError(f"pixel_size_mm is {self.pixel_size_mm}, needs a positive number")
        n_views, n_points = len(self.observations.view_ids), len(self.observations.point_ids)
        if len(self.start.rotations) != n_views or len(self.start.points_world_mm) != n_points:
            raise InputError(
                f"the start has {len(self.start.rotations)} poses and "
                f"{len(self.start.points_world_mm)} points, the observations have {n_views} views "
                f"and {n_points} points"
            )
        expected = 0 if self.focus is None else 1 + len(self.focus.focal_planes)
        if len(self.start.focus) != expected:
            raise InputError(
                f"the start has {len(self.start.focus)} focus parameters, the focus term "
                f"{expected}: use Reconstruction.with_focus"
            )
        known = (*self.names, *LENGTHS)
        for name in (*self.fixed, *self.priors):
            if name not in known:
                raise ConfigError.unknown("parameter", name, known)
        for name in () if self.joint is None else self.joint.names:
            if name not in self.names:
                raise ConfigError.unknown("parameter", name, self.names)
        for name, prior in self.priors.items():
            if prior.follows is not None and not {name, prior.follows.name} <= set(LENGTHS):
                raise InputError(f"the prior of {name} follows {prior.follows.name}: not lengths")
        held = set(self.fixed)
        if held & set(LENGTHS) and held & set(_ARRAY_LENGTHS):
            raise ConfigError(
                f"cannot hold {', '.join(sorted(held & set(LENGTHS)))} together with "
                f"{', '.join(sorted(held & set(_ARRAY_LENGTHS)))}: hold lengths of one form"
            )
        if self.focus is not None and len(self.focus.focal_planes) < self.observations.n_types:
            raise InputError(
                f"{len(self.focus.focal_planes)} focal planes for {self.observations.n_types} lens "
                "types"
            )
        if self.active is not None and self.active.shape != (len(self.observations),):
            raise InputError(
                f"active has shape {self.active.shape}, needs one for each observation"
            )
        _ = self.distance_points, self.position_views  # finds strangers

    @property
    def names(self) -> tuple[str, ...]:
        """The intrinsics that are optimised, in order."""
        names = (*ARRAY_PARAMETERS, *self.start.distortion.parameter_names())
        if len(self.start.tilt):
            names = (*names, *TILT_PARAMETERS)
        if self.focus is None:
            return names
        return (*names, FOCUS_STRENGTH, *self.plane_names)

    @property
    def n_camera(self) -> int:
        """The first so many of `names` are the camera's own; those of the focus term follow."""
        return 5 + len(self.start.distortion.parameters) + len(self.start.tilt)

    @property
    def plane_names(self) -> tuple[str, ...]:
        """Names of the inverse focal planes."""
        n_types = 0 if self.focus is None else len(self.focus.focal_planes)
        return tuple(f"inverse_plane_{i}" for i in range(n_types))

    @cached_property
    def all_priors(self) -> dict[str, Prior]:
        """The priors, with those of the focal planes."""
        priors = dict(self.priors)
        if self.focus is not None and self.focus.plane_sigma > 0.0:
            for name, plane in zip(self.plane_names, self.focus.focal_planes, strict=True):
                priors.setdefault(name, Prior(1.0 / float(plane), self.focus.plane_sigma))
        return priors

    @property
    def uses_physical(self) -> bool:
        """Whether steps are taken in f_L, b_L0, B, because one of them is held."""
        return bool(set(self.fixed) & set(LENGTHS))

    @property
    def step_names(self) -> tuple[str, ...]:
        """The intrinsics in which steps are taken, in order."""
        if not self.uses_physical:
            return self.names
        return ("f_L", "b_L0", "B", "c_x", "c_y", *self.names[5:])

    @property
    def scale_source(self) -> str | None:
        """What makes the result metric; None: nothing, and beta is held."""
        sources = []
        if self.distances is not None:
            sources.append(self.distances.source)
        if self.positions is not None:
            sources.append("camera positions")
        exact = [name for name in LENGTHS if name in self.fixed]
        if exact:
            sources.append(f"known {', '.join(exact)} (exact)")
        uncertain = [name for name in LENGTHS if name in self.priors and name not in exact]
        if uncertain:
            sources.append(f"known {', '.join(uncertain)}")
        if "beta" in self.priors:
            sources.append("known beta")
        if self.joint is not None and "beta" in self.joint.names:
            sources.append(self.joint.source)
        return " and ".join(sources) or None

    @cached_property
    def free(self) -> BoolArray:
        """Which of `step_names` are estimated."""
        held = set(self.fixed)
        if self.focus is not None and self.focus.plane_sigma == 0.0:
            held |= set(self.plane_names)
        if self.scale_source is None:
            held.add("beta")
        return np.array([name not in held for name in self.step_names])

    @cached_property
    def worlds(self) -> Worlds:
        """The parts that share no point; each has a frame of its own."""
        return find_worlds(self.observations)

    @cached_property
    def position_worlds(self) -> IntArray:
        """World of each known position, (n,)."""
        return self.worlds.of_views[self.position_views]

    @cached_property
    def held_views(self) -> dict[int, int]:
        """The first view of each world, by world; those with known camera positions have none.

        The frame of a world is that of its first view, or that of the known positions.
        """
        known = set(self.position_worlds.tolist())
        firsts = enumerate(self.worlds.first_views.tolist())
        return {world: view for world, view in firsts if world not in known}

    @cached_property
    def distance_points(self) -> IntArray:
        """Point indices of the ends of the distances, (n, 2, n_members)."""
        if self.distances is None:
            return np.zeros((0, 2, 1), np.int64)
        ids = self.distances.point_ids
        return find_ids(ids.ravel(), self.observations.point_ids, "point").reshape(ids.shape)

    @cached_property
    def position_views(self) -> IntArray:
        """View indices of the known positions, (n,)."""
        if self.positions is None:
            return np.zeros(0, np.int64)
        return find_ids(self.positions.view_ids, self.observations.view_ids, "view")

    @cached_property
    def active_mask(self) -> BoolArray:
        """Which observations are used, (n_obs,)."""
        if self.active is None:
            return read_only(np.ones(len(self.observations), np.bool_))
        return read_only(np.ascontiguousarray(self.active, np.bool_))

    def step_jacobian(self, state: Reconstruction) -> FloatArray:
        """Return the derivative of the intrinsics by the `step_names`."""
        jacobian = np.eye(len(self.names))
        if self.uses_physical:
            physical = state.array.to_physical(self.pixel_size_mm)
            jacobian[:5, :5] = physical.array_jacobian(self.pixel_size_mm)
        return jacobian

    def step(
        self, state: Reconstruction, intrinsics: FloatArray, poses: FloatArray, points: FloatArray
    ) -> Reconstruction:
        """Move by a step whose intrinsics are those of `step_names`."""
        if not self.uses_physical:
            return state.step(intrinsics, poses, points)
        values = state.array.to_physical(self.pixel_size_mm).as_vector() + intrinsics[:5]
        array = PhysicalParameters(*map(float, values)).to_pinhole_array(self.pixel_size_mm)
        change = intrinsics.copy()
        change[:5] = array.as_vector() - state.array.as_vector()
        # set, not added, so that what is held stays to the last digit
        return replace(state.step(change, poses, points), array=array)
