"""Projection against the paper's formulas and against traced rays."""

import numpy as np
import pytest

from lifcal.camera import ArrayTilt, MicroLensGrid, PhysicalParameters, PlenopticCamera
from lifcal.errors import InputError
from tests.camera import cases
from tests.reference import paper_model, ray_twin

KINDS = cases.KINDS
TOLERANCE_PX = 1e-9


def project_by_paper(camera, points, lenses):
    twin, distortion = cases.twin_camera(camera), cases.twin_distortion(camera.distortion)
    centers, t = camera.grid.centers_raw_px[lenses], cases.twin_tilt(camera)
    return np.array(
        [
            paper_model.project(point, center, twin, distortion, t)
            for point, center in zip(points, centers, strict=True)
        ]
    )


def project_by_rays(camera, points, lenses):
    p = camera.parameters
    bench = ray_twin.Bench(
        p.focal_length_mm,
        p.lens_to_array_mm,
        p.array_to_sensor_mm,
        tuple(camera.principal_point_px),
        camera.pixel_size_mm,
    )
    c, distortion = camera.principal_point_px, cases.twin_distortion(camera.distortion)

    def distort(point):
        return np.asarray(paper_model.distort(point, c, distortion))

    centers = camera.grid.centers_raw_px[lenses]
    return np.array(
        [
            ray_twin.project(point, center, bench, distort)
            for point, center in zip(points, centers, strict=True)
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("design", cases.DESIGNS)
def test_agrees_with_the_paper_and_with_rays(design, kind, rng):
    for _ in range(3):
        camera = cases.make_camera(design, kind, rng)
        points, lenses = cases.make_pairs(camera, design, rng, 40)
        found = camera.project(points, lenses)
        np.testing.assert_allclose(
            found, project_by_paper(camera, points, lenses), rtol=0, atol=TOLERANCE_PX
        )
        if camera.tilt is not None:
            continue  # the traced bench has a parallel array; the twin above has the plane
        np.testing.assert_allclose(
            found, project_by_rays(camera, points, lenses), rtol=0, atol=TOLERANCE_PX
        )


@pytest.mark.parametrize("factor", [1.0001, 0.9999])
def test_the_comparison_can_fail(factor, rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    points, lenses = cases.make_pairs(camera, "r5-16mm", rng, 10)
    p = camera.parameters
    wrong = PlenopticCamera(
        PhysicalParameters(
            p.focal_length_mm,
            p.lens_to_array_mm,
            p.array_to_sensor_mm * factor,
            p.principal_x_px,
            p.principal_y_px,
        ),
        camera.pixel_size_mm,
        camera.grid,
        camera.distortion,
    )
    difference = wrong.project(points, lenses) - project_by_paper(camera, points, lenses)
    assert np.abs(difference).max() > 1000 * TOLERANCE_PX


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_jacobian_paths_are_the_same(kind, rng):
    camera = cases.make_camera("r5-16mm", kind, rng)
    points, lenses = cases.make_pairs(camera, "r5-16mm", rng, 500)
    found = camera.project_with_jacobian(points, lenses)
    np.testing.assert_array_equal(found.points_raw_px, camera.project(points, lenses))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("design", ["r5-16mm", "r12-50mm", "keplerian-16mm"])
def test_project_all_is_every_lens_that_sees_the_point(design, kind, rng):
    camera = cases.make_camera(design, kind, rng)
    points, _ = cases.make_pairs(camera, design, rng, 30)
    found = camera.project_all(points)
    every = np.arange(len(camera.grid))
    width, height = camera.image_size
    for i, point in enumerate(points):
        recorded = camera.project(np.tile(point, (len(every), 1)), every)
        near = np.linalg.norm(recorded - camera.grid.centers_raw_px, axis=1)
        inside = (
            (near <= camera.grid.radius_px)
            & (recorded[:, 0] >= -0.5)
            & (recorded[:, 0] <= width - 0.5)
            & (recorded[:, 1] >= -0.5)
            & (recorded[:, 1] <= height - 0.5)
        )
        rows = found.point_indices == i
        np.testing.assert_array_equal(found.lens_indices[rows], every[inside])
        np.testing.assert_array_equal(found.points_raw_px[rows], recorded[inside])
    assert len(found.lens_indices) > 30


@pytest.mark.parametrize("kind", ["brown", "tilted brown"])
@pytest.mark.parametrize("design", cases.DESIGNS)
def test_virtual_image_round_trip(design, kind, rng):
    camera = cases.make_camera(design, kind, rng)
    points, _ = cases.make_pairs(camera, design, rng, 1000)
    back = camera.cam_from_virtual(camera.virtual_from_cam(points))
    np.testing.assert_allclose(back, points, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("design", cases.DESIGNS)
def test_virtual_depths_of_both_definitions(design, rng):
    camera = cases.make_camera(design, "none", rng)
    depth = rng.uniform(*cases.DESIGNS[design][3], 200)
    u = camera.virtual_depth_from_depth(depth)
    twin = cases.twin_camera(camera)
    v = np.array([paper_model.virtual_depth(z, twin) for z in depth])
    np.testing.assert_allclose(camera.paper_from_virtual_depth(u), v, rtol=1e-9)
    np.testing.assert_allclose(camera.virtual_depth_from_paper(v), u, rtol=1e-9)
    np.testing.assert_allclose(camera.depth_from_virtual_depth(u), depth, rtol=1e-9)
    assert (np.sign(u) == (-1 if design.startswith("keplerian") else 1)).all()


def test_micro_images_of_a_virtual_point_follow_the_plain_rule(rng):
    """x_R = C + ((x_u, y_u) - C) / u, with no calibration at all."""
    camera = cases.make_camera("r5-16mm", "none", rng)
    points, lenses = cases.make_pairs(camera, "r5-16mm", rng, 100)
    virtual = camera.virtual_from_cam(points)
    centers = camera.grid.centers_raw_px[lenses]
    expected = centers + (virtual[:, :2] - centers) / virtual[:, 2:]
    np.testing.assert_allclose(camera.project(points, lenses), expected, atol=TOLERANCE_PX)


@pytest.mark.parametrize("design", ["r5-16mm", "keplerian-16mm"])
def test_lenses_of_a_tilted_array_show_the_virtual_depth_of_their_place(design, rng):
    """A lens whose micro image is at the virtual point itself shows the u that goes with it."""
    camera = cases.make_camera(design, "tilted none", rng)
    lenses = rng.integers(0, len(camera.grid), 100)
    depth = rng.uniform(*cases.DESIGNS[design][3], 100)
    centers = camera.image_centers_und_px[lenses]
    slope = np.array([3e-4, -2e-4])  # just beside the center, so that there is an offset to divide
    place = centers + slope * camera.array.focal_px
    rays = (place - camera.principal_point_px) / camera.array.focal_px
    points = np.column_stack([rays * depth[:, None], depth])
    seen = camera.project(points, lenses) - centers
    u = camera.virtual_depth_from_depth(depth, centers)
    np.testing.assert_allclose(
        seen, slope * camera.array.focal_px / u[:, None], rtol=1e-9, atol=1e-9
    )
    without = camera.virtual_depth_from_depth(depth)
    assert np.abs(u / without - 1.0).max() > 0.005


def test_a_positive_angle_puts_lenses_at_larger_x_nearer_to_the_sensor():
    parameters = PhysicalParameters(16.7, 15.9, 0.38, 1000.0, 1000.0)
    tilt = ArrayTilt.from_angles([0.05, -0.02], 0.38, 0.0055)
    np.testing.assert_allclose(tilt.angles_deg(parameters, 0.0055), [0.05, -0.02], rtol=1e-12)
    # 500 px are 2.75 mm on the sensor and 2.69 mm on the array, which comes 0.0024 mm nearer
    x_mm = 500 * 0.0055
    array_x_mm = x_mm * 15.9 / 16.28
    behind = 0.38 - array_x_mm * np.tan(np.radians(0.05))
    expected = behind / (16.28 - behind) / (0.38 / 15.9) - 1.0
    assert tilt.at([1500.0, 1000.0], [1000.0, 1000.0]) == pytest.approx(expected, rel=1e-3)


def test_a_tilt_beyond_any_camera_is_refused():
    with pytest.raises(InputError, match=r"tilt is \(7.0, 0.0\) deg, needs at most 5 deg"):
        ArrayTilt.from_angles([7.0, 0.0], 0.38, 0.0055)
    with pytest.raises(InputError, match="needs finite numbers"):
        ArrayTilt(np.nan, 0.0)


def test_what_is_not_in_front_is_nan(rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    points = np.array([[0.0, 0.0, 0.0], [10.0, 5.0, -500.0], [np.nan, 0.0, 500.0]])
    assert np.isnan(camera.project(points, [0, 1, 2])).any(axis=1).all()
    assert len(camera.project_all(points).lens_indices) == 0
    assert np.isnan(camera.virtual_from_cam(points)[:2]).all()
    infinity = [[1000.0, 1000.0, camera.array.alpha], [1000.0, 1000.0, 0.5]]
    assert np.isnan(camera.cam_from_virtual(infinity)).all()


def test_empty_input(rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    assert camera.project(np.empty((0, 3)), []).shape == (0, 2)
    assert camera.project_with_jacobian(np.empty((0, 3)), []).by_pose.shape == (0, 2, 6)
    assert camera.project_all(np.empty((0, 3))).points_raw_px.shape == (0, 2)


def test_wrong_arguments_are_named(rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    with pytest.raises(InputError, match=r"points_cam_mm has shape \(2, 2\), needs \(n, 3\)"):
        camera.project(np.zeros((2, 2)), [0, 1])
    with pytest.raises(InputError, match="lenses has entries from 0 to"):
        camera.project(np.ones((2, 3)), [0, len(camera.grid)])
    with pytest.raises(InputError, match="3 points for 2 lenses"):
        camera.project(np.ones((3, 3)), [0, 1])
    with pytest.raises(InputError, match="one-dimensional array of integers"):
        camera.project(np.ones((2, 3)), [0.5, 1.0])


def test_lens_centers_lie_on_the_line_to_the_principal_point(rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    twin = cases.twin_camera(camera)
    for lens in (0, 7, len(camera.grid) - 1):
        expected = paper_model.lens_center(camera.image_centers_und_px[lens], twin)
        np.testing.assert_allclose(camera.lens_centers_px[lens], expected, atol=1e-9)


def test_lenses_beyond_the_fold_have_no_answer():
    from lifcal.camera import BrownDistortion

    grid = MicroLensGrid.from_centers(
        [[1000.0, 1000.0], [1900.0, 1900.0]], (2000, 2000), radius_px=9
    )
    camera = PlenopticCamera(
        PhysicalParameters(16.7, 15.9, 0.38, 1000.0, 1000.0),
        0.0055,
        grid,
        BrownDistortion(k0=-3e-7),
    )
    found = camera.project([[0.0, 0.0, 500.0]] * 2, [0, 1])
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
