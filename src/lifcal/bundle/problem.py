"""What the adjustment solves: observations, start, what is held or known beforehand, the scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array, read_only
from lifcal.bundle.focus import FocusTerm
from lifcal.bundle.observations import Observations
from lifcal.bundle.scale import CameraPositions, Distances, find_ids
from lifcal.camera import (
    ARRAY_PARAMETERS,
    TILT_PARAMETERS,
    ArrayTilt,
    Distortion,
    PhysicalParameters,
    PinholeArray,
)
from lifcal.errors import ConfigError, InputError
from lifcal.geometry import RigidTransform

FOCUS_STRENGTH = "g"
LENGTHS = ("f_L", "b_L0", "B")
"""The physical parameters that the pinhole-array form does not have."""

_ARRAY_LENGTHS = ("F", "alpha", "beta")


@dataclass(frozen=True, eq=False)
class BundleState:
    """All unknowns.

    Parameters
    ----------
    array : PinholeArray
    distortion : Distortion
    rotations : (n_views, 3, 3) float64
    translations_mm : (n_views, 3) float64
        Of `cam_from_world`.
    points_world_mm : (n_points, 3) float64
    focus : (0,) or (1 + n_types,) float64
        g of the focus-vignetting term and 1 / u_T of each lens type; empty: the term is off.
    tilt : (0,) or (2,) float64
        t_x and t_y of the micro-lens array; empty: the array is taken as parallel to the sensor.
    """

    array: PinholeArray
    distortion: Distortion
    rotations: FloatArray
    translations_mm: FloatArray
    points_world_mm: FloatArray
    focus: FloatArray = field(default_factory=lambda: np.zeros(0))
    tilt: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        rotations = check_array(self.rotations, "rotations", (None, 3, 3), finite=True)
        shifts = check_array(
            self.translations_mm, "translations_mm", (len(rotations), 3), finite=True
        )
        points = check_array(self.points_world_mm, "points_world_mm", (None, 3), finite=True)
        focus = check_array(self.focus, "focus", (None,), finite=True)
        tilt = check_array(self.tilt, "tilt", (None,), finite=True)
        if len(tilt) not in (0, 2):
            raise InputError(f"tilt has {len(tilt)} numbers, needs none or two")
        object.__setattr__(self, "focus", read_only(focus))
        object.__setattr__(self, "tilt", read_only(tilt))
        object.__setattr__(self, "rotations", read_only(rotations))
        object.__setattr__(self, "translations_mm", read_only(shifts))
        object.__setattr__(self, "points_world_mm", read_only(points))

    @classmethod
    def from_poses(
        cls,
        array: PinholeArray,
        distortion: Distortion,
        cam_from_world: Sequence[RigidTransform],
        points_world_mm: npt.ArrayLike,
    ) -> BundleState:
        """Build from transforms."""
        return cls(
            array,
            distortion,
            np.array([pose.rotation for pose in cam_from_world]).reshape(-1, 3, 3),
            np.array([pose.translation_mm for pose in cam_from_world]).reshape(-1, 3),
            np.asarray(points_world_mm, np.float64),
        )

    @property
    def cam_from_world(self) -> tuple[RigidTransform, ...]:
        """The poses as transforms."""
        return tuple(map(RigidTransform, self.rotations, self.translations_mm))

    @property
    def focus_strength(self) -> float:
        """Strength of the focus-vignetting term; 0 where it is off."""
        return float(self.focus[0]) if len(self.focus) else 0.0

    @property
    def focal_planes(self) -> FloatArray:
        """u_T of each lens type; empty where the focus term is off."""
        return np.asarray(1.0 / self.focus[1:])

    @property
    def array_tilt(self) -> ArrayTilt | None:
        """The tilt as the camera holds it; None where the array is taken as parallel."""
        return ArrayTilt(*self.tilt.tolist()) if len(self.tilt) else None

    def with_focus(self, term: FocusTerm | None, strength: float = 0.0) -> BundleState:
        """Return the state with the focus term on (at its focal planes) or off."""
        if term is None:
            return replace(self, focus=np.zeros(0))
        return replace(self, focus=np.concatenate([[strength], 1.0 / term.focal_planes]))

    def positions_world_mm(self) -> FloatArray:
        """Return where the camera was, (n_views, 3)."""
        return np.asarray(-np.einsum("vji,vj->vi", self.rotations, self.translations_mm))

    def as_vector(self) -> FloatArray:
        """Return the intrinsics: F, c_x, c_y, alpha, beta, distortion, tilt, focus term."""
        return np.concatenate(
            [self.array.as_vector(), self.distortion.parameters, self.tilt, self.focus]
        )

    def with_intrinsics(self, values: FloatArray) -> BundleState:
        """Return the state with other intrinsics, in the order of `as_vector`."""
        tilt = 5 + len(self.distortion.parameters)
        focus = tilt + len(self.tilt)
        return replace(
            self,
            array=PinholeArray.from_vector(values[:5]),
            distortion=self.distortion.with_parameters(values[5:tilt]),
            tilt=values[tilt:focus],
            focus=values[focus:],
        )

    def step(self, intrinsics: FloatArray, poses: FloatArray, points: FloatArray) -> BundleState:
        """Move on the manifold: poses as `RigidTransform.step` does, all else by addition."""
        turns = Rotation.from_rotvec(poses[:, :3])
        rotations = (turns * Rotation.from_matrix(self.rotations.copy())).as_matrix()
        moved = replace(
            self,
            rotations=rotations,
            translations_mm=turns.apply(self.translations_mm.copy()) + poses[:, 3:],
            points_world_mm=self.points_world_mm + points,
        )
        return moved.with_intrinsics(self.as_vector() + intrinsics)

    def scaled(self, factor: float) -> BundleState:
        """Return the same images from a scene `factor` times as large."""
        return replace(
            self,
            array=replace(self.array, beta_mm=self.array.beta_mm * factor),
            translations_mm=self.translations_mm * factor,
            points_world_mm=self.points_world_mm * factor,
        )

    def moved(self, new_from_old: RigidTransform) -> BundleState:
        """Return the same scene in another world frame."""
        old_from_new = new_from_old.inverse()
        return replace(
            self,
            rotations=self.rotations @ old_from_new.rotation,
            translations_mm=self.rotations @ old_from_new.translation_mm + self.translations_mm,
            points_world_mm=new_from_old.apply(self.points_world_mm),
        )


@dataclass(frozen=True)
class Prior:
    """A value known beforehand, with its standard deviation."""

    value: float
    sigma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.sigma) and self.sigma > 0.0):
            raise InputError(
                f"a prior of {self.value} +- {self.sigma} needs finite, positive sigma"
            )


@dataclass(frozen=True, eq=False)
class Problem:
    """A bundle adjustment, ready to be solved.

    Parameters
    ----------
    observations : Observations
    pixel_size_mm : float
    start : BundleState
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
        None: the term is off. Else the start must have a strength: `BundleState.with_focus`.
    active : (n_obs,) bool or None
        Observations to use; None: all.
    """

    observations: Observations
    pixel_size_mm: float
    start: BundleState
    fixed: tuple[str, ...] = ()
    priors: Mapping[str, Prior] = field(default_factory=dict)
    distances: Distances | None = None
    positions: CameraPositions | None = None
    focus: FocusTerm | None = None
    active: BoolArray | None = None

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
                f"{expected}: use BundleState.with_focus"
            )
        known = (*self.names, *LENGTHS)
        for name in (*self.fixed, *self.priors):
            if name not in known:
                raise ConfigError.unknown("parameter", name, known)
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
        lengths = [name for name in LENGTHS if name in self.fixed or name in self.priors]
        if lengths:
            sources.append("known " + ", ".join(lengths))
        if "beta" in self.priors:
            sources.append("known beta")
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

    @property
    def holds_first_pose(self) -> bool:
        """Whether the world is that of the first view: so, unless camera positions are known."""
        return self.positions is None

    @cached_property
    def distance_points(self) -> IntArray:
        """Point indices of the distances, (n, 2)."""
        if self.distances is None:
            return np.zeros((0, 2), np.int64)
        ids = self.distances.point_ids
        return find_ids(ids.ravel(), self.observations.point_ids, "point").reshape(-1, 2)

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

    def step_jacobian(self, state: BundleState) -> FloatArray:
        """Return the derivative of the intrinsics by the `step_names`."""
        jacobian = np.eye(len(self.names))
        if self.uses_physical:
            physical = state.array.to_physical(self.pixel_size_mm)
            jacobian[:5, :5] = physical.array_jacobian(self.pixel_size_mm)
        return jacobian

    def step(
        self, state: BundleState, intrinsics: FloatArray, poses: FloatArray, points: FloatArray
    ) -> BundleState:
        """Move by a step whose intrinsics are those of `step_names`."""
        if not self.uses_physical:
            return state.step(intrinsics, poses, points)
        values = state.array.to_physical(self.pixel_size_mm).as_vector() + intrinsics[:5]
        array = PhysicalParameters(*map(float, values)).to_pinhole_array(self.pixel_size_mm)
        change = intrinsics.copy()
        change[:5] = array.as_vector() - state.array.as_vector()
        # set, not added, so that what is held stays to the last digit
        return replace(state.step(change, poses, points), array=array)
