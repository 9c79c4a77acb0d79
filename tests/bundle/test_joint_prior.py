"""A joint prior: its rows, its scale, and that it keeps what observations have said before."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import AdjustOptions, JointPrior, Layout, adjust, compute_covariance
from lifcal.bundle.linear import extra_rows
from lifcal.bundle.record import decode, encode
from lifcal.errors import ConfigError, InputError
from lifcal.reconstruction import Observations
from tests.bundle import cases


def make_prior(scene, names=("F", "alpha", "beta"), size=1e-3):
    vector = dict(
        zip(("F", "c_x", "c_y", "alpha", "beta"), scene.truth.array.as_vector(), strict=True)
    )
    mean = np.array([vector[name] for name in names])
    root = np.diag(size * mean) @ (np.eye(len(names)) + 0.3)
    return JointPrior(tuple(names), mean, root @ root.T, "test")


def test_rows_are_the_whitened_deviation(rng):
    scene = cases.small_scene("mini", rng)
    prior = make_prior(scene)
    problem = cases.make_problem(scene, joint=prior)
    assert problem.scale_source == "test"
    layout = Layout(problem)
    moved = scene.truth.with_intrinsics(
        scene.truth.as_vector() * (1.0 + 1e-3 * rng.normal(size=len(scene.truth.as_vector())))
    )
    rows, residuals = extra_rows(layout, moved)
    places = [problem.names.index(name) for name in prior.names]
    off = moved.as_vector()[places] - prior.mean
    assert residuals @ residuals == pytest.approx(off @ np.linalg.solve(prior.covariance, off))
    theta = rows.toarray()[:, layout.theta_part]
    normal = theta.T @ theta
    np.testing.assert_allclose(
        normal[np.ix_(places, places)] @ prior.covariance, np.eye(3), atol=1e-9
    )


def test_what_left_is_worth_as_much_as_what_stayed(rng):
    """Half of the views as a prior and the other half as observations: nearly as good as all.

    Points that both halves see are free in each, so a little is lost; nothing is counted twice.
    """
    scene = cases.small_scene("mini", rng, n_points=60, n_views=10)
    options = AdjustOptions(tilt="none", fixed={"k1": 0.0, "k2": 0.0})
    distances = cases.distances_of(scene, [(0, 1), (2, 3)], 0.5)
    observations, truth = scene.noisy(0.05, rng)[0], scene.truth

    def solve(views, joint, known):
        keep = np.isin(observations.view_indices, views)
        some = Observations.from_arrays(
            observations.view_ids[observations.view_indices[keep]],
            observations.point_ids[observations.point_indices[keep]],
            observations.centers_raw_px[keep],
            observations.points_raw_px[keep],
            covariances_px2=observations.covariances_px2[keep],
            lens_types=observations.lens_types[keep],
        )
        start = replace(
            truth,
            rotations=truth.rotations[np.searchsorted(observations.view_ids, some.view_ids)],
            translations_mm=truth.translations_mm[
                np.searchsorted(observations.view_ids, some.view_ids)
            ],
            points_world_mm=truth.points_world_mm[
                np.searchsorted(observations.point_ids, some.point_ids)
            ],
        )
        return adjust(
            some,
            start,
            scene.camera.pixel_size_mm,
            scene.camera.grid,
            options,
            distances=known,
            joint=joint,
        )

    first = solve(np.arange(5), None, distances)
    names = ("F", "c_x", "c_y", "alpha", "beta", "k0", "p0", "p1")
    places = [first.covariance.names.index(name) for name in names]
    joint = JointPrior(
        names,
        first.state.as_vector()[places],
        first.covariance.array[np.ix_(places, places)],
        "views before",
    )
    second = solve(np.arange(5, 10), joint, None)
    alone = solve(np.arange(5, 10), None, distances)
    whole = solve(np.arange(10), None, distances)
    for name in ("F", "alpha", "c_x"):
        sigma = second.covariance.sigmas()[name]
        assert sigma < alone.covariance.sigmas()[name]
        # points free in each half: some is lost, and none won
        assert 0.95 * whole.covariance.sigmas()[name] < sigma
        assert sigma < 1.5 * whole.covariance.sigmas()[name]
        index = whole.problem.names.index(name)
        off = second.state.as_vector()[index] - whole.state.as_vector()[index]
        assert abs(off) < 2.0 * sigma


def test_marginals_records_and_mistakes(rng):
    scene = cases.small_scene("mini", rng)
    prior = make_prior(scene)
    some = prior.select(["beta", "F"])
    assert some.names == ("F", "beta")
    np.testing.assert_array_equal(some.covariance, prior.covariance[np.ix_([0, 2], [0, 2])])
    assert prior.select(["k0"]) is None
    arrays = {}
    again = decode(encode(prior, arrays), arrays)
    np.testing.assert_array_equal(again.covariance, prior.covariance)
    with pytest.raises(InputError, match="not positive definite"):
        JointPrior(("F", "alpha"), np.ones(2), np.array([[1.0, 2.0], [2.0, 1.0]]), "test")
    with pytest.raises(InputError, match="positive variances"):
        JointPrior(("F",), np.ones(1), np.zeros((1, 1)), "test")
    with pytest.raises(ConfigError, match="parameter"):
        cases.make_problem(scene, joint=replace(prior, names=("F", "alpha", "bta")))
    wide = replace(prior, covariance=1e6 * prior.covariance)
    loose = compute_covariance(Layout(cases.make_problem(scene, joint=wide)), scene.truth, 0.1)
    tight = compute_covariance(Layout(cases.make_problem(scene, joint=prior)), scene.truth, 0.1)
    assert tight.sigmas()["F"] < loose.sigmas()["F"]
