"""Halves of a recording: they agree within noise if the model holds, and show it if not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bundle_scenes import make_scene
from lifcal.bundle import AdjustOptions, adjust, compare_halves, cross_validate
from lifcal.bundle.files import summary_to_dict
from lifcal.camera import ArrayTilt
from lifcal.simulate import build_camera
from tests.bundle import cases

OPTIONS = AdjustOptions(distortion="brown", loss="cauchy", clustered=True, tilt="none")
NOISE_PX = 0.1


def solve(rng, tilt_deg=0.0, options=OPTIONS, n_points=120, **known):
    """Adjust a recording whose array may be tilted, by a model without tilt."""
    camera = build_camera("mini").camera
    b = camera.parameters.array_to_sensor_mm
    tilt = ArrayTilt.from_angles([tilt_deg, -tilt_deg], b, camera.pixel_size_mm)
    camera = replace(camera, tilt=tilt)
    scene = make_scene(camera, cases.DEPTHS_MM["mini"], n_points, 12, rng)
    observations, _ = scene.noisy(NOISE_PX, rng)
    start = replace(scene.truth, tilt=np.zeros(0))
    known = known or {"distances": scene.distances(8, 0.02, rng)}
    found = adjust(observations, start, camera.pixel_size_mm, camera.grid, options, **known)
    return scene, found


def test_halves_differ_by_their_noise(rng):
    """Over three recordings: the mean square of 150 differences in sigmas is near 1."""
    squares = []
    for _ in range(3):
        _, found = solve(rng)
        halves = compare_halves(found, OPTIONS)
        assert len(halves.splits) == 6
        squares += [v**2 for split in halves.splits for v in split.in_sigmas().values()]
        assert max(halves.factors.values()) < 2.0
        assert min(halves.factors.values()) >= 1.0
    # Parameters of one half are correlated: some 60 of them are independent, so 1 +- 0.18.
    assert 0.5 < np.mean(squares) < 1.6


def test_a_camera_outside_the_model_is_seen_and_widens_sigma(rng):
    _, found = solve(rng, tilt_deg=0.25)
    wider = cross_validate(found, OPTIONS)
    halves = wider.cross_validation
    split, name, sigmas = halves.worst()
    assert abs(sigmas) > 4.0
    assert max(halves.factors.values()) > 2.0
    before, after = found.covariance.sigmas(), wider.covariance.sigmas()
    for parameter in ("F", "c_x", "c_y", "alpha", "beta"):
        assert after[parameter] == pytest.approx(before[parameter] * halves.factors[parameter])
    assert after["B"] > before["B"]
    assert wider.camera.sigmas()["c_x"] == pytest.approx(after["c_x"])
    assert wider.camera.sigmas()["f_L"] == pytest.approx(after["f_L"])
    content = summary_to_dict(wider)["cross_validation"]
    stored = next(entry for entry in content["splits"] if entry["name"] == split.name)
    entry = stored["differences"][name]
    assert entry["value"] / entry["sigma"] == pytest.approx(sigmas)


def test_held_lengths_stay_held(rng):
    camera = build_camera("mini").camera
    p = camera.parameters
    known = {"f_L": p.focal_length_mm, "B": p.array_to_sensor_mm}
    options = replace(OPTIONS, fixed=known)
    _, found = solve(rng, tilt_deg=0.25, options=options, distances=None)
    wider = cross_validate(found, options)
    sigmas = wider.covariance.sigmas()
    assert sigmas["f_L"] == 0.0
    assert sigmas["B"] == 0.0
    assert sigmas["b_L0"] > 1.2 * found.covariance.sigmas()["b_L0"]


def test_without_a_scale_beta_is_not_compared(rng):
    _, found = solve(rng, distances=None)
    halves = compare_halves(found, OPTIONS)
    assert halves.splits
    assert all("beta" not in split.differences for split in halves.splits)
    assert halves.factors["beta"] == 1.0


def test_too_little_for_halves_says_nothing(rng):
    _, found = solve(rng, n_points=25)
    halves = compare_halves(found, OPTIONS)
    assert halves.splits == ()
    assert set(halves.factors.values()) == {1.0}
    assert halves.worst() is None


def test_rays_are_compared_after_the_rotation_that_fits_best(rng):
    """A shift of c is nearly a rotation; another F is not."""
    from lifcal.bundle.cross_validation import _compare_rays

    scene = cases.small_scene("mini", rng)
    size = scene.camera.image_size
    state = replace(scene.truth, distortion=type(scene.truth.distortion)())
    array = state.array
    moved = replace(state, array=replace(array, principal_x_px=array.principal_x_px + 1.0))
    assert _compare_rays(state, moved, size) < 0.1
    zoomed = replace(state, array=replace(array, focal_px=array.focal_px * 1.01))
    assert _compare_rays(state, zoomed, size) == pytest.approx(2.0, rel=0.3)
