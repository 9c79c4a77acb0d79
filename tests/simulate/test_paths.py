"""Paths: smooth, of the promised size, clear of everything, with the scene in view."""

from __future__ import annotations

import numpy as np
import pytest

from lifcal.errors import ConfigError, InputError
from lifcal.geometry.rigid import RigidTransform
from lifcal.simulate.paths import PATHS, build_path, compute_standoff_mm
from lifcal.simulate.scene import FIELD_OF_VIEW_RAD, Quad, Scene, Texture
from lifcal.simulate.scenes import SCENES
from tests.reference.raycast import cast_pinhole, cast_rays
from tests.simulate.test_scenes import scene_of

FIELDS_OF_VIEW_RAD = (0.3, FIELD_OF_VIEW_RAD, 1.065)


def empty_scene() -> Scene:
    return Scene(
        name="empty",
        quads=(),
        balls=(),
        markers=(),
        background=np.zeros(3),
        look_at_world_mm=np.array([10.0, -20.0, 800.0]),
        distance_mm=800.0,
        min_distance_mm=600.0,
    )


def positions_of(path: tuple[RigidTransform, ...]) -> np.ndarray:
    return np.array([pose.translation_mm for pose in path])


def length_of(path: tuple[RigidTransform, ...]) -> float:
    return float(np.linalg.norm(np.diff(positions_of(path), axis=0), axis=1).sum())


def turns_of(path: tuple[RigidTransform, ...]) -> np.ndarray:
    """Return pitch, yaw and roll (n, 3) in rad: where the axes point, to first order."""
    rotations = np.array([pose.rotation for pose in path])
    return np.stack([-rotations[:, 1, 2], rotations[:, 0, 2], rotations[:, 1, 0]], axis=1)


def smallest_range_mm(scene: Scene, positions: np.ndarray) -> float:
    """Return the distance to the nearest surface from any position, over directions all round."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(250, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    origins = np.repeat(positions, len(directions), axis=0)
    hits = cast_rays(scene, origins, np.tile(directions, (len(positions), 1)))
    return float(hits.depth.min())


def passes_through(scene: Scene, positions: np.ndarray) -> bool:
    steps = np.diff(positions, axis=0)
    moving = np.linalg.norm(steps, axis=1) > 0
    if not moving.any():
        return False
    return bool((cast_rays(scene, positions[:-1][moving], steps[moving]).depth <= 1.0).any())


def test_unknown_path_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown path 'widing'.*Did you mean 'winding'"):
        build_path("widing", empty_scene(), 5, 0, FIELD_OF_VIEW_RAD)


@pytest.mark.parametrize("n_frames", [0, -3])
def test_needs_frames(n_frames: int) -> None:
    with pytest.raises(InputError, match="needs at least 1"):
        build_path("winding", empty_scene(), n_frames, 0, FIELD_OF_VIEW_RAD)


@pytest.mark.parametrize("field_of_view_rad", [0.0, -1.0, 3.2, np.nan])
def test_needs_a_field_of_view(field_of_view_rad: float) -> None:
    with pytest.raises(InputError, match="field_of_view_rad"):
        build_path("winding", empty_scene(), 3, 0, field_of_view_rad)


def test_standoff_keeps_the_view_until_the_smallest_distance() -> None:
    scene = empty_scene()
    assert compute_standoff_mm(scene, FIELD_OF_VIEW_RAD) == pytest.approx(800.0)
    narrow = compute_standoff_mm(scene, 0.3)
    assert narrow * np.tan(0.15) == pytest.approx(800.0 * np.tan(FIELD_OF_VIEW_RAD / 2))
    assert compute_standoff_mm(scene, 1.065) == 600.0


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("n_frames", [1, 2, 30])
def test_same_seed_same_path(name: str, n_frames: int) -> None:
    first, again, other = (
        build_path(name, empty_scene(), n_frames, seed, FIELD_OF_VIEW_RAD) for seed in (1, 1, 2)
    )
    assert len(first) == n_frames
    for pose, twin in zip(first, again, strict=True):
        assert np.array_equal(pose.rotation, twin.rotation)
        assert np.array_equal(pose.translation_mm, twin.translation_mm)
    changed = any(
        not np.array_equal(pose.rotation, twin.rotation)
        for pose, twin in zip(first, other, strict=True)
    )
    assert changed == (name != "forward")


@pytest.mark.parametrize("seed", range(8))
def test_winding_sweeps_all_six_ways(seed: int) -> None:
    path = build_path("winding", empty_scene(), 200, seed, FIELD_OF_VIEW_RAD)
    assert 500.0 < length_of(path) < 900.0
    span = np.ptp(positions_of(path), axis=0) / 800.0
    assert (span > [0.15, 0.1, 0.26]).all()
    depth_change = positions_of(path)[:, 2] / 800.0
    assert 0.12 < depth_change.max() < 0.1501
    assert -0.1501 < depth_change.min() < -0.12
    assert (np.ptp(turns_of(path), axis=0) > np.deg2rad(5.0)).all()
    assert (np.abs(turns_of(path)) < np.deg2rad(15.0)).all()


def test_winding_scales_with_the_standoff() -> None:
    near, far = (
        build_path("winding", empty_scene(), 50, 3, field_of_view_rad)
        for field_of_view_rad in (FIELD_OF_VIEW_RAD, 0.3)
    )
    ratio = compute_standoff_mm(empty_scene(), 0.3) / 800.0
    assert length_of(far) == pytest.approx(ratio * length_of(near), rel=1e-9)


@pytest.mark.parametrize("name", ["winding", "rotation"])
@pytest.mark.parametrize("seed", range(4))
def test_motion_is_smooth(name: str, seed: int) -> None:
    path = build_path(name, empty_scene(), 100, seed, FIELD_OF_VIEW_RAD)
    for values, unit in ((positions_of(path), 100.0), (turns_of(path), 0.1)):
        jerk = np.diff(values, n=2, axis=0)
        assert np.abs(jerk).max() < 0.05 * unit


@pytest.mark.parametrize("seed", range(4))
def test_handheld_drifts_and_trembles(seed: int) -> None:
    path = build_path("handheld", empty_scene(), 100, seed, FIELD_OF_VIEW_RAD)
    positions = positions_of(path)
    assert (np.ptp(positions, axis=0) > 20.0).all()
    tremor = np.diff(positions, n=2, axis=0).std()
    # Second differences of independent noise of 1.2 mm have sqrt(6) of its sigma.
    assert 0.7 < tremor / (np.sqrt(6.0) * 0.0015 * 800.0) < 1.4
    assert (np.ptp(turns_of(path), axis=0) > np.deg2rad(2.0)).all()


def test_rotation_stays_to_the_last_bit() -> None:
    path = build_path("rotation", empty_scene(), 40, 5, FIELD_OF_VIEW_RAD)
    assert len({pose.translation_mm.tobytes() for pose in path}) == 1
    assert path[0].translation_mm == pytest.approx([10.0, -20.0, 0.0], abs=1e-9)
    assert (np.ptp(turns_of(path), axis=0) > np.deg2rad(8.0)).all()


def test_forward_goes_straight_to_the_last_bit() -> None:
    path = build_path("forward", empty_scene(), 21, 5, FIELD_OF_VIEW_RAD)
    assert all(np.array_equal(pose.rotation, np.eye(3)) for pose in path)
    positions = positions_of(path)
    assert (positions[:, :2] == [10.0, -20.0]).all()
    assert positions[:, 2] == pytest.approx(np.linspace(-120.0, 120.0, 21), abs=1e-9)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("path_name", PATHS)
def test_path_is_clear_and_the_view_filled(name: str, path_name: str) -> None:
    scene = scene_of(name)
    for field_of_view_rad in FIELDS_OF_VIEW_RAD:
        path = build_path(path_name, scene, 24, 7, field_of_view_rad)
        assert not passes_through(scene, positions_of(path))
        assert smallest_range_mm(scene, positions_of(path)[::3]) > 100.0
        for pose in path[::4]:
            assert (cast_pinhole(scene, pose, 16, field_of_view_rad).surface >= 0).all()


def test_clearance_is_seen_to_be_missing() -> None:
    path = build_path("forward", empty_scene(), 9, 0, FIELD_OF_VIEW_RAD)
    texture = Texture(np.zeros((1, 1, 3), dtype=np.uint8))
    board = Quad(
        np.array([-500.0, -500.0, 20.0]),
        np.array([1000.0, 0.0, 0.0]),
        np.array([0.0, 1000.0, 0.0]),
        texture,
    )
    scene = empty_scene()
    blocked = Scene(
        name="blocked",
        quads=(board,),
        balls=(),
        markers=(),
        background=scene.background,
        look_at_world_mm=scene.look_at_world_mm,
        distance_mm=scene.distance_mm,
        min_distance_mm=scene.min_distance_mm,
    )
    assert passes_through(blocked, positions_of(path))
    assert smallest_range_mm(blocked, positions_of(path)) < 100.0


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("path_name", ["winding", "handheld"])
def test_what_is_looked_at_stays_in_the_middle(name: str, path_name: str) -> None:
    scene = scene_of(name)
    for pose in build_path(path_name, scene, 40, 1, FIELD_OF_VIEW_RAD):
        point = pose.inverse().apply(scene.look_at_world_mm[None])[0]
        angle = np.arctan2(np.hypot(point[0], point[1]), point[2])
        assert angle < 0.3 * FIELD_OF_VIEW_RAD / 2
