"""The bias of depth maps, from points that are known better."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.bundle_scenes import make_scene
from lifcal.calibration.depth_bias import fit_depth_bias, measure_depth_bias
from lifcal.camera import DepthBias
from lifcal.errors import InputError
from lifcal.simulate import build_camera


def true_bias(u):
    return 1e-3 * np.sin(3.0 * (u - 2.5))


def test_the_curve_is_found_among_noise_and_other_surfaces(rng):
    true = rng.uniform(2.5, 4.5, 8000)
    u = true * (1.0 + true_bias(true) + rng.normal(scale=2e-3, size=8000))
    u[:800] *= 1.0 + rng.uniform(-0.02, 0.2, 800)
    u[800:900] = np.nan
    found = fit_depth_bias(u, true)
    at = np.linspace(2.6, 4.4, 50)
    error = np.interp(at, found.u, found.relative) - true_bias(at)
    assert np.sqrt(np.mean(error**2)) < 1.5e-4
    assert np.abs(np.median(found.remove(u[900:]) / true[900:]) - 1.0) < 1e-4


def test_few_points_say_nothing(rng):
    true = rng.uniform(2.5, 4.5, 99)
    assert fit_depth_bias(true, true) is None
    assert fit_depth_bias(np.full(500, np.nan), np.full(500, 3.0)) is None


def test_maps_are_looked_up_where_points_are_seen(rng):
    """Maps that are the plane u = 3 + x / 1000, 0.3 % too large, of a camera with distortion."""
    camera = build_camera("mini").camera
    scene = make_scene(camera, (400.0, 1500.0), 400, 4, rng)
    state, (width, height) = scene.truth, camera.image_size
    points, views, _ = scene.observations.pairs
    maps = []
    for view in range(4):
        mine = points[views == view]
        cam = state.points_world_mm[mine] @ state.rotations[view].T + state.translations_mm[view]
        seen = camera.principal_point_px + camera.array.focal_px * cam[:, :2] / cam[:, 2:]
        places = camera.distortion.distort(seen, camera.principal_point_px)
        image = np.full((height, width), np.nan, np.float32)
        cols, rows = np.rint(places).astype(int).T
        good = (cols >= 0) & (rows >= 0) & (cols < width) & (rows < height)
        u = 1.003 * camera.virtual_depth_from_depth(cam[:, 2])
        image[rows[good], cols[good]] = u[good]
        maps.append(image)
    problem = SimpleNamespace(observations=scene.observations)
    adjustment = SimpleNamespace(state=state, camera=camera, problem=problem)
    found = measure_depth_bias(adjustment, lambda view: (maps[view], 1.0))
    np.testing.assert_allclose(found.relative, 0.003, atol=1e-4)


def test_remove_keeps_the_type_and_what_is_unknown():
    bias = DepthBias(np.array([2.0, 3.0]), np.array([0.01, -0.01]))
    u = np.array([1.0, 2.0, 2.5, 4.0, np.nan], np.float32)
    found = bias.remove(u)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:4], u[:4] / [1.01, 1.01, 1.0, 0.99], rtol=1e-6)
    assert np.isnan(found[4])


@pytest.mark.parametrize(
    ("u", "relative"), [([], []), ([2.0, 2.0], [0.0, 0.0]), ([2.0], [0.2]), ([2.0], [np.nan])]
)
def test_nonsense_is_refused(u, relative):
    with pytest.raises(InputError):
        DepthBias(np.array(u), np.array(relative))
