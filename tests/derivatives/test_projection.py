"""Every block of the projection's Jacobian, against complex steps on the slow twin."""

import numpy as np
import pytest

from lifcal.camera import ARRAY_PARAMETERS, PHYSICAL_PARAMETERS, TILT_PARAMETERS, PinholeArray
from lifcal.geometry import RigidTransform
from tests.camera import cases
from tests.derivatives.checker import central_difference, check_block, check_columns, complex_step
from tests.reference import paper_model

EXACT = 1e-10
THROUGH_STEP = 1e-6
N_PAIRS = 8
# ruff: noqa: B023 (each function is used up within its turn of the loop)


@pytest.fixture(params=cases.DESIGNS)
def design(request):
    return request.param


@pytest.fixture(params=cases.KINDS)
def camera(request, design, rng):
    return cases.make_camera(design, request.param, rng)


def each_pair(camera, design, rng):
    points, lenses = cases.make_pairs(camera, design, rng, N_PAIRS)
    jacobian = camera.project_with_jacobian(points, lenses)
    for i in range(N_PAIRS):
        yield i, points[i], camera.grid.centers_raw_px[lenses[i]], jacobian


def test_by_point(camera, design, rng):
    twin, distortion = cases.twin_camera(camera), cases.twin_distortion(camera.distortion)
    t = cases.twin_tilt(camera)
    for i, point, center, jacobian in each_pair(camera, design, rng):
        numeric = complex_step(lambda x: paper_model.project(x, center, twin, distortion, t), point)
        check_block("point", jacobian.by_point[i], numeric, EXACT)


def test_by_physical(camera, design, rng):
    distortion, s = cases.twin_distortion(camera.distortion), camera.pixel_size_mm
    t = cases.twin_tilt(camera)
    start = camera.parameters.as_vector()
    for i, point, center, jacobian in each_pair(camera, design, rng):
        numeric = complex_step(
            lambda x: paper_model.project(point, center, paper_model.Camera(*x, s), distortion, t),
            start,
        )
        check_columns(PHYSICAL_PARAMETERS, jacobian.by_physical[i], numeric, EXACT)


def test_by_intrinsics(camera, design, rng):
    distortion, s = cases.twin_distortion(camera.distortion), camera.pixel_size_mm
    t = cases.twin_tilt(camera)
    start = camera.array.as_vector()
    for i, point, center, jacobian in each_pair(camera, design, rng):
        numeric = complex_step(
            lambda x: paper_model.project_from_pinholes(
                point, center, paper_model.Pinholes(*x), s, distortion, t
            ),
            start,
        )
        check_columns(ARRAY_PARAMETERS, jacobian.by_intrinsics[i], numeric, EXACT)


def test_by_distortion(camera, design, rng):
    if camera.distortion.name == "none":
        points, lenses = cases.make_pairs(camera, design, rng, 3)
        assert camera.project_with_jacobian(points, lenses).by_distortion.shape == (3, 2, 0)
        return
    twin, kind = cases.twin_camera(camera), type(cases.twin_distortion(camera.distortion))
    names, t = camera.distortion.parameter_names(), cases.twin_tilt(camera)
    for i, point, center, jacobian in each_pair(camera, design, rng):
        numeric = complex_step(
            lambda x: paper_model.project(point, center, twin, kind(*x), t),
            camera.distortion.parameters,
        )
        check_columns(names, jacobian.by_distortion[i], numeric, EXACT)


def test_by_tilt(camera, design, rng):
    twin, distortion = cases.twin_camera(camera), cases.twin_distortion(camera.distortion)
    start = np.zeros(2) if camera.tilt is None else camera.tilt.as_vector()
    for i, point, center, jacobian in each_pair(camera, design, rng):
        numeric = complex_step(
            lambda t: paper_model.project(point, center, twin, distortion, t), start
        )
        check_columns(TILT_PARAMETERS, jacobian.by_tilt[i], numeric, EXACT)


def test_by_pose(camera, design, rng):
    twin, distortion = cases.twin_camera(camera), cases.twin_distortion(camera.distortion)
    cam_from_world = RigidTransform.from_rotation_vector(
        rng.normal(size=3), rng.normal(scale=300.0, size=3)
    )
    for i, point, center, jacobian in each_pair(camera, design, rng):
        world = cam_from_world.inverse().apply(point[None])[0]
        exact = complex_step(
            lambda x: paper_model.project_world(
                world,
                cam_from_world.rotation,
                cam_from_world.translation_mm,
                x[:3],
                x[3:],
                center,
                twin,
                distortion,
                cases.twin_tilt(camera),
            ),
            np.zeros(6),
        )
        check_block("rotation", jacobian.by_pose[i, :, :3], exact[:, :3], EXACT)
        check_block("translation", jacobian.by_pose[i, :, 3:], exact[:, 3:], EXACT)


def test_by_pose_through_the_step(camera, design, rng):
    """Through RigidTransform.step itself, so that the step and the derivative mean the same."""
    points, lenses = cases.make_pairs(camera, design, rng, N_PAIRS)
    jacobian = camera.project_with_jacobian(points, lenses)
    cam_from_world = RigidTransform.from_rotation_vector(
        rng.normal(size=3), rng.normal(scale=300.0, size=3)
    )
    world = cam_from_world.inverse().apply(points)
    steps = np.array([1e-5] * 3 + [1e-3 * points[:, 2].mean() / 100] * 3)
    numeric = central_difference(
        lambda delta: camera.project(cam_from_world.step(delta).apply(world), lenses),
        np.zeros(6),
        steps,
    )
    check_block("rotation", jacobian.by_pose[:, :, :3], numeric[:, :, :3], THROUGH_STEP)
    check_block("translation", jacobian.by_pose[:, :, 3:], numeric[:, :, 3:], THROUGH_STEP)


@pytest.mark.parametrize("block", ["by_point", "by_intrinsics", "by_distortion", "by_tilt"])
def test_a_scaled_column_is_caught(block, rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    points, lenses = cases.make_pairs(camera, "r5-16mm", rng, 1)
    right = getattr(camera.project_with_jacobian(points, lenses), block)[0]
    names = [str(i) for i in range(right.shape[1])]
    for column in range(right.shape[1]):
        wrong = right.copy()
        wrong[:, column] *= 1.001
        with pytest.raises(AssertionError):
            check_columns(names, wrong, right, EXACT)


def test_conversion_jacobians(design, rng):
    camera = cases.make_camera(design, "none", rng)
    s = camera.pixel_size_mm
    there = complex_step(
        lambda x: np.array(paper_model.pinholes_from_camera(paper_model.Camera(*x, s))),
        camera.parameters.as_vector(),
    )
    check_columns(PHYSICAL_PARAMETERS, camera.parameters.array_jacobian(s), there, EXACT)
    back = complex_step(
        lambda x: np.array(paper_model.camera_from_pinholes(paper_model.Pinholes(*x), s)[:5]),
        camera.array.as_vector(),
    )
    check_columns(ARRAY_PARAMETERS, camera.array.physical_jacobian(s), back, EXACT)


def test_conversion_is_exact_both_ways(design, rng):
    for _ in range(200):
        camera = cases.make_camera(design, "none", rng)
        back = camera.array.to_physical(camera.pixel_size_mm)
        np.testing.assert_allclose(
            back.as_vector(), camera.parameters.as_vector(), rtol=1e-12, atol=0
        )
        again = back.to_pinhole_array(camera.pixel_size_mm)
        np.testing.assert_allclose(again.as_vector(), camera.array.as_vector(), rtol=1e-11)
        assert PinholeArray.from_vector(camera.array.as_vector()) == camera.array
