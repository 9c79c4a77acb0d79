"""F and alpha from the rigidity of virtual points between pairs of views."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.errors import EstimationError
from lifcal.sfm import _kernels
from lifcal.sfm.rigidity import find_rest, find_strangers, scan_focal_length

from .rigid_scenes import MOTIONS, WIDTH, make_pairs

SIZE = (WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("motion", "focal_widths", "mode"),
    [
        *((motion, width, "galilean") for motion in MOTIONS for width in (0.6, 2.2)),
        ("turntable", 2.2, "keplerian"),
        ("handheld", 0.6, "keplerian"),
    ],
)
def test_focal_length_is_found_without_a_hint(motion, focal_widths, mode, rng):
    camera = {"alpha": 0.8, "middle_u": 4.0}
    if mode == "keplerian":
        camera = {"alpha": -6.0, "middle_u": -3.5}
    pairs, focal, _ = make_pairs(motion, focal_widths, rng, **camera)
    found = scan_focal_length(pairs, SIZE)
    best = found.hypotheses[0]
    assert best.focal_px == pytest.approx(focal, rel=0.1)
    assert abs(np.log(best.focal_px / focal)) < 4.0 * best.sigma_log_focal
    assert best.sigma_log_focal < 0.1
    # noise is recovered within a third: outliers are a tenth of the matches
    assert 0.7 * 0.67 < found.noise_px < 0.7 * 1.5
    assert 0.67 < found.noise_u < 1.5


@pytest.mark.parametrize("motion", ["turntable", "orbit", "handheld"])
def test_long_lenses(motion, rng):
    pairs, focal, _ = make_pairs(motion, 9.0, rng)
    best = scan_focal_length(pairs, SIZE).hypotheses[0]
    assert abs(np.log(best.focal_px / focal)) < max(0.1, 3.0 * best.sigma_log_focal)


def test_what_is_not_determined_has_a_large_sigma(rng):
    """Sideways motion alone tells a long lens' F through perspective, which is weak."""
    pairs, focal, _ = make_pairs("sideways", 9.0, rng)
    best = scan_focal_length(pairs, SIZE).hypotheses[0]
    assert best.sigma_log_focal > 0.1
    assert abs(np.log(best.focal_px / focal)) < 4.0 * best.sigma_log_focal


def test_radial_distortion_does_not_bend_it(rng):
    pairs, focal, _ = make_pairs("turntable", 2.0, rng, radial=0.1)
    best = scan_focal_length(pairs, SIZE).hypotheses[0]
    assert best.focal_px == pytest.approx(focal, rel=0.05)
    assert best.radial == pytest.approx(0.1, abs=0.03)


def test_noise_that_is_larger_than_its_sigmas(rng):
    """Depth maps err by several sigmas at edges; assumed too small, they would bend F."""
    pairs, focal, _ = make_pairs("turntable", 2.2, rng, sigma_u=0.12)
    said = [
        replace(pair, sigma_first=pair.sigma_first / 4.0, sigma_second=pair.sigma_second / 4.0)
        for pair in pairs
    ]
    found = scan_focal_length(said, SIZE)
    assert found.noise_u == pytest.approx(4.0, rel=0.35)
    assert found.hypotheses[0].focal_px == pytest.approx(focal, rel=0.1)


def test_the_same_matches_give_the_same_answer(rng):
    pairs, _, _ = make_pairs("orbit", 1.5, rng, n_views=6)
    assert scan_focal_length(pairs, SIZE).hypotheses == scan_focal_length(pairs, SIZE).hypotheses


def test_a_backdrop_that_rests_is_left_out(rng):
    pairs, focal, still = make_pairs("turntable", 2.2, rng, resting=0.2, outliers=0.0)
    found = scan_focal_length(pairs, SIZE)
    assert found.hypotheses[0].focal_px == pytest.approx(focal, rel=0.1)
    strange = find_strangers(pairs, found, SIZE)
    far = [
        (flags, pair.moved_px < 1.5)
        for pair, flags in zip(pairs, strange, strict=True)
        if pair.second - pair.first >= 4
    ]
    flags, rests = (np.concatenate(part) for part in zip(*far, strict=True))
    assert flags[rests].mean() > 0.8
    assert flags[~rests].mean() < 0.03
    assert still.any()


def test_rest_is_told_from_motion(rng):
    moving, _, _ = make_pairs("turntable", 2.2, rng)
    assert find_rest(moving)[0] < 0.2
    resting, _, _ = make_pairs("turntable", 2.2, rng, resting=0.8)
    share, others = find_rest(resting)
    assert share == 1.0
    assert 0.1 < others < 0.4
    assert find_rest([]) == (0.0, 0.0)


def test_views_that_did_not_move_tell_nothing(rng):
    pairs, _, _ = make_pairs("turntable", 2.2, rng, resting=1.0)
    with pytest.raises(EstimationError, match="none of 45 pairs of views"):
        scan_focal_length(pairs, SIZE)


def test_matches_without_depth_are_not_used(rng):
    pairs, focal, _ = make_pairs("orbit", 1.5, rng)
    holes = []
    for pair in pairs:
        points = pair.points_first.copy()
        points[::3, 2] = np.nan
        holes.append(replace(pair, points_first=points))
    best = scan_focal_length(holes, SIZE).hypotheses[0]
    assert best.focal_px == pytest.approx(focal, rel=0.05)
    blind = [replace(pair, points_first=pair.points_first * [1.0, 1.0, np.nan]) for pair in pairs]
    with pytest.raises(EstimationError, match="virtual depth"):
        scan_focal_length(blind, SIZE)


def linearize(camera, rotation, shift, true, first, second):
    out = _kernels.LinearMatch(np.empty((3, _kernels.N_BY)), np.empty(3), np.empty((3, 3)))
    variances = np.array([[1e-6, 1e-6, 1e-3], [1e-6, 1e-6, 2e-3]])
    square = _kernels._linearize_match(camera, rotation, shift, first, second, true, variances, out)
    return square, *out


def test_derivatives(rng):
    camera = np.array([1.4, 0.5, 0.05])
    rotation = Rotation.from_rotvec(rng.normal(scale=0.1, size=3)).as_matrix()
    shift = rng.normal(scale=0.05, size=3)
    first = np.array([0.2, -0.3, 4.0])
    second = np.array([0.15, -0.28, 3.9])

    def see(parameters):
        """Residual at the measured place, so that it is what is seen minus what is measured."""
        true = first + parameters[:3]
        turn = Rotation.from_rotvec(parameters[3:6]).as_matrix() @ rotation
        moved = camera * [np.exp(parameters[9]), 1.0, 1.0]
        moved[1:] += parameters[10:]
        return linearize(moved, turn, shift + parameters[6:9], true, true, second)[2]

    _, jacobian, _, weight = linearize(camera, rotation, shift, first, first, second)
    size = 1e-6
    for column in range(12):
        step = np.zeros(12)
        step[column] = size
        numeric = (see(step) - see(-step)) / (2.0 * size)
        np.testing.assert_allclose(jacobian[:, column], numeric, atol=1e-6 * np.abs(jacobian).max())
    covariance = jacobian[:, :3] @ np.diag([1e-6, 1e-6, 1e-3]) @ jacobian[:, :3].T
    covariance += np.diag([1e-6, 1e-6, 2e-3])
    np.testing.assert_allclose(weight @ covariance, np.eye(3), atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e30, 1e30])
def test_kernels_bear_any_number(bad):
    place = np.array([0.1, 0.1, 4.0])
    eye, zero, camera = np.eye(3), np.zeros(3), np.array([1.0, 0.5, 0.0])
    for value in (place * [bad, 1.0, 1.0], place * [1.0, 1.0, bad]):
        square, *_ = linearize(camera, eye, zero, value, value, place)
        assert not square >= 0.0 or np.isfinite(square) or square == np.inf
    first = np.full((1, 2, 3), bad)
    motions = _kernels.Motions(camera, eye[None], zero[None])
    used, variances = np.ones((1, 2), np.bool_), np.ones((1, 2, 2, 3))
    matches = _kernels.Matches(first, np.ones_like(first), variances, used)
    normals, gradients, squares = np.empty((1, 9, 9)), np.empty((1, 9)), np.empty((1, 2))
    _kernels.accumulate(motions, matches, first, 9.0, 900.0, normals, gradients, squares)
    assert (squares == 900.0).all()
    assert np.isfinite(normals).all()
