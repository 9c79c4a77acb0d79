"""Plenoptic PnP against known poses: with noise, with wrong matches, and with too little."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.calibration.drift import CHANGES, DriftWatch, estimate_pulls, follow_change
from lifcal.calibration.drift import Drift as Change
from lifcal.calibration.plenoptic_pnp import (
    MatchNoise,
    estimate_pose,
    loosen,
    points_from_virtual,
)
from lifcal.camera import ArrayTilt
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Reconstruction
from lifcal.simulate import build_camera

NOISE = MatchNoise(place_px=0.5, factor_u=1.0)


def make_camera(name="mini", tilt=None):
    camera = build_camera(name).camera
    found = Reconstruction(
        camera.array, camera.distortion, np.zeros((0, 3, 3)), np.zeros((0, 3)), np.zeros((0, 3))
    )
    return found if tilt is None else replace(found, tilt=np.array(tilt)), camera


def make_matches(rng, camera, pose, n=200, wrong=0.0, noise=1.0, depths=(500.0, 1500.0)):
    z = rng.uniform(*depths, n)
    size = 2.0 * camera.principal_px
    xy = (rng.uniform(0.1, 0.9, (n, 2)) * size - camera.principal_px) / camera.array.focal_px
    cam = np.column_stack([xy * z[:, None], z])
    world = pose.inverse().apply(cam)
    places, u = camera.virtual_points(cam)
    sigma = np.full(n, 0.01)
    places = places + noise * NOISE.place_px * rng.normal(size=places.shape)
    u = u + noise * sigma * rng.normal(size=n)
    bad = rng.random(n) < wrong
    world[bad] = world[rng.permutation(np.flatnonzero(bad))]
    return world, places, u, sigma, bad


@pytest.mark.parametrize("name", ["mini", "mini-keplerian"])
def test_virtual_points_are_points_of_space(name, rng):
    camera, _ = make_camera(name, tilt=(1e-5, -2e-5))
    assert camera.array_tilt == ArrayTilt(1e-5, -2e-5)
    world, places, u, _, _ = make_matches(
        rng, camera, RigidTransform.identity(), noise=0.0, depths=(400.0, 1400.0)
    )
    found = points_from_virtual(camera, places, u)
    np.testing.assert_allclose(found, world, rtol=1e-6)  # undistortion iterates to 1e-9 px
    beyond = points_from_virtual(camera, places[:2], np.full(2, camera.array.alpha - 0.1))
    assert np.isnan(beyond).all()


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_pose_is_found(wrong, rng):
    camera, _ = make_camera()
    pose = RigidTransform.from_rotation_vector([0.2, -0.1, 1.2], [60.0, -40.0, 100.0])
    world, places, u, sigma, bad = make_matches(rng, camera, pose, wrong=wrong)
    fit = estimate_pose(camera, world, places, u, sigma, noise=NOISE)
    off = fit.cam_from_world.inverse().translation_mm - pose.inverse().translation_mm
    spread = np.sqrt(np.diag(np.linalg.inv(fit.information)))
    assert np.linalg.norm(off) < 4.0 * np.linalg.norm(spread[3:]) + 0.5
    turn = fit.cam_from_world.rotation @ pose.rotation.T
    assert np.arccos((np.trace(turn) - 1.0) / 2.0) < 0.003
    assert fit.inliers[~bad].mean() > 0.97
    assert fit.inliers[bad].sum() <= 0.1 * max(bad.sum(), 1)
    # the same from a pose nearby, without any search
    near = pose.step(np.array([0.02, -0.02, 0.03, 10.0, -5.0, 8.0]))
    again = estimate_pose(camera, world, places, u, sigma, noise=NOISE, prior=near)
    assert np.abs(again.cam_from_world.translation_mm - fit.cam_from_world.translation_mm).max() < 1


def test_without_depths_or_matches_there_is_no_pose(rng):
    camera, _ = make_camera()
    world, places, u, sigma, _ = make_matches(rng, camera, RigidTransform.identity())
    assert estimate_pose(camera, world, places, np.full_like(u, np.nan), sigma) is None
    assert estimate_pose(camera, world[:3], places[:3], u[:3], sigma[:3]) is None
    unrelated = rng.permutation(len(world))
    fit = estimate_pose(camera, world[unrelated], places, u, sigma, noise=NOISE)
    assert fit is None or fit.inliers.sum() < 15


# Drift


def watch(rng, camera, changed, frames, pixel_mm, start=None):
    """Feed frames of a changed camera to a watch that knows the old one."""
    watching, found = start or DriftWatch(), None
    for number in range(frames):
        pose = RigidTransform.from_rotation_vector(
            0.1 * rng.normal(size=3), 40.0 * rng.normal(size=3)
        )
        world, places, u, sigma, _ = make_matches(rng, changed, pose)
        fit = estimate_pose(camera, world, places, u, sigma, noise=loosen(NOISE), prior=pose)
        good = fit.inliers
        pulls = estimate_pulls(
            camera,
            pixel_mm,
            fit.cam_from_world,
            world[good],
            places[good],
            u[good],
            sigma[good],
            NOISE,
        )
        physical = camera.array.to_physical(pixel_mm)
        sizes = {
            "b_L0": physical.lens_to_array_mm,
            "B": physical.array_to_sensor_mm,
            "c_x": 640.0,
            "c_y": 640.0,
        }
        found = watching.add(pulls, sizes)
        if found is not None:
            return number + 1, found
    return None, None


def test_a_refocused_lens_is_noticed_within_three_frames(rng):
    camera, model = make_camera()
    pixel = model.pixel_size_mm
    change = Change("b_L0", 0.003 * model.parameters.lens_to_array_mm, 1)
    frames, found = watch(rng, camera, follow_change(camera, pixel, change), 6, pixel)
    assert frames <= 3
    assert found.parameter == "b_L0"
    assert found.parameter in CHANGES
    assert found.change == pytest.approx(change.change, rel=0.2)


def test_a_hundred_unchanged_frames_raise_no_alarm(rng):
    camera, model = make_camera()
    assert watch(rng, camera, camera, 100, model.pixel_size_mm) == (None, None)


def test_too_few_matches_are_not_tested(rng):
    camera, model = make_camera()
    world, places, u, sigma, _ = make_matches(rng, camera, RigidTransform.identity(), n=20)
    pose = RigidTransform.identity()
    assert estimate_pulls(camera, model.pixel_size_mm, pose, world, places, u, sigma, NOISE) == {}
