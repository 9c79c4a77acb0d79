"""Start values from tracked places and virtual depths; other minima."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import SolverOptions, VirtualTracks, adjust_virtual, solve
from lifcal.bundle.minima import (
    OtherMinimum,
    describe_other_minimum,
    find_other_minimum,
)
from lifcal.camera import BrownDistortion, PinholeArray
from lifcal.errors import EstimationError
from lifcal.reconstruction import Reconstruction
from tests.sfm.rigid_scenes import WIDTH, make_poses

from . import cases

MIDDLE = 0.5 * (WIDTH - 1)
SIGMA_PX, SIGMA_U = 0.6, 0.05


def make_tracks(rng, *, motion="turntable", focal_px=4400.0, k0=-1e-8, blind=0.2, sigma_u=SIGMA_U):
    """Return tracks of a cloud, and the true state."""
    n_points, n_views = 250, 10
    half = 0.45 * WIDTH / focal_px
    points = np.column_stack(
        [rng.uniform(-half, half, (n_points, 2)), 1.0 + rng.uniform(-0.3, 0.3, n_points)]
    )
    poses = list(make_poses(motion, n_views, rng))
    array = PinholeArray(focal_px, MIDDLE, MIDDLE, 0.8, 3.2)
    state = Reconstruction(
        array,
        BrownDistortion(k0=k0),
        np.array([rotation for rotation, _ in poses]),
        np.array([shift for _, shift in poses]),
        points,
    )
    view, point = (part.ravel() for part in np.mgrid[:n_views, :n_points])
    cam = np.einsum("nij,nj->ni", state.rotations[view], points[point])
    cam += state.translations_mm[view]
    ideal = MIDDLE + focal_px * cam[:, :2] / cam[:, 2:]
    places = state.distortion.distort(ideal, (MIDDLE, MIDDLE))
    inside = (np.abs(places - MIDDLE) < MIDDLE).all(axis=1)
    places = places + rng.normal(scale=SIGMA_PX, size=places.shape)
    u = array.alpha + array.beta_mm / cam[:, 2] + rng.normal(scale=sigma_u, size=len(cam))
    u[rng.random(len(u)) < blind] = np.nan
    tracks = VirtualTracks(point, view, places, u, np.full(len(u), SIGMA_U))
    return tracks.select(inside), state


def spoil(state, factor):
    """The state with another F, and with the alpha that a line would then have."""
    alpha = 4.0 - (4.0 - state.array.alpha) * factor
    array = replace(state.array, focal_px=state.array.focal_px * factor, alpha=alpha)
    array = replace(array, beta_mm=state.array.beta_mm * factor)
    return replace(state, array=array, distortion=BrownDistortion())


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_focal_length_is_found_from_either_side(factor, rng):
    tracks, truth = make_tracks(rng)
    found = adjust_virtual(tracks, spoil(truth, factor))
    array = found.state.array
    off = array.focal_px - truth.array.focal_px
    assert abs(off) < 4.0 * found.sigma_focal_px
    assert found.sigma_focal_px < 0.03 * truth.array.focal_px
    assert array.alpha == pytest.approx(truth.array.alpha, abs=0.3)
    assert found.state.distortion.k0 == pytest.approx(-1e-8, abs=2e-9)
    assert (array.principal_x_px, array.principal_y_px) == (MIDDLE, MIDDLE)
    assert found.noise_px == pytest.approx(SIGMA_PX, rel=0.2)
    assert found.noise_u == pytest.approx(1.0, rel=0.2)


def test_the_factor_on_sigmas_is_found(rng):
    tracks, truth = make_tracks(rng, sigma_u=3.0 * SIGMA_U)
    found = adjust_virtual(tracks, spoil(truth, 1.1))
    assert found.noise_u == pytest.approx(3.0, rel=0.2)
    assert abs(found.state.array.focal_px - 4400.0) < 4.0 * found.sigma_focal_px


def test_wrong_tracks_do_not_bend_it(rng):
    tracks, truth = make_tracks(rng)
    places = tracks.points_virt_px.copy()
    wrong = rng.random(len(places)) < 0.05
    places[wrong] += rng.normal(scale=40.0, size=(int(wrong.sum()), 2))
    found = adjust_virtual(replace(tracks, points_virt_px=places), spoil(truth, 1.1))
    assert abs(found.state.array.focal_px - 4400.0) < 4.0 * found.sigma_focal_px


def test_too_few_virtual_depths(rng):
    tracks, truth = make_tracks(rng, blind=0.99)
    with pytest.raises(EstimationError, match="have a virtual depth"):
        adjust_virtual(tracks, truth)


def noisy_scene(rng):
    scene = cases.small_scene("mini", rng)
    seen = scene.observations
    places = seen.points_raw_px + rng.normal(scale=cases.NOISE_PX, size=seen.points_raw_px.shape)
    return cases.with_observations(scene, replace(seen, points_raw_px=places))


def test_one_minimum_is_found_again(rng):
    """Pushed away, a well determined F comes back: there is no other minimum."""
    scene = noisy_scene(rng)
    problem = cases.make_problem(scene)
    options = SolverOptions(noise=cases.NOISE_PX)
    state, _ = solve(problem, options)
    # a sigma that is large enough for a search, and small enough that a miss would show
    sigma = 0.004 * state.array.focal_px
    assert find_other_minimum(problem, state, options, sigma, 1.0) is None
    # no search where F is well known, or held
    assert find_other_minimum(problem, state, options, 1e-9, 1.0) is None
    held = replace(problem, fixed=("F",))
    assert find_other_minimum(held, state, options, sigma, 1.0) is None


def test_a_state_that_is_no_minimum_is_left_for_a_better_one(rng):
    """What ended on a slope is seen by its cost: the search returns the true minimum."""
    scene = noisy_scene(rng)
    problem = cases.make_problem(scene)
    options = SolverOptions(noise=cases.NOISE_PX)
    best, _ = solve(problem, options)
    wrong = replace(best.array, focal_px=1.05 * best.array.focal_px)
    held = replace(problem, fixed=("F",), start=replace(best, array=wrong))
    stuck, _ = solve(held, options)
    other = find_other_minimum(problem, stuck, options, 0.004 * wrong.focal_px, 1.0)
    assert other is not None
    assert other.excess < 0.0
    assert not other.comparable
    assert other.state.array.focal_px == pytest.approx(best.array.focal_px, rel=1e-4)


def test_two_minima_are_named(rng):
    scene = cases.small_scene("mini", rng)
    state = scene.truth
    other = replace(state, array=replace(state.array, focal_px=1000.0, alpha=0.5))
    found = describe_other_minimum(state, OtherMinimum(other, 1.0, True))
    assert found.code == "two-minima"
    assert "F = 1000 px (alpha 0.5)" in found.text
