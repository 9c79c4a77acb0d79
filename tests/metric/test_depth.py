from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import ArrayTilt, DepthBias, PinholeArray, PinholeIntrinsics
from lifcal.errors import ConfigError, InputError
from lifcal.metric import MetricFlag, MetricOptions, compute_metric_depth, filter_depth
from lifcal.metric.depth import is_known
from lifcal.simulate import build_camera
from lifcal.virtual import DepthFlag
from tests.metric.cases import with_covariance


@pytest.fixture(scope="module")
def camera():
    return build_camera("mini").camera


def test_depth_and_its_sigma_are_the_model_s(camera, rng):
    z = rng.uniform(300.0, 3000.0, 50)
    u = camera.virtual_depth_from_depth(z)
    found, sigma = compute_metric_depth(camera, u, np.full(50, 0.01))
    np.testing.assert_allclose(found, z, rtol=1e-6)
    step = 1e-5
    numeric = (camera.depth_from_virtual_depth(u - step) - z) / step * 0.01
    np.testing.assert_allclose(sigma, numeric, rtol=1e-3)


def test_a_single_number_will_do(camera):
    u = float(camera.virtual_depth_from_depth(700.0))
    found, sigma = compute_metric_depth(camera, np.asarray(u), np.asarray(0.01))
    assert float(found) == pytest.approx(700.0, rel=1e-6)
    assert float(sigma) > 0.0
    assert float(DepthBias(np.array([2.0]), np.array([0.01])).remove(np.asarray(3.03))) == 3.0


def test_sigma_of_the_calibration(camera, rng):
    """Against cameras drawn from the covariance."""
    camera = with_covariance(camera)
    u = camera.virtual_depth_from_depth(np.array([400.0, 1000.0, 2500.0]))
    _, plain = compute_metric_depth(camera, u, np.full(3, 0.005))
    _, sigma = compute_metric_depth(camera, u, np.full(3, 0.005), calibration=True)
    draws = rng.multivariate_normal([0.0, 0.0], camera.covariance[3:5, 3:5], 20_000)
    alpha, beta = camera.array.alpha + draws[:, :1], camera.array.beta_mm + draws[:, 1:]
    spread = (beta / (u - alpha)).std(axis=0)
    np.testing.assert_allclose(np.sqrt(sigma**2 - plain**2), spread, rtol=0.05)


def test_depth_behind_a_tilted_array(camera, rng):
    """Every pixel by its own place; the covariance against cameras drawn from it."""
    tilted = replace(camera, tilt=ArrayTilt(5e-5, -4e-5))
    size = len(tilted.parameter_names)
    root = np.diag([0.0, 0.0, 0.0, 0.01, 4.0, *np.zeros(size - 7), 1e-5, 2e-5])
    root[-1, 3], root[-2, 4] = 1e-5, -1e-5
    tilted = replace(tilted, covariance=root @ root.T)
    width, height, scale = 32, 24, 0.05
    k = PinholeIntrinsics(
        width, height, *[tilted.array.focal_px * scale] * 2, *(tilted.principal_point_px * scale)
    )
    z = rng.uniform(400.0, 2000.0, (height, width))
    rows, cols = np.mgrid[:height, :width]
    places = np.stack([(cols - k.cx) / scale, (rows - k.cy) / scale], -1)
    places += tilted.principal_point_px
    u = tilted.virtual_depth_from_depth(z, places)
    found, plain = compute_metric_depth(tilted, u, np.full(u.shape, 0.005), k)
    np.testing.assert_allclose(found, z, rtol=1e-5)
    flat, _ = compute_metric_depth(camera, u, np.full(u.shape, 0.005), k)
    assert np.abs(flat / z - 1.0).max() > 0.01
    step = 1e-6
    numeric = np.abs(tilted.depth_from_virtual_depth(u + step, places) - z) / step * 0.005
    np.testing.assert_allclose(plain, numeric, rtol=1e-3)
    _, sigma = compute_metric_depth(tilted, u, np.full(u.shape, 0.005), k, calibration=True)
    draws = []
    for _ in range(4000):
        move = root @ rng.normal(size=size)
        other = PinholeArray.from_vector(tilted.array.as_vector() + move[:5])
        tilt = ArrayTilt(*(tilted.tilt.as_vector() + move[-2:]))
        at_c = 1.0 + (u - 1.0) * (1.0 + tilt.at(places, tilted.principal_point_px))
        draws.append(other.beta_mm / (at_c - other.alpha))
    # 4000 draws know a spread to 1.1 %; the largest of 768 is within four of that
    np.testing.assert_allclose(np.sqrt(sigma**2 - plain**2), np.std(draws, axis=0), rtol=0.06)


def test_no_covariance_is_said(camera):
    with pytest.raises(InputError, match="no covariance"):
        compute_metric_depth(camera, np.zeros(1), np.zeros(1), calibration=True)


def test_infinity_and_beyond_is_unknown(camera):
    alpha = camera.array.alpha
    found, sigma = compute_metric_depth(
        camera, np.array([alpha, alpha - 1.0, np.nan]), np.full(3, 0.01)
    )
    assert np.isnan(found).all()
    assert np.isnan(sigma).all()


def surface(shape=(60, 80), depth=1000.0):
    z = np.full(shape, depth, np.float32)
    return z, np.full(shape, 5.0, np.float32), np.zeros(shape, np.uint8)


def flags_of(z, sigma, flags, range_mm=(0.0, 1e4), **options):
    return filter_depth(z, sigma, flags, range_mm, MetricOptions(**options))


def test_edges_are_left_out_on_both_sides():
    z, sigma, flags = surface()
    z[:, 40:] = 1100.0
    found = flags_of(z, sigma, flags, edge_px=2) & MetricFlag.EDGE
    assert np.flatnonzero(found[30]).tolist() == [38, 39, 40, 41]
    assert not flags_of(z, sigma, flags, edge_px=0).any()
    assert not flags_of(z, np.full_like(sigma, 120.0), flags, most_sigma=0.2).any()
    slope = np.broadcast_to(1000.0 + 15.0 * np.arange(80, dtype=np.float32), z.shape)
    assert not flags_of(slope, sigma, flags).any()


def test_small_patches_are_left_out():
    z, sigma, flags = surface()
    z[10:14, 10:14] = 2000.0  # 16 pixels of their own
    z[:, 50] = np.nan  # a wall between two large surfaces
    z[20:50, 60:79] = 1500.0
    options = {"edge_px": 0, "least_patch_px": 17}
    found = flags_of(z, sigma, flags, **options)
    speckle = (found & MetricFlag.EDGE) != 0
    assert speckle[10:14, 10:14].all()
    assert speckle.sum() == 16
    options["least_patch_px"] = 16
    assert not (flags_of(z, sigma, flags, **options) & MetricFlag.EDGE).any()


def test_what_edges_leave_must_be_large_enough():
    z, sigma, flags = surface()
    z[10:25, 10:25] = 2000.0  # 225 pixels, 169 of them not at the edge
    rim = flags_of(z, sigma, flags, least_patch_px=169) & MetricFlag.EDGE
    assert not rim[11:24, 11:24].any()
    small = flags_of(z, sigma, flags, least_patch_px=170) & MetricFlag.EDGE
    assert small[10:25, 10:25].all()


def test_range_and_confidence():
    z, sigma, flags = surface()
    z[:, :40] = 200.0
    sigma[:20] = 150.0
    found = flags_of(z, sigma, flags, (500.0, 2000.0), edge_px=0, most_sigma=0.1)
    assert ((found & MetricFlag.OUT_OF_RANGE) != 0)[:, :40].all()
    assert not ((found & MetricFlag.OUT_OF_RANGE) != 0)[:, 40:].any()
    assert ((found & MetricFlag.UNSURE) != 0)[:20].all()
    assert not ((found & MetricFlag.UNSURE) != 0)[20:].any()


def test_hidden_pixels_are_kept_or_not():
    flags = np.array([0, DepthFlag.OCCLUSION, DepthFlag.NO_TEXTURE, MetricFlag.EDGE], np.uint8)
    assert is_known(flags, MetricOptions()).tolist() == [True, True, False, False]
    assert is_known(flags, MetricOptions(keep_hidden=False)).tolist() == [True, False, False, False]


def test_bits_do_not_meet():
    assert sum(DepthFlag) & sum(MetricFlag) == 0
    assert sum(MetricFlag) < 256


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"most_sigma": 0.0}, "most_sigma"),
        ({"jump": 1.0}, "jump"),
        ({"edge_px": -1}, "edge_px"),
        ({"range_mm": (500.0, 400.0)}, "nearer first"),
        ({"range_mm": (500.0, np.inf)}, "nearer first"),
    ],
)
def test_options_are_checked(options, word):
    with pytest.raises(InputError, match=word):
        MetricOptions(**options)


def test_unknown_planes_are_named():
    with pytest.raises(ConfigError, match="pinhole, 2B"):
        MetricOptions(plane="sensor")
