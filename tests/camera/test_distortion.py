import numpy as np
import pytest

from lifcal.camera import BrownDistortion, DivisionDistortion, NoDistortion, make_distortion
from lifcal.camera.distortion import DISTORTION_MODELS
from lifcal.errors import ConfigError, InputError
from tests.camera import cases
from tests.derivatives.checker import check_block, check_columns, complex_step
from tests.reference import paper_model

CENTER = np.array([1020.3, 1011.7])


@pytest.fixture(params=["none", "brown", "division"])
def distortion(request, rng):
    return cases.make_distortion(request.param, rng)


def test_agrees_with_the_supplement(distortion, rng):
    points = rng.uniform(0.0, 2048.0, (200, 2))
    twin = cases.twin_distortion(distortion)
    expected = np.array([paper_model.distort(point, CENTER, twin) for point in points])
    np.testing.assert_allclose(distortion.distort(points, CENTER), expected, rtol=0, atol=1e-10)


def test_round_trips(distortion, rng):
    points = rng.uniform(-100.0, 2148.0, (2000, 2))
    there = distortion.distort(points, CENTER)
    np.testing.assert_allclose(distortion.undistort(there, CENTER), points, rtol=0, atol=1e-9)
    back = distortion.undistort(points, CENTER)
    np.testing.assert_allclose(distortion.distort(back, CENTER), points, rtol=0, atol=1e-9)


def test_the_center_stays(distortion):
    np.testing.assert_array_equal(distortion.distort(CENTER[None], CENTER), CENTER[None])
    np.testing.assert_allclose(distortion.undistort(CENTER[None], CENTER), CENTER[None], atol=1e-12)


def test_jacobians(distortion, rng):
    points = rng.uniform(0.0, 2048.0, (10, 2))
    by_point, by_parameters = distortion.compute_jacobians(points, CENTER)
    twin = cases.twin_distortion(distortion)
    for i, point in enumerate(points):
        numeric = complex_step(lambda x: paper_model.distort(x, CENTER, twin), point)
        check_block("point", by_point[i], numeric, 1e-10)
        if len(distortion.parameters):
            numeric = complex_step(
                lambda x, point=point: paper_model.distort(point, CENTER, type(twin)(*x)),
                distortion.parameters,
            )
            check_columns(distortion.parameter_names(), by_parameters[i], numeric, 1e-10)


def test_brown_says_where_it_has_no_inverse():
    distortion = BrownDistortion(k0=-1e-7)
    fold = distortion.fold_radius_px
    assert fold == pytest.approx(np.sqrt(1 / 3e-7))
    farthest = fold * (1 - 1e-7 * fold**2)
    rim = CENTER + np.array([[farthest * 0.999, 0.0], [farthest * 1.001, 0.0], [0.0, 5000.0]])
    found = distortion.undistort(rim, CENTER)
    assert np.isfinite(found[0]).all()
    assert np.hypot(*(found[0] - CENTER)) < fold
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    "k", [(3e-8, -1e-13, 0.0), (-2e-8, 3e-14, -1e-20), (1e-8, 2e-15, -3e-21), (0.0, 0.0, 0.0)]
)
def test_fold_radius_is_the_first_turning_point(k):
    distortion = BrownDistortion(*k)
    radius = np.linspace(0.0, 20000.0, 400_001)
    distorted = radius * (1 + k[0] * radius**2 + k[1] * radius**4 + k[2] * radius**6)
    falls = np.flatnonzero(np.diff(distorted) < 0)
    if falls.size == 0:
        assert distortion.fold_radius_px > 20000.0
    else:
        assert distortion.fold_radius_px == pytest.approx(radius[falls[0]], abs=0.1)


def test_strong_brown_inverts_everywhere_inside_its_fold(rng):
    distortion = BrownDistortion(k0=-1.2e-7, k1=1e-15, p0=2e-6, p1=-1e-6)
    angle = rng.uniform(0, 2 * np.pi, 5000)
    radius = 0.97 * distortion.fold_radius_px * np.sqrt(rng.uniform(0, 1, 5000))
    points = CENTER + (radius * np.array([np.cos(angle), np.sin(angle)])).T
    found = distortion.undistort(distortion.distort(points, CENTER), CENTER)
    np.testing.assert_allclose(found, points, rtol=0, atol=1e-7)  # flat near the fold


def test_division_says_where_it_has_no_inverse():
    barrel = DivisionDistortion(-1e-6)
    assert np.isnan(barrel.undistort([[CENTER[0] + 1001.0, CENTER[1]]], CENTER)).all()
    pincushion = DivisionDistortion(1e-6)
    assert pincushion.fold_radius_px == pytest.approx(500.0)
    assert np.isnan(pincushion.distort([[CENTER[0] + 501.0, CENTER[1]]], CENTER)).all()
    assert np.isnan(pincushion.undistort([[CENTER[0] + 1001.0, CENTER[1]]], CENTER)).all()
    near = pincushion.distort([[CENTER[0] + 499.0, CENTER[1]]], CENTER)
    assert np.isfinite(near).all()


def test_nan_stays_nan(distortion):
    assert np.isnan(distortion.distort([[np.nan, 3.0]], CENTER)).any()
    assert np.isnan(distortion.undistort([[np.nan, 3.0]], CENTER)).any()


def test_models_by_name():
    for name, model in DISTORTION_MODELS.items():
        assert isinstance(make_distortion(name), model)
        assert len(model.units) == len(model.parameter_names())
    assert make_distortion("brown", {"k0": 1e-9}).parameters[0] == 1e-9
    with pytest.raises(ConfigError, match="Did you mean 'brown'"):
        make_distortion("browne")
    with pytest.raises(ConfigError, match="known: k0, k1, k2, p0, p1"):
        make_distortion("brown", {"k9": 1.0})
    with pytest.raises(InputError, match="k0 is nan"):
        BrownDistortion(k0=float("nan"))


def test_with_parameters_keeps_the_model():
    assert BrownDistortion().with_parameters([1, 2, 3, 4, 5]) == BrownDistortion(1, 2, 3, 4, 5)
    with pytest.raises(InputError, match="needs"):
        NoDistortion().with_parameters([1.0])
