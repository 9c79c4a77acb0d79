"""What shading and tilt do to blurred points: against the apertures themselves."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import compute_disc_overlap
from lifcal.measure import MicroImages, compute_shading_shifts, compute_tilt_shifts, spread_windows
from lifcal.reconstruction import Reconstruction
from lifcal.simulate import build_camera


@pytest.fixture(scope="module")
def camera():
    return build_camera("mini-real").camera


def make_geometry(camera):
    none = np.zeros((0, 3))
    return Reconstruction(camera.array, camera.distortion, np.zeros((0, 3, 3)), none, none)


def make_images(camera, rng, n=60):
    grid = camera.grid
    lenses = rng.integers(0, len(grid), n)
    angle, radius = rng.uniform(0.0, 2.0 * np.pi, n), rng.uniform(0.0, 4.0, n)
    offsets = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    zeros = np.zeros(n, np.int64)
    return MicroImages(
        zeros,
        zeros,
        lenses,
        grid.centers_raw_px[lenses] + offsets,
        np.zeros((n, 2, 2)),
        np.zeros((n, 2)),
        1.0 / rng.uniform(2.3, 4.5, n),
        radius,
    )


def sum_over_aperture(camera, images):
    """Put the light of every point of the aperture where it goes, in mm, and take the centroid.

    The pixel is sampled at nine points of a Gauss rule. What lies off its center is taken for
    something in the center, which moves it by the opposite of its position in the pixel.
    """
    p, pixel, grid = camera.parameters, camera.pixel_size_mm, camera.grid
    b, micro = p.lens_to_array_mm, p.array_to_sensor_mm
    steps = np.linspace(-1.0, 1.0, 101)
    disc = np.array([(x, y) for x in steps for y in steps if x * x + y * y <= 1.0])
    nodes, node_weights = np.polynomial.legendre.leggauss(3)
    inside = 0.5 * np.array([(x, y) for x in nodes for y in nodes])
    shares = np.array([v * w for v in node_weights for w in node_weights])
    c = np.array([p.principal_x_px, p.principal_y_px])
    found = []
    for lens, place, rho in zip(images.lenses, images.places_px, images.rhos, strict=True):
        center = grid.centers_raw_px[lens]
        kind = grid.lens_types[lens]
        u_focus = grid.focal_planes[kind]
        # 1 / u = (B / b + 1 / v) / (1 + B / b), the paper's v
        ratio = micro / b
        v_focus = 1.0 / ((1.0 + ratio) / u_focus - ratio)
        v = 1.0 / ((1.0 + ratio) * rho - ratio)
        radius = pixel * grid.discs.micro_px[kind] / abs(ratio + 1.0 / v_focus)
        points = radius * disc
        chief = (center - c) * pixel * micro / (b + micro)
        landed = points[:, None] * (1.0 / v_focus - 1.0 / v) - pixel * inside
        slopes = (place - center + inside) * pixel + chief - points[:, None]
        weights = shares * (1.0 + np.sum((slopes / micro) ** 2, axis=2)) ** -2
        moved = np.average(landed.reshape(-1, 2), axis=0, weights=weights.ravel())
        found.append(moved / pixel)
    return np.array(found)


def test_shifts_are_those_of_light_through_the_aperture(camera, rng):
    images = make_images(camera, rng)
    wanted = sum_over_aperture(camera, images)
    known = camera.parameters.array_to_sensor_mm / camera.pixel_size_mm
    found = compute_shading_shifts(images, make_geometry(camera), camera.grid, known)
    assert np.abs(wanted).max() > 0.05
    # of the weight over the aperture, terms of the fourth order are left out
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=0.03 * np.abs(wanted).max())


def test_without_a_scale_the_shading_tells_how_far_the_sensor_is(camera, rng):
    images, geometry = make_images(camera, rng), make_geometry(camera)
    known = camera.parameters.array_to_sensor_mm / camera.pixel_size_mm
    by_scale = compute_shading_shifts(images, geometry, camera.grid, known)
    by_shading = compute_shading_shifts(images, geometry, camera.grid)
    np.testing.assert_allclose(by_shading, by_scale, atol=1e-9)


def test_in_focus_only_the_width_of_pixels_moves_points(camera, rng):
    images, geometry, grid = make_images(camera, rng), make_geometry(camera), camera.grid
    sharp = replace(images, rhos=1.0 / grid.focal_planes[grid.lens_types[images.lenses]])
    known = camera.parameters.array_to_sensor_mm / camera.pixel_size_mm
    assert np.abs(compute_shading_shifts(sharp, geometry, grid, pixel_px2=0.0)).max() < 1e-12
    found = compute_shading_shifts(sharp, geometry, grid, known)
    wanted = sum_over_aperture(camera, sharp)
    assert np.abs(wanted).max() > 0.004
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=0.05 * np.abs(wanted).max())


def test_nothing_moves_where_no_shading_is_seen(camera, rng):
    images, geometry, grid = make_images(camera, rng), make_geometry(camera), camera.grid
    even = replace(grid, discs=replace(grid.discs, shading_px2=0.0))
    for other in (even, replace(grid, discs=None), replace(grid, focal_planes=None)):
        assert not compute_shading_shifts(images, geometry, other).any()


def test_discs_of_a_tilted_array(camera, rng):
    """Against the apertures of single lenses, with their own distances and one focal length."""
    p, grid = camera.parameters, camera.grid
    tilted = replace(make_geometry(camera), tilt=np.array([3e-5, -2e-5]))
    images = make_images(camera, rng, 40)
    found = compute_tilt_shifts(images, tilted, grid)
    total = p.lens_to_array_mm + p.array_to_sensor_mm
    wanted = []
    for lens, place, rho in zip(images.lenses, images.places_px, images.rhos, strict=True):
        center, kind = grid.centers_raw_px[lens], grid.lens_types[lens]
        tau = float(tilted.tau(camera.distortion.undistort(center[None], tilted.principal_px))[0])
        ratio = p.array_to_sensor_mm / p.lens_to_array_mm
        v_focus = 1.0 / ((1.0 + ratio) / grid.focal_planes[kind] - ratio)
        micro_focal = p.array_to_sensor_mm / (1.0 - 1.0 / v_focus)
        own_ratio = ratio * (1.0 + tau)
        b = total / (1.0 + own_ratio)
        own_v_focus = 1.0 / (1.0 - (total - b) / micro_focal)
        main = grid.discs.main_px / ratio * own_ratio
        aperture = grid.discs.micro_px[kind] / abs(ratio + 1.0 / v_focus)
        micro = aperture * abs(own_ratio + 1.0 / own_v_focus)
        distance = np.hypot(*(place - center))
        usual = compute_disc_overlap(grid.discs.micro_px[kind], grid.discs.main_px, distance)[1]
        own = compute_disc_overlap(micro, main, distance)[1]
        own_u_focus = (1.0 + own_ratio) / (own_ratio + 1.0 / own_v_focus)
        outward = (1.0 - rho * own_u_focus) * (own - usual)
        wanted.append(outward * (place - center) / distance)
    wanted = np.nan_to_num(np.array(wanted))
    assert np.abs(wanted).max() > 0.002
    # B / b_L0 = 0.024 is left out where it stands beside 1
    np.testing.assert_allclose(found, wanted, atol=0.08 * np.abs(wanted).max())
    assert not compute_tilt_shifts(images, make_geometry(camera), grid).any()


def test_windows_are_spread_as_the_shift_of_shading_changes(camera, rng):
    """Neighbors of a point on the texture are moved by the shading where they are."""
    geometry = make_geometry(camera)
    images = replace(
        make_images(camera, rng),
        jacobians=rng.normal(size=(60, 2, 2)),
        tilts=rng.normal(size=(60, 2)),
    )
    spread = spread_windows(images, geometry, camera.grid)
    here = compute_shading_shifts(images, geometry, camera.grid)
    for step in (np.array([0.5, 0.0]), np.array([-0.2, 0.4])):
        beside = images.jacobians @ step
        moved = replace(images, places_px=images.places_px + beside)
        change = compute_shading_shifts(moved, geometry, camera.grid) - here
        found = spread.jacobians @ step - beside
        assert np.abs(change).max() > 0.005
        # the shift is linear up to the square of the slope of the light, some 5 %
        np.testing.assert_allclose(found, change, atol=0.06 * np.abs(change).max())
    even = replace(camera.grid, discs=replace(camera.grid.discs, shading_px2=0.0))
    np.testing.assert_array_equal(
        spread_windows(images, geometry, even).jacobians, images.jacobians
    )
