"""The tilt of the micro-lens array in the adjustment: found where it is, left out where not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bundle_scenes import make_scene
from lifcal.bundle import AdjustOptions, Prior, adjust
from lifcal.camera import TILT_PARAMETERS, ArrayTilt
from lifcal.errors import ConfigError
from lifcal.simulate import build_camera
from tests.bundle import cases

OPTIONS = AdjustOptions(distortion="brown", fixed={"k1": 0.0, "k2": 0.0})
ANGLES_DEG = np.array([0.05, -0.03])
NOISE_PX = 0.1


def tilted_scene(rng, angles_deg=ANGLES_DEG, name="mini"):
    camera = build_camera(name).camera
    b = camera.parameters.array_to_sensor_mm
    tilt = ArrayTilt.from_angles(angles_deg, b, camera.pixel_size_mm)
    camera = replace(camera, tilt=tilt)
    return make_scene(camera, cases.DEPTHS_MM[name], 100, 10, rng)


def run(scene, observations, rng, **changes):
    start = replace(cases.perturb(scene.truth, rng), tilt=np.zeros(0))
    return adjust(
        observations,
        start,
        scene.camera.pixel_size_mm,
        scene.camera.grid,
        replace(OPTIONS, **changes),
        distances=scene.distances(8, 0.02, rng),
    )


def errors(found, scene):
    """Every error in its sigmas, by name, and the sigmas."""
    true = dict(
        zip(
            (*found.problem.names[:5], *TILT_PARAMETERS),
            (*scene.truth.array.as_vector(), *scene.truth.tilt),
            strict=True,
        )
    )
    values = dict(zip(found.problem.names, found.state.as_vector(), strict=True))
    sigmas = found.covariance.sigmas()
    return {
        name: (values[name] - true[name]) / sigmas[name]
        for name in true
        if sigmas.get(name, 0.0) > 0.0
    }


@pytest.mark.parametrize("name", ["mini", "mini-keplerian"])
def test_a_tilt_is_found_exactly_without_noise(name, rng):
    scene = tilted_scene(rng, name=name)
    wide = {parameter: Prior(0.0, 1.0) for parameter in TILT_PARAMETERS}
    found = run(scene, scene.observations, rng, tilt="free", priors=wide)
    np.testing.assert_allclose(found.camera.tilt.as_vector(), scene.truth.tilt, rtol=1e-5)
    assert found.camera.array.beta_mm == pytest.approx(scene.truth.array.beta_mm, rel=1e-5)
    angles, _ = found.camera.tilt_angles_deg()
    np.testing.assert_allclose(angles, ANGLES_DEG, rtol=1e-4)


def test_a_tilt_that_pays_is_estimated(rng):
    scene = tilted_scene(rng)
    observations, _ = scene.noisy(NOISE_PX, rng)
    found = run(scene, observations, rng)
    off = errors(found, scene)
    assert set(TILT_PARAMETERS) <= set(off)
    assert max(map(abs, off.values())) < 4.0
    assert found.summary.rms_px == pytest.approx(NOISE_PX, rel=0.1)
    assert found.camera.covariance.shape == (12, 12)
    assert found.camera.parameter_names[-2:] == TILT_PARAMETERS


def test_without_the_tilt_the_same_recording_is_off_by_many_sigmas(rng):
    """So the tests above can fail. A larger tilt: 100 points on a small camera know little."""
    scene = tilted_scene(rng, 4.0 * ANGLES_DEG)
    observations, _ = scene.noisy(NOISE_PX, rng)
    found = run(scene, observations, rng, tilt="none")
    assert found.camera.tilt is None
    assert "t_x" not in found.problem.names
    assert max(map(abs, errors(found, scene).values())) > 6.0


def test_a_parallel_array_is_left_parallel(rng):
    """The price of two terms is paid by chance in one of seven runs: here, in at most half."""
    paid = 0
    for _ in range(6):
        scene = tilted_scene(rng, angles_deg=np.zeros(2))
        observations, _ = scene.noisy(NOISE_PX, rng)
        found = run(scene, observations, rng)
        paid += bool(found.camera.tilt.as_vector().any())
        assert max(map(abs, errors(found, scene).values())) < 4.0
    assert paid <= 3


def test_only_a_clear_tilt_is_estimated():
    """Two to three sigmas are left out, because errors that points share look like that."""
    doubtful = clear = 0
    for factor in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.8):
        rng = np.random.default_rng(5)
        scene = tilted_scene(rng, factor * ANGLES_DEG)
        observations, _ = scene.noisy(NOISE_PX, rng)
        free = run(scene, observations, np.random.default_rng(6), tilt="free")
        places = [free.covariance.names.index(name) for name in TILT_PARAMETERS]
        tilt = free.state.tilt
        square = tilt @ np.linalg.inv(free.covariance.array[np.ix_(places, places)]) @ tilt
        found = run(scene, observations, np.random.default_rng(6)).state.tilt.any()
        if 5.0 < square < 14.0:
            doubtful += 1
            assert not found
        elif square > 18.0:
            clear += 1
            assert found
    assert doubtful
    assert clear


def test_a_narrow_prior_holds_the_tilt(rng):
    scene = tilted_scene(rng)
    observations, _ = scene.noisy(NOISE_PX, rng)
    narrow = {parameter: Prior(2e-5, 1e-7) for parameter in TILT_PARAMETERS}
    found = run(scene, observations, rng, tilt="free", priors=narrow)
    np.testing.assert_allclose(found.camera.tilt.as_vector(), 2e-5, atol=1e-6)
    assert found.covariance.sigmas()["t_x"] == pytest.approx(1e-7, rel=0.01)


def test_without_a_scale_the_prior_is_that_of_the_corner(rng):
    scene = tilted_scene(rng)
    observations, _ = scene.noisy(NOISE_PX, rng)
    found = adjust(
        observations, scene.truth, scene.camera.pixel_size_mm, scene.camera.grid, OPTIONS
    )
    assert found.problem.priors["t_x"].sigma == pytest.approx(0.02 / 400.0)
    assert abs(errors(found, scene)["t_x"]) < 4.0


def test_an_unknown_option_is_named():
    with pytest.raises(ConfigError, match="unknown tilt option 'yes'"):
        AdjustOptions(tilt="yes")
