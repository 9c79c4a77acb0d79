"""Predictions against the camera's own projection."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.camera import ArrayTilt
from lifcal.measure import compute_tangents, find_micro_images, predict, slopes_of_planes
from lifcal.reconstruction import Reconstruction
from lifcal.simulate import build_camera

N_VIEWS = 5


@pytest.fixture(params=["mini", "mini-keplerian", "mini, tilted"])
def camera(request):
    name, _, tilted = request.param.partition(", ")
    camera = build_camera(name).camera
    return replace(camera, tilt=ArrayTilt(4e-5, -3e-5)) if tilted else camera


@pytest.fixture
def geometry(camera, rng):
    """Points before all views."""
    rotations = Rotation.from_rotvec(rng.normal(scale=0.1, size=(N_VIEWS, 3))).as_matrix()
    depth = rng.uniform(450.0, 1200.0, 30)
    places = rng.uniform(0.2, 0.8, (30, 2)) * camera.image_size
    xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    return Reconstruction(
        camera.array,
        camera.distortion,
        rotations,
        rng.normal(scale=30.0, size=(N_VIEWS, 3)),
        np.column_stack([xy, depth]),
        tilt=np.zeros(0) if camera.tilt is None else camera.tilt.as_vector(),
    )


def random_pairs(geometry, camera, rng, n=300):
    """Random points, views and lenses, whether or not the lens sees the point."""
    return (
        np.sort(rng.integers(0, len(geometry.points_world_mm), n)),
        rng.integers(0, N_VIEWS, n),
        rng.integers(0, len(camera.grid), n),
    )


def cam_points(geometry, points_world, views):
    return np.array(
        [
            geometry.rotations[view] @ point + geometry.translations_mm[view]
            for point, view in zip(points_world, views, strict=True)
        ]
    )


def test_places_are_the_cameras(camera, geometry, rng):
    tracks, views, lenses = random_pairs(geometry, camera, rng)
    points = np.arange(len(geometry.points_world_mm))
    tangents = compute_tangents(geometry, points, np.zeros_like(points))
    images = predict(geometry, camera.grid, tangents, tracks, views, lenses)
    cam = cam_points(geometry, geometry.points_world_mm[tracks], views)
    wanted = camera.project(cam, lenses)
    # lenses far from the point are beyond the distortion's reach, where none is asked
    near = np.linalg.norm(wanted - camera.grid.centers_raw_px[lenses], axis=1) < 300.0
    assert near.sum() > 200
    np.testing.assert_allclose(images.places_px[near], wanted[near], atol=1e-9)
    u = camera.virtual_depth_from_depth(cam[:, 2], camera.image_centers_und_px[lenses])
    np.testing.assert_allclose(1.0 / images.rhos, u, rtol=1e-12)
    away = images.places_px - camera.grid.centers_raw_px[lenses]
    np.testing.assert_allclose(images.offsets_px, np.hypot(*away.T), rtol=1e-12)
    np.testing.assert_array_equal(images.tracks, tracks)


def test_jacobians_by_central_differences(camera, geometry, rng):
    """Of the surface X + T (s, t, slope . (s, t)), through the camera."""
    points = np.arange(len(geometry.points_world_mm))
    references = rng.integers(0, N_VIEWS, len(points))
    tangents = compute_tangents(geometry, points, references)
    tracks, views = np.sort(rng.integers(0, 30, 200)), rng.integers(0, N_VIEWS, 200)
    cam = cam_points(geometry, geometry.points_world_mm[tracks], views)
    lenses = camera.grid.nearest(
        camera.distortion.distort(camera.virtual_from_cam(cam)[:, :2], camera.principal_point_px)
    )
    images = predict(geometry, camera.grid, tangents, tracks, views, lenses)
    slope = np.array([0.01, -0.02])
    step = 1e-3
    for axis in range(2):
        direction = tangents[tracks, :, axis] + slope[axis] * tangents[tracks, :, 2]
        ends = [
            camera.project(
                cam_points(
                    geometry, geometry.points_world_mm[tracks] + sign * step * direction, views
                ),
                lenses,
            )
            for sign in (1, -1)
        ]
        numeric = (ends[0] - ends[1]) / (2.0 * step)
        analytic = images.jacobians[:, :, axis] + images.tilts * slope[axis]
        np.testing.assert_allclose(analytic, numeric, atol=1e-6 * np.abs(numeric).max())
    # the checker can fail
    assert np.abs(images.jacobians[:, :, 0] * 1.001 - numeric).max() > 1e-4


def test_a_px_of_the_texture_is_a_px_of_the_reference(camera, geometry):
    """On a surface that faces it; only the distortion bends it. A slope moves along the ray."""
    points = np.arange(len(geometry.points_world_mm))
    references = points % N_VIEWS
    tangents = compute_tangents(geometry, points, references)
    cam = geometry.cam_points(points, references)
    recorded, u = geometry.virtual_points(cam)
    lenses = camera.grid.nearest(recorded)
    images = predict(geometry, camera.grid, tangents, points, references, lenses)
    wanted = np.sign(u)[:, None, None] * np.eye(2)
    np.testing.assert_allclose(images.jacobians, wanted + np.zeros((len(u), 2, 2)), atol=0.03)
    stepped = geometry.rotations[references] @ tangents
    np.testing.assert_allclose(stepped[:, :, 2], cam, rtol=1e-9)
    np.testing.assert_allclose(stepped[:, 2, :2], 0.0, atol=1e-12)


def test_virtual_points(camera, geometry):
    points = np.arange(len(geometry.points_world_mm))
    cam = geometry.cam_points(points, np.zeros_like(points))
    recorded, u = geometry.virtual_points(cam)
    wanted = camera.virtual_from_cam(cam)
    back = camera.distortion.undistort(recorded, camera.principal_point_px)
    np.testing.assert_allclose(back, wanted[:, :2], atol=1e-6)
    np.testing.assert_allclose(u, wanted[:, 2], rtol=1e-12)
    behind = cam * [1.0, 1.0, -1.0]
    recorded, u = geometry.virtual_points(behind)
    assert np.isnan(u).all()
    assert np.isnan(recorded).all()


def test_micro_images_that_see_a_point(camera, geometry):
    tracks, views = np.array([0, 0, 3, 7]), np.array([0, 2, 1, 4])
    most = 0.4 * camera.grid.pitch_px
    owners, lenses = find_micro_images(geometry, camera.grid, tracks, views, most)
    for pair in range(4):
        cam = geometry.cam_points(tracks[[pair]], views[[pair]])
        recorded, u = geometry.virtual_points(cam)
        away = np.linalg.norm(camera.grid.centers_raw_px - recorded, axis=1)
        wanted = np.flatnonzero(away <= most * abs(u[0]))
        assert len(wanted) > 3
        np.testing.assert_array_equal(np.sort(lenses[owners == pair]), wanted)
        # what a lens found there shows of it lies near its center
        seen = camera.project(np.repeat(cam, len(wanted), axis=0), wanted)
        offsets = np.linalg.norm(seen - camera.grid.centers_raw_px[wanted], axis=1)
        assert offsets.max() < 1.1 * most


def test_no_micro_image_sees_what_is_behind(camera, geometry):
    turned = Reconstruction(
        geometry.array,
        geometry.distortion,
        geometry.rotations,
        geometry.translations_mm - [0.0, 0.0, 5000.0],
        geometry.points_world_mm,
    )
    owners, lenses = find_micro_images(turned, camera.grid, np.array([0]), np.array([0]), 5.0)
    assert len(owners) == len(lenses) == 0


def test_slopes_of_planes(geometry, rng):
    """Small steps over a texture with these slopes stay in the plane."""
    n = len(geometry.points_world_mm)
    tangents = compute_tangents(geometry, np.arange(n), rng.integers(0, N_VIEWS, n))
    normals = rng.normal(size=(n, 3))
    normals[3] = np.nan
    slopes = slopes_of_planes(tangents, normals)
    assert np.isnan(slopes[3]).all()
    for i in set(range(n)) - {3}:
        for axis in range(2):
            step = tangents[i, :, axis] + slopes[i, axis] * tangents[i, :, 2]
            assert abs(normals[i] @ step) < 1e-9 * np.linalg.norm(step) * np.linalg.norm(normals[i])
