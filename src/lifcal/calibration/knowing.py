"""What an online calibration knows of itself: targets, the worth of a frame, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.spatial.transform import Rotation

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle import Adjustment
from lifcal.bundle.covariance import (
    Covariance,
    add_magnification_error,
    add_scale_error,
    compute_covariance,
)
from lifcal.bundle.linear import Layout
from lifcal.camera import MicroLensGrid
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.measure import find_micro_images
from lifcal.reconstruction import Observations, Reconstruction

TARGETS = {"F": "%", "alpha": "", "beta": "%", "c": "px", "f_L": "%", "b_L0": "%", "B": "%"}
"""Parameters that can have a target, and the unit in which it is usually given."""
CERTAIN = 2.5
"""A target is met when so many sigmas are below it. The two coordinates of c usually meet theirs
last; with 2.5 sigmas, both are then truly within it in 97 of 100 runs."""
_RIM_PX = 1.0
"""As in the workbench: points nearer to the rim of a micro image are not measured."""
_MOST_POINTS = 150
"""Points with which the worth of a frame is computed: more say the same and take longer."""
_STEP = 0.2
"""Length of a proposed motion as a part of the median distance of the scene: 20 cm at one metre."""
_MOST_AHEAD = 100
"""Largest number of further frames that is predicted: beyond, the prediction would not hold."""
_INTRINSICS = ("F", "c_x", "c_y", "alpha", "beta")
"""Intrinsics whose joint uncertainty decides whether a frame is worth measuring."""


@dataclass(frozen=True)
class Target:
    """How well a parameter is to be known.

    Parameters
    ----------
    name : str
        One of `TARGETS`; c stands for both coordinates.
    value : float
        In units of the parameter, or a fraction of it.
    relative : bool
        Whether it is a fraction.
    """

    name: str
    value: float
    relative: bool

    def __str__(self) -> str:
        if self.relative:
            return f"{self.name}={100.0 * self.value:g}%"
        return f"{self.name}={self.value:g}{'px' if self.name == 'c' else ''}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the intrinsics."""
        return ("c_x", "c_y") if self.name == "c" else (self.name,)

    def limit(self, value: float) -> float:
        """Return the target in units of a parameter that has this value."""
        return self.value * abs(value) if self.relative else self.value


DEFAULT_TARGETS = "F=0.05%,B=0.5%,c=1px"
"""Targets if none are given. They keep the error of metric depth that the camera causes below
that of a single depth map."""


def parse_targets(text: str) -> tuple[Target, ...]:
    """Read targets as users write them: 'F=0.05%,B=0.5%,c=1px'.

    Raises
    ------
    ConfigError, InputError
        If a parameter is not known, or a value is not a positive number, with '%' or 'px'.
    """
    found: list[Target] = []
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in TARGETS:
            raise ConfigError.unknown("parameter of a target", name, TARGETS)
        if name in [target.name for target in found]:
            raise InputError(f"target {text!r}: {name} is there twice")
        relative = value.endswith("%")
        number = value.removesuffix("%").removesuffix("px").strip()
        try:
            size = float(number) / (100.0 if relative else 1.0)
        except ValueError:
            size = math.nan
        if not (math.isfinite(size) and size > 0.0):
            raise InputError(f"target {part.strip()!r}: needs a positive number, F=0.05% or c=1px")
        found.append(Target(name, size, relative))
    return tuple(found)


@dataclass(frozen=True)
class Advice:
    """Which motion would help most.

    Parameters
    ----------
    motion : str
        Key of `MOTIONS`.
    text : str
        For people.
    parameter : str
        The weakest parameter, which the motion helps.
    frames : int or None
        About so many more frames of this kind until all targets are met, 100 if there are more;
        None if they would not be met by any number of frames, because of an error that all frames
        share.
    """

    motion: str
    text: str
    parameter: str
    frames: int | None


def _looking_back(shift: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rotation and shift of a camera that moved and looks at the same point."""
    forward = np.array([0.0, 0.0, 1.0]) - shift
    forward /= np.linalg.norm(forward)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward], axis=1), shift


def _turned(axis: tuple[float, float, float], share: float) -> tuple[FloatArray, FloatArray]:
    """Return a rotation by a part of the field of view, without a shift; NaN marks the angle."""
    return share * np.array(axis), np.full(3, np.nan)


MOTIONS: Mapping[str, tuple[str, tuple[FloatArray, FloatArray]]] = MappingProxyType(
    {
        "nearer": ("move nearer", (np.eye(3), np.array([0.0, 0.0, _STEP]))),
        "farther": ("move farther away", (np.eye(3), np.array([0.0, 0.0, -_STEP]))),
        "roll": (
            "turn the camera by 90 degrees about its axis",
            (Rotation.from_rotvec([0.0, 0.0, np.pi / 2]).as_matrix(), np.zeros(3)),
        ),
        "left": (
            "move to the left, and keep looking at the same place",
            _looking_back(np.array([-_STEP, 0.0, 0.0])),
        ),
        "right": (
            "move to the right, and keep looking at the same place",
            _looking_back(np.array([_STEP, 0.0, 0.0])),
        ),
        "up": (
            "move up, and keep looking at the same place",
            _looking_back(np.array([0.0, -_STEP, 0.0])),
        ),
        "down": (
            "move down, and keep looking at the same place",
            _looking_back(np.array([0.0, _STEP, 0.0])),
        ),
        "fill-left": (
            "turn to the right, so that the scene fills the left border",
            _turned((0.0, 1.0, 0.0), 0.3),
        ),
        "fill-right": (
            "turn to the left, so that the scene fills the right border",
            _turned((0.0, -1.0, 0.0), 0.3),
        ),
        "fill-top": (
            "turn down, so that the scene fills the upper border",
            _turned((-1.0, 0.0, 0.0), 0.3),
        ),
        "fill-bottom": (
            "turn up, so that the scene fills the lower border",
            _turned((1.0, 0.0, 0.0), 0.3),
        ),
    }
)
"""Motions that are compared, in words, as rotation and shift of the camera. Shifts are in median
distances of the scene; turns about x and y are in parts of the field of view."""


class Worth:
    """What further frames would add to what is known of the intrinsics.

    It holds a part of the points of the last adjustment with their observations. A frame at any
    pose adds the micro images in which it would show these points, with the noise that was
    measured; the covariance is then computed anew, with the poses and points as unknown as they
    are.

    Parameters
    ----------
    found : Adjustment
    grid : MicroLensGrid
    radius_px : float
        Usable radius of micro images.
    depth_range : (float, float)
        Virtual depths that can be measured.
    scale_error, magnification_error : float
        Relative errors that all frames share, as in `AdjustOptions`.
    """

    def __init__(
        self,
        found: Adjustment,
        grid: MicroLensGrid,
        radius_px: float,
        depth_range: tuple[float, float],
        scale_error: float = 0.0,
        magnification_error: float = 0.0,
    ) -> None:
        self.grid, self.depth_range = grid, depth_range
        self.most_px = radius_px - _RIM_PX
        self.noise = found.summary.noise
        problem = found.problem
        observations = problem.observations
        chosen = self._choose_points(found)
        keep = chosen[observations.point_indices] & problem.active_mask
        counts = np.unique(observations.point_indices[keep])
        self.points = observations.point_ids[counts]
        self.rows = {
            "views": observations.view_ids[observations.view_indices[keep]],
            "points": observations.point_ids[observations.point_indices[keep]],
            "centers": observations.centers_raw_px[keep],
            "places": observations.points_raw_px[keep],
            "covariances": observations.covariances_px2[keep],
            "types": observations.lens_types[keep],
        }
        self.covariance_px2 = np.median(self.rows["covariances"], axis=0)
        self.view_ids = np.unique(self.rows["views"])
        distances, positions = problem.distances, problem.positions
        if distances is not None:
            distances = distances.among(self.points)
        if positions is not None:
            positions = positions.select(np.isin(positions.view_ids, self.view_ids))
        self.problem = replace(
            problem,
            active=None,
            observations=Observations.from_arrays(
                self.rows["views"],
                self.rows["points"],
                self.rows["centers"],
                self.rows["places"],
                covariances_px2=self.rows["covariances"],
                lens_types=self.rows["types"],
            ),
            start=self._restrict(found, counts),
            distances=distances,
            positions=positions,
        )
        self.state = self.problem.start
        self.before = self._covary(None)
        self.systematic = self._find_systematic(found, scale_error, magnification_error)
        own, total = self.before.sigmas(), found.covariance.sigmas()
        # The chosen points alone are noisier than all, and take no notice of shared textures.
        self.factors = {
            name: max(total[name] ** 2 - self.systematic[name], 0.0) / own[name] ** 2
            for name in own
            if own[name] > 0.0 and name in total
        }

    def _restrict(self, found: Adjustment, points: IntArray) -> Reconstruction:
        state = found.state
        views = np.searchsorted(found.problem.observations.view_ids, self.view_ids)
        return replace(
            state,
            rotations=state.rotations[views],
            translations_mm=state.translations_mm[views],
            points_world_mm=state.points_world_mm[points],
        )

    @staticmethod
    def _choose_points(found: Adjustment) -> BoolArray:
        n = len(found.problem.observations.point_ids)
        chosen = np.zeros(n, np.bool_)
        chosen[np.unique(found.problem.distance_points)] = True
        step = max(n / _MOST_POINTS, 1.0)
        chosen[np.floor(np.arange(0.0, n, step)).astype(np.int64)] = True
        return chosen

    def _find_systematic(
        self, found: Adjustment, scale_error: float, magnification_error: float
    ) -> dict[str, float]:
        """Return the variance of each parameter that no further frame makes smaller."""
        state, pixel_size_mm = found.state, found.problem.pixel_size_mm
        known = found.covariance
        floor = replace(
            known, array=np.zeros_like(known.array), physical=np.zeros_like(known.physical)
        )
        if found.problem.distances is not None:
            floor = add_scale_error(floor, state, pixel_size_mm, scale_error)
        if not found.problem.uses_physical:
            points, views, _ = found.problem.observations.pairs
            u = state.array.alpha + state.array.beta_mm / state.cam_points(points, views)[:, 2]
            floor = add_magnification_error(floor, state, pixel_size_mm, u, magnification_error)
        return {name: sigma**2 for name, sigma in floor.sigmas().items()}

    def covary_with(self, cam_from_world: RigidTransform) -> Covariance | None:
        """Return the covariance with one more frame at a pose; None if it would see too little."""
        extra = self._observe(cam_from_world)
        return None if extra is None else self._covary((cam_from_world, extra))

    def measure_gain(self, cam_from_world: RigidTransform) -> float:
        """Return by how much log det of the intrinsics' information grows by a frame at a pose."""
        after = self.covary_with(cam_from_world)
        if after is None:
            return 0.0
        return 0.5 * (_log_det(self.before) - _log_det(after))

    def _observe(self, pose: RigidTransform) -> dict[str, FloatArray] | None:
        """Return the micro images in which a frame at a pose would show the points."""
        n = len(self.state.points_world_mm)
        there = replace(
            self.state,
            rotations=pose.rotation[None],
            translations_mm=pose.translation_mm[None],
        )
        points, views = np.arange(n), np.zeros(n, np.int64)
        places, u = there.virtual_points(there.cam_points(points, views))
        width, height = self.grid.image_size
        low, high = sorted(self.depth_range)
        with np.errstate(invalid="ignore"):
            seen = (places >= 0.0).all(axis=1) & (places < (width, height)).all(axis=1)
            seen &= (u > low) & (u < high)
        points = points[seen]
        if len(points) < 0.1 * n or len(points) < 8:
            return None
        owners, lenses = find_micro_images(
            there, self.grid, points, np.zeros(len(points), np.int64), self.most_px
        )
        center = self.grid.centers_raw_px[lenses]
        at, depth = places[points[owners]], u[points[owners]]
        seen_at = center + (at - center) / depth[:, None]
        inside = (seen_at >= 0.0).all(axis=1) & (seen_at <= (width - 1, height - 1)).all(axis=1)
        return {
            "points": self.points[points[owners[inside]]].astype(np.float64),
            "centers": center[inside],
            "places": seen_at[inside],
            "types": self.grid.lens_types[lenses[inside]].astype(np.float64),
        }

    def _covary(self, extra: tuple[RigidTransform, dict[str, FloatArray]] | None) -> Covariance:
        rows, state = self.rows, self.state
        if extra is None:
            views, points = rows["views"], rows["points"]
            centers, places = rows["centers"], rows["places"]
            covariances, types = rows["covariances"], rows["types"]
        else:
            pose, more = extra
            count = len(more["points"])
            new_id = int(self.view_ids[-1]) + 1
            views = np.concatenate([rows["views"], np.full(count, new_id)])
            points = np.concatenate([rows["points"], more["points"].astype(np.int64)])
            centers = np.concatenate([rows["centers"], more["centers"]])
            places = np.concatenate([rows["places"], more["places"]])
            covariances = np.concatenate(
                [rows["covariances"], np.tile(self.covariance_px2, (count, 1, 1))]
            )
            types = np.concatenate([rows["types"], more["types"].astype(np.int64)])
            state = replace(
                state,
                rotations=np.concatenate([state.rotations, pose.rotation[None]]),
                translations_mm=np.concatenate([state.translations_mm, pose.translation_mm[None]]),
            )
        observations = Observations.from_arrays(
            views, points, centers, places, covariances_px2=covariances, lens_types=types
        )
        problem = replace(self.problem, observations=observations, start=state)
        return compute_covariance(Layout(problem), state, self.noise)

    def advise(
        self,
        current: RigidTransform,
        values: Mapping[str, float],
        targets: tuple[Target, ...],
    ) -> Advice | None:
        """Return the motion from a pose that shrinks the weakest parameter most.

        Parameters
        ----------
        current : RigidTransform
            `cam_from_world` of the last frame.
        values : mapping of str to float
            Parameters of the camera.
        targets : tuple of Target
        """
        limits = {
            name: target.limit(values[name]) / CERTAIN
            for target in targets
            for name in target.parameters
            if name in values
        }
        before = {
            name: self.factors[name] * sigma**2
            for name, sigma in self.before.sigmas().items()
            if name in limits and self.factors.get(name, 0.0) * sigma > 0.0
        }
        if not before:
            return None
        total = {name: before[name] + self.systematic.get(name, 0.0) for name in before}
        weakest = max(before, key=lambda name: total[name] / limits[name] ** 2)
        cam = current.apply(self.state.points_world_mm)
        distance = float(np.median(cam[:, 2]))
        best: tuple[float, str, dict[str, float]] | None = None
        for motion, (_, step) in MOTIONS.items():
            pose = self._move(current, step, distance)
            try:
                after = self.covary_with(pose)
            except EstimationError:
                after = None
            if after is None:
                continue
            sigmas = after.sigmas()
            gained = {name: self.factors[name] * sigmas[name] ** 2 for name in before}
            left = gained[weakest]
            if best is None or left < best[0]:
                best = (left, motion, gained)
        if best is None:
            return None
        _, motion, gained = best
        frames: int | None = 0
        for name in before:
            room = limits[name] ** 2 - self.systematic.get(name, 0.0)
            if room <= 0.0:
                frames = None
                break
            if total[name] <= limits[name] ** 2:
                continue
            each = 1.0 / gained[name] - 1.0 / before[name]
            need = (1.0 / room - 1.0 / before[name]) / max(each, 1e-300)
            assert frames is not None
            frames = max(frames, min(math.ceil(need), _MOST_AHEAD))
        text = MOTIONS[motion][0]
        if frames == _MOST_AHEAD:
            text += f" ({_MOST_AHEAD} or more frames to the targets)"
        elif frames:
            text += f" (about {frames} more frame{'s' if frames > 1 else ''} to the targets)"
        return Advice(motion, text, weakest, frames)

    def _move(
        self, current: RigidTransform, step: tuple[FloatArray, FloatArray], distance: float
    ) -> RigidTransform:
        """Return the pose after a motion of the camera."""
        rotation, shift = step
        if np.isnan(shift).any():
            width, height = self.grid.image_size
            focal = self.state.array.focal_px
            fields = 2.0 * np.arctan(0.5 * np.array([height, width, 0.0]) / focal)
            rotation = Rotation.from_rotvec(rotation * fields).as_matrix()
            shift = np.zeros(3)
        moved_from_cam = RigidTransform(rotation, distance * shift).inverse()
        return moved_from_cam @ current


def _log_det(covariance: Covariance) -> float:
    places = [
        i
        for i, name in enumerate(covariance.names)
        if name in _INTRINSICS and covariance.array[i, i] > 0.0
    ]
    block = covariance.array[np.ix_(places, places)]
    scale = np.sqrt(np.diag(block))
    sign, value = np.linalg.slogdet(block / scale[:, None] / scale)
    return float(value + 2.0 * np.log(scale).sum()) if sign > 0 else math.inf


def is_met(
    values: Mapping[str, float], sigmas: Mapping[str, float], targets: tuple[Target, ...]
) -> bool:
    """Tell whether every target is met, with `CERTAIN` sigmas."""
    return all(
        name in sigmas and CERTAIN * sigmas[name] <= target.limit(values[name])
        for target in targets
        for name in target.parameters
    )
