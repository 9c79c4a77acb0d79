from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import (
    BrownDistortion,
    PhysicalParameters,
    PinholeArray,
    PlenopticCamera,
)
from lifcal.errors import InputError
from tests.camera import cases


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-16.0, 15.0, 0.4, 1000, 1000), "focal length f_L is -16.0 mm, needs a positive number"),
        ((16.0, 0.0, 0.4, 1000, 1000), "distance b_L0 is 0.0"),
        ((16.0, 15.0, float("nan"), 1000, 1000), "distance B is nan"),
        ((16.0, 0.4, 15.0, 1000, 1000), "Are the two swapped"),
        ((16.0, 15.0, 0.4, float("inf"), 1000), "principal point is"),
    ],
)
def test_impossible_cameras_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        PhysicalParameters(*values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((2958.0, 1000, 1000, 2.2, -5.0), "need to be positive"),
        ((2958.0, 1000, 1000, 60.0, 688.0), "alpha = 60.0 is impossible"),
    ],
)
def test_impossible_pinhole_arrays_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        PinholeArray(*values).to_physical(0.0055)


def test_scale_is_carried_by_beta_alone(rng):
    """A scene twice as large with twice the beta looks the same."""
    camera = cases.make_camera("r5-16mm", "brown", rng)
    points, lenses = cases.make_pairs(camera, "r5-16mm", rng, 50)
    a = camera.array
    larger = PlenopticCamera.from_pinhole_array(
        PinholeArray(a.focal_px, a.principal_x_px, a.principal_y_px, a.alpha, 2 * a.beta_mm),
        camera.pixel_size_mm,
        camera.grid,
        camera.distortion,
    )
    np.testing.assert_allclose(
        larger.project(2 * points, lenses), camera.project(points, lenses), atol=1e-9
    )


def make_covariance(camera, rng):
    sizes = np.array([0.5, 0.3, 0.3, 1e-3, 0.5, 1e-11, 1e-17, 1e-24, 1e-9, 1e-9])
    mixing = np.eye(10) + 0.4 * rng.normal(size=(10, 10))
    covariance = mixing @ mixing.T * np.outer(sizes, sizes)
    return PlenopticCamera(
        camera.parameters,
        camera.pixel_size_mm,
        camera.grid,
        camera.distortion,
        "markers",
        covariance,
    )


def test_covariance_goes_through_the_jacobian(rng):
    """Against the spread of many converted draws."""
    camera = make_covariance(cases.make_camera("r5-16mm", "brown", rng), rng)
    root = np.linalg.cholesky(camera.covariance[:5, :5])
    start = camera.array.as_vector()
    draws = np.array(
        [
            PinholeArray.from_vector(start + root @ rng.normal(size=5))
            .to_physical(camera.pixel_size_mm)
            .as_vector()
            for _ in range(20_000)
        ]
    )
    predicted = camera.physical_covariance()[:5, :5]
    sigma = np.sqrt(np.diag(predicted))
    spread = np.cov((draws - camera.parameters.as_vector()).T)
    # 20000 draws know a variance to 1 %, a correlation to 0.007.
    np.testing.assert_allclose(
        spread / np.outer(sigma, sigma), predicted / np.outer(sigma, sigma), atol=0.05
    )
    sigmas = camera.sigmas()
    assert sigmas["f_L"] == pytest.approx(sigma[0])
    assert sigmas["F"] == pytest.approx(np.sqrt(camera.covariance[0, 0]))
    assert sigmas["k0"] == pytest.approx(np.sqrt(camera.covariance[5, 5]))
    assert sigmas["c_x"] == pytest.approx(np.sqrt(camera.covariance[1, 1]))


def test_covariance_there_and_back(rng):
    camera = make_covariance(cases.make_camera("r5-35mm", "brown", rng), rng)
    physical = camera.physical_covariance()
    back = np.eye(10)
    back[:5, :5] = camera.parameters.array_jacobian(camera.pixel_size_mm)
    scale = np.sqrt(np.diag(camera.covariance))
    np.testing.assert_allclose(
        (back @ physical @ back.T) / np.outer(scale, scale),
        camera.covariance / np.outer(scale, scale),
        atol=1e-6,
    )


def test_no_covariance_no_sigmas(rng):
    camera = cases.make_camera("r5-16mm", "none", rng)
    assert camera.sigmas() == {}
    assert camera.physical_covariance() is None


def test_wrong_covariance_is_refused(rng):
    camera = cases.make_camera("r5-16mm", "none", rng)
    with pytest.raises(InputError, match=r"covariance has shape \(4, 4\), needs \(5, 5\)"):
        PlenopticCamera(camera.parameters, 0.0055, camera.grid, covariance=np.eye(4))
    skew = np.eye(5)
    skew[0, 1] = 0.5
    with pytest.raises(InputError, match="not symmetric"):
        PlenopticCamera(camera.parameters, 0.0055, camera.grid, covariance=skew)
    with pytest.raises(InputError, match="pixel_size_mm is 0"):
        PlenopticCamera(camera.parameters, 0.0, camera.grid)


def test_repr_says_the_numbers(rng):
    camera = cases.make_camera("r5-16mm", "brown", rng)
    assert "f_L=16." in repr(camera)
    assert "distortion brown" in repr(camera)
    assert "lenses" in repr(camera.grid)
    assert BrownDistortion(k0=1.0) != BrownDistortion(k0=2.0)


def test_what_is_held_has_no_variance(rng):
    """Covariances of the pinhole form in which two physical parameters are held: only rounding."""
    camera = cases.make_camera("r5-16mm", "brown", rng)
    n = 5 + len(camera.distortion.parameters)
    to_array = np.linalg.inv(camera.array.physical_jacobian(camera.pixel_size_mm))
    for _ in range(20):
        root = rng.normal(size=(n, n)) * rng.uniform(1e-6, 1e-2, n)[:, None]
        physical = root @ root.T
        physical[[0, 2]] = physical[:, [0, 2]] = 0.0
        change = np.eye(n)
        change[:5, :5] = to_array
        covariance = change @ physical @ change.T
        held = replace(camera, covariance=(covariance + covariance.T) / 2.0)
        sigmas = held.sigmas()
        assert sigmas["f_L"] == sigmas["B"] == 0.0
        np.testing.assert_allclose(sigmas["b_L0"], np.sqrt(physical[1, 1]), rtol=1e-6)
