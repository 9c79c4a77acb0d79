"""Motions of the simulated camera. Most allow a calibration; `rotation` and `forward` do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from scipy.spatial.transform import Rotation

from lifcal.arrays import FloatArray
from lifcal.errors import ConfigError, InputError
from lifcal.geometry.rigid import RigidTransform
from lifcal.simulate.scene import FIELD_OF_VIEW_RAD, Scene

_Motion: TypeAlias = tuple[FloatArray, FloatArray]
_DEPTH_SWING = 0.15
"""Amplitude of the motion toward the scene and away from it, as a fraction of the stand-off."""
_TURN_PER_FIELD_OF_VIEW = 0.22
"""Largest rotation of the camera as a fraction of its field of view, so that the scene stays in the
image of cameras with a narrow field of view."""
_LARGEST_TURN_RAD = 0.16
"""Upper limit of that rotation for cameras with a wide field of view."""


def build_path(
    name: str, scene: Scene, n_frames: int, seed: int, field_of_view_rad: float
) -> tuple[RigidTransform, ...]:
    """Return the camera poses of one of the `PATHS` in front of a scene.

    Parameters
    ----------
    name : str
        A key of `PATHS`.
    scene : Scene
        The scene says which point the camera looks at and how far away it stands.
    n_frames : int
        At least 1. More frames sample the same path more finely.
    seed : int
        Random seed of the path's shape. `forward` does not depend on it.
    field_of_view_rad : float
        Full angle of the camera's field of view. The narrower it is, the further away the camera
        stands, so that every camera sees about the same part of the scene; see
        `compute_standoff_mm`.

    Returns
    -------
    tuple of RigidTransform
        `world_from_cam` of each frame.

    Raises
    ------
    ConfigError
        If there is no such path.
    InputError
        If there are no frames, or the field of view is not in (0, pi).
    """
    if name not in PATHS:
        raise ConfigError.unknown("path", name, PATHS)
    if n_frames < 1:
        raise InputError(f"n_frames is {n_frames}, needs at least 1")
    standoff_mm = compute_standoff_mm(scene, field_of_view_rad)
    largest_turn_rad = min(_TURN_PER_FIELD_OF_VIEW * field_of_view_rad, _LARGEST_TURN_RAD)
    rng = np.random.default_rng([seed, *name.encode()])
    times = np.linspace(0.0, 1.0, n_frames)
    offsets, rotations = PATHS[name](rng, times, largest_turn_rad)
    nominal_world_mm = scene.look_at_world_mm - [0.0, 0.0, standoff_mm]
    return tuple(
        RigidTransform(rotation, nominal_world_mm + standoff_mm * offset)
        for rotation, offset in zip(rotations, offsets, strict=True)
    )


def compute_standoff_mm(scene: Scene, field_of_view_rad: float) -> float:
    """Return the stand-off: the distance from the nominal camera to the point that it looks at."""
    if not 0.0 < field_of_view_rad < np.pi:
        raise InputError(f"field_of_view_rad is {field_of_view_rad}, needs to lie in (0, pi)")
    wanted_mm = scene.distance_mm * np.tan(FIELD_OF_VIEW_RAD / 2) / np.tan(field_of_view_rad / 2)
    return float(max(scene.min_distance_mm, wanted_mm))


def _move_winding(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Oscillate along all three axes at once, turned toward the scene, with additional roll."""
    phase = 2.0 * np.pi * times
    amplitude = np.array([0.115, 0.07, _DEPTH_SWING]) * rng.uniform(0.92, 1.0, size=3)
    sign = rng.choice([-1.0, 1.0], size=3)
    shift = rng.uniform(-0.25, 0.25, size=2)
    offsets = (amplitude * sign) * np.stack(
        [
            np.cos(1.05 * phase + shift[0]),
            np.sin(1.6 * phase + shift[1]),
            np.sin(phase),
        ],
        axis=1,
    )
    wobble = largest_turn_rad * np.stack(
        [
            0.4 * np.sin(1.3 * phase + rng.uniform(0.0, 2.0 * np.pi)),
            0.4 * np.sin(1.1 * phase + rng.uniform(0.0, 2.0 * np.pi)),
            1.0 * np.sin(0.9 * phase + rng.uniform(0.0, 2.0 * np.pi)),
        ],
        axis=1,
    )
    return offsets, _look_back(offsets) @ Rotation.from_rotvec(wobble).as_matrix()


def _move_handheld(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Move along a smooth random path, with a small random tremor in each frame."""
    offsets = _drift(rng, times) * [0.09, 0.06, 0.1]
    wobble = _drift(rng, times) * largest_turn_rad * [0.5, 0.5, 0.9]
    offsets += rng.normal(scale=0.0015, size=offsets.shape).clip(-0.004, 0.004)
    wobble += rng.normal(scale=0.002, size=wobble.shape).clip(-0.006, 0.006)
    return offsets, _look_back(offsets) @ Rotation.from_rotvec(wobble).as_matrix()


def _move_turntable(
    rng: np.random.Generator, times: FloatArray, largest_turn_rad: float
) -> _Motion:
    """Move on a circle around the scene at constant height, like a scene on a turntable."""
    del largest_turn_rad
    angles = rng.uniform(0.5, 0.7) * (times - 0.5) * rng.choice([-1.0, 1.0])
    offsets = np.stack([np.sin(angles), np.zeros_like(angles), 1.0 - np.cos(angles)], axis=1)
    return offsets, _look_back(offsets)


def _move_orbit(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Move on an arc around the scene, with changing height, and nearer at both ends of the arc."""
    del largest_turn_rad
    angles = rng.uniform(0.35, 0.55) * (times - 0.5) * rng.choice([-1.0, 1.0])
    heights = 0.08 * np.sin(2.0 * np.pi * times + rng.uniform(0.0, 2.0 * np.pi))
    distances = 1.0 - 0.12 * np.abs(2.0 * times - 1.0)
    offsets = np.stack(
        [distances * np.sin(angles), heights, 1.0 - distances * np.cos(angles)], axis=1
    )
    return offsets, _look_back(offsets)


def _move_sideways(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Move sideways, nearly without rotation."""
    offsets = np.zeros((len(times), 3))
    offsets[:, 0] = 0.25 * (times - 0.5) * rng.choice([-1.0, 1.0])
    offsets[:, 1] = 0.03 * np.sin(2.0 * np.pi * times + rng.uniform(0.0, 2.0 * np.pi))
    turns = _drift(rng, times) * 0.1 * largest_turn_rad
    return offsets, Rotation.from_rotvec(turns).as_matrix()


def _move_rotation(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Rotate about the center of the main lens; the position is exactly the same in all frames."""
    phase = 2.0 * np.pi * times
    turns = largest_turn_rad * np.stack(
        [
            0.8 * np.sin(2.0 * phase + rng.uniform(0.0, 2.0 * np.pi)),
            1.0 * np.sin(1.0 * phase + rng.uniform(0.0, 2.0 * np.pi)),
            0.8 * np.sin(1.5 * phase + rng.uniform(0.0, 2.0 * np.pi)),
        ],
        axis=1,
    )
    return np.zeros((len(times), 3)), Rotation.from_rotvec(turns).as_matrix()


def _move_forward(rng: np.random.Generator, times: FloatArray, largest_turn_rad: float) -> _Motion:
    """Move along the optical axis; the orientation is exactly the same in all frames."""
    del rng, largest_turn_rad
    offsets = np.zeros((len(times), 3))
    offsets[:, 2] = _DEPTH_SWING * (2.0 * times - 1.0) if len(times) > 1 else 0.0
    return offsets, np.broadcast_to(np.eye(3), (len(times), 3, 3))


def _drift(rng: np.random.Generator, times: FloatArray) -> FloatArray:
    """Return three smooth random curves (n, 3) in -1..1, each a sum of four slow sine waves."""
    frequencies = np.array([0.6, 1.0, 1.7, 2.6])
    weights = rng.uniform(0.5, 1.0, size=(3, 4)) / frequencies
    weights /= weights.sum(axis=1, keepdims=True)
    phases = rng.uniform(0.0, 2.0 * np.pi, size=(3, 4))
    waves = np.sin(2.0 * np.pi * times[:, None, None] * frequencies + phases)
    curves: FloatArray = np.sum(weights * waves, axis=2)
    return curves


def _look_back(offsets: FloatArray) -> FloatArray:
    """Return the rotations (n, 3, 3) that turn displaced cameras toward the scene.

    Each camera looks at the point that the nominal camera looks at, without roll. Offsets are in
    units of the stand-off, so this point is (0, 0, 1).
    """
    forward = np.array([0.0, 0.0, 1.0]) - offsets
    forward /= np.linalg.norm(forward, axis=1, keepdims=True)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    return np.stack([right, np.cross(forward, right), forward], axis=2)


PATHS: Mapping[str, Callable[[np.random.Generator, FloatArray, float], _Motion]] = MappingProxyType(
    {
        "winding": _move_winding,
        "handheld": _move_handheld,
        "turntable": _move_turntable,
        "orbit": _move_orbit,
        "sideways": _move_sideways,
        "rotation": _move_rotation,
        "forward": _move_forward,
    }
)
"""The functions that compute paths, by name. The arguments are a random generator, the times of the
frames in 0..1, and the largest rotation in rad. The results are offsets (n, 3) from the nominal
camera, in units of the stand-off, and rotations `world_from_cam` (n, 3, 3). The paths `rotation`
and `forward` do not determine all parameters: a calibration of them has to fail or to report this.
"""
