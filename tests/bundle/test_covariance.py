"""What goes into the covariance beside the observations' own noise."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import Layout, Problem, compute_covariance, covariance
from lifcal.bundle.covariance import (
    Covariance,
    add_magnification_error,
    add_scale_error,
    add_tilt_error,
    hold_uncertain,
)
from lifcal.bundle.linear import Loss
from lifcal.camera import PHYSICAL_PARAMETERS, GridBend
from lifcal.camera.bend import evaluate_terms
from lifcal.reconstruction import Reconstruction
from tests.bundle import cases

NAMES = ("F", "c_x", "c_y", "alpha", "beta", "inverse_plane_0", "inverse_plane_1")


def make_covariance(design):
    matrix = np.linalg.inv(design.T @ design)
    return Covariance(NAMES, matrix, (*PHYSICAL_PARAMETERS, *NAMES[5:]), matrix)


def test_hold_uncertain_closed_form(rng):
    """A linear problem: the last two unknowns held at values with an error of their own.

    Least squares of the rest has the noise's covariance, and is moved by the held error times its
    own slope; both are written down without the whole covariance.
    """
    design = rng.normal(size=(40, 7))
    error = np.array([[0.3, 0.1], [0.1, 0.2]])
    found = hold_uncertain(make_covariance(design), NAMES[5:], error)
    kept, held = design[:, :5], design[:, 5:]
    pseudo = np.linalg.pinv(kept)
    slope = -pseudo @ held
    wanted = np.zeros((7, 7))
    wanted[:5, :5] = np.linalg.inv(kept.T @ kept) + slope @ error @ slope.T
    wanted[:5, 5:] = slope @ error
    wanted[5:, :5] = wanted[:5, 5:].T
    wanted[5:, 5:] = error
    np.testing.assert_allclose(found.array, wanted, atol=1e-12)
    np.testing.assert_allclose(found.physical, wanted, atol=1e-12)


def test_hold_uncertain_monte_carlo(rng):
    design = rng.normal(size=(40, 7))
    root = np.array([[0.5, 0.0], [0.3, 0.2]])
    found = hold_uncertain(make_covariance(design), NAMES[5:], root @ root.T)
    draws = 20_000
    sides = rng.normal(size=(draws, 40))
    values = rng.normal(size=(draws, 2)) @ root.T
    solved = (sides - values @ design[:, 5:].T) @ np.linalg.pinv(design[:, :5]).T
    sampled = np.cov(np.column_stack([solved, values]).T)
    scale = np.sqrt(np.diag(found.array))
    # twice the square root of two over the number of draws is 2 %, four of them
    np.testing.assert_allclose(
        sampled / np.outer(scale, scale), found.array / np.outer(scale, scale), atol=0.05
    )


def test_hold_exactly_is_to_leave_out(rng):
    design = rng.normal(size=(40, 7))
    found = hold_uncertain(make_covariance(design), NAMES[5:], np.zeros((2, 2)))
    np.testing.assert_allclose(
        found.array[:5, :5], np.linalg.inv(design[:, :5].T @ design[:, :5]), atol=1e-12
    )
    np.testing.assert_allclose(found.array[5:], 0.0, atol=1e-12)


@pytest.fixture
def scene(rng):
    return cases.small_scene("mini", rng, n_points=120, n_views=8)


def test_magnification_error_turns_the_line_of_u(scene):
    """u moves by the same share, of opposite signs, at both ends of the depths; c and F stay."""
    problem = cases.make_problem(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    before = compute_covariance(Layout(problem), scene.truth, 0.1)
    array, relative = scene.truth.array, 1e-3
    u = np.linspace(2.4, 3.6, 1001)
    after = add_magnification_error(before, scene.truth, scene.camera.pixel_size_mm, u, relative)
    added = after.array - before.array
    alpha, beta = before.names.index("alpha"), before.names.index("beta")
    others = [i for i in range(len(before.names)) if i not in (alpha, beta)]
    np.testing.assert_array_equal(added[others], 0.0)
    inverse_z = (np.quantile(u, [0.05, 0.5, 0.95]) - array.alpha) / array.beta_mm
    ends = np.column_stack([np.ones(3), inverse_z])
    moved = ends @ added[np.ix_([alpha, beta], [alpha, beta])] @ ends.T
    wanted = relative * 3.0 * np.array([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(moved, np.outer(wanted, wanted), atol=1e-9 * 9.0)
    # a shorter range of depths knows less
    short = add_magnification_error(
        before, scene.truth, scene.camera.pixel_size_mm, 3.0 + (u - 3.0) / 4.0, relative
    )
    added_short = short.array - before.array
    np.testing.assert_allclose(added_short[beta, beta], 16.0 * added[beta, beta], rtol=1e-9)


def test_tilt_error_is_a_change_of_magnification_across_the_image(scene):
    problem = cases.make_problem(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    parallel = compute_covariance(Layout(problem), scene.truth, 0.1)
    n, size, reach = len(parallel.names), scene.camera.pixel_size_mm, np.array([320.0, 240.0])
    known = np.zeros((n + 2, n + 2))
    known[:n, :n] = parallel.array
    known[n, n] = 1e-14  # t_y is held
    names = (*parallel.names, "t_x", "t_y")
    before = replace(parallel, names=names, array=known, physical_names=names, physical=known)
    u, relative = np.linspace(2.4, 3.6, 1001), 4e-4
    after = add_tilt_error(before, scene.truth, size, u, reach, relative)
    added = after.array - before.array
    assert np.flatnonzero(added).tolist() == [n * (n + 2) + n]
    np.testing.assert_array_equal(after.physical, after.array)
    # At the border, such a tilt changes 1 / u_k by the error.
    tilted = replace(scene.truth, tilt=np.array([np.sqrt(added[n, n]), 0.0]))
    border = scene.truth.principal_px + np.array([reach[0], 0.0])
    tau = tilted.tau(border[None])
    seen = 3.0 / (1.0 + (3.0 - 1.0) / (1.0 + tau))
    np.testing.assert_allclose(seen, 1.0 + relative, atol=1e-3 * relative)
    without = add_tilt_error(parallel, scene.truth, size, u, reach, relative)
    np.testing.assert_array_equal(without.array, parallel.array)


def test_scale_error_is_that_of_a_scene_of_another_size(scene):
    """Against the physical parameters of the scaled camera, by central differences."""
    problem = cases.make_problem(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    before = compute_covariance(Layout(problem), scene.truth, 0.1)
    relative, size = 0.01, scene.camera.pixel_size_mm
    after = add_scale_error(before, scene.truth, size, relative)
    ends = [
        scene.truth.scaled(1.0 + step).array.to_physical(size).as_vector() for step in (1e-4, -1e-4)
    ]
    by_scale = (ends[0] - ends[1]) / 2e-4
    grown = after.physical[:5, :5] - before.physical[:5, :5]
    wanted = relative**2 * np.outer(by_scale, by_scale)
    np.testing.assert_allclose(grown, wanted, atol=1e-6 * wanted.max())
    np.testing.assert_allclose(after.physical[5:], before.physical[5:], atol=1e-15)
    beta = before.names.index("beta")
    grown = after.array - before.array
    assert grown[beta, beta] == pytest.approx((relative * scene.truth.array.beta_mm) ** 2)
    grown[beta, beta] = 0.0
    assert np.abs(grown).max() == 0.0


# Clustered


def sigmas(problem, state, noise_px, loss="none"):
    """Return the ratio of clustered to plain sigmas of the intrinsics that are estimated."""
    layout = Layout(problem)
    plain = compute_covariance(layout, state, noise_px)
    clustered = compute_covariance(layout, state, noise_px, clustered=Loss(loss, 2.0, noise_px))
    before, after = plain.sigmas(), clustered.sigmas()
    return np.array([after[name] / before[name] for name in plain.names if before[name] > 0.0])


def solved(scene, observations):
    """Return the problem and its solution for other observations of the scene."""
    from lifcal.bundle import SolverOptions, solve

    problem = Problem(
        observations,
        scene.camera.pixel_size_mm,
        scene.truth,
        fixed=("k1", "k2"),
        distances=cases.distances_of(scene, [[0, 1], [2, 3], [4, 5]]),
    )
    state = solve(problem, SolverOptions(noise=cases.NOISE_PX))[0]
    assert isinstance(state, Reconstruction)
    return problem, state


@pytest.mark.parametrize("loss", ["none", "cauchy"])
def test_independent_noise_needs_no_factor(scene, loss, rng):
    observations, _ = scene.noisy(cases.NOISE_PX, rng)
    problem, state = solved(scene, observations)
    factors = sigmas(problem, state, cases.NOISE_PX, loss)
    # 120 points: a factor of the estimate's own noise, and never below 1
    assert (factors >= 1.0).all()
    assert np.median(factors) < 1.15
    assert factors.max() < 1.5


def test_errors_that_observations_of_a_point_share_make_sigmas_grow(scene, rng):
    exact = scene.observations
    n_views, n_points = len(exact.view_ids), len(exact.point_ids)
    common = rng.normal(scale=cases.NOISE_PX, size=(n_points, n_views, 2))
    shared = common[exact.point_indices, exact.view_indices]
    own = rng.normal(scale=0.2 * cases.NOISE_PX, size=shared.shape)
    limits = np.array(scene.camera.image_size) - 0.5
    seen = np.clip(exact.points_raw_px + shared + own, -0.5, limits)
    problem, state = solved(scene, replace(exact, points_raw_px=seen))
    factors = sigmas(problem, state, cases.NOISE_PX)
    # ten micro images or more of each point and view err as one
    assert np.median(factors) > 1.5
    assert (factors >= 1.0).all()


def test_leaving_points_out_moves_what_it_moves(rng, monkeypatch):
    """Against solving again without each of some points; the noise is so small that it is linear.

    Without a loss, so that the intrinsics alone are compared: F, c, alpha, beta, k0, p0, p1.
    """
    from lifcal.bundle import SolverOptions, solve

    monkeypatch.setattr(covariance, "_MOST_LEVERAGE", 1.0)
    scene = cases.small_scene("mini", rng, n_points=30, n_views=5)
    noise = 1e-4
    observations, _ = scene.noisy(noise, rng)
    loss = Loss("none", 1.0, noise)
    options = SolverOptions(loss="none", noise=noise)

    def solve_again(seen, points):
        start = replace(scene.truth, points_world_mm=scene.truth.points_world_mm[points])
        problem = Problem(
            seen,
            scene.camera.pixel_size_mm,
            start,
            fixed=("k1", "k2"),
            distances=cases.distances_of(scene, [[0, 1], [2, 3]]),
        )
        return problem, solve(problem, options)[0]

    everything = np.arange(30)
    problem, state = solve_again(observations, everything)
    layout = Layout(problem)
    free = np.flatnonzero(layout.determined)
    whole = np.zeros((layout.size, layout.size))
    system = layout.linearize(state, loss).reduce(0.0)
    whole[np.ix_(free, free)] = np.linalg.inv(system.dense()[np.ix_(free, free)])
    scores, _ = covariance._point_scores(layout, state, loss)
    sigma = np.sqrt(np.diag(whole))[layout.theta_part]
    freed = np.flatnonzero(sigma > 0.0)
    moves = covariance._leave_points_out(layout, state, loss, whole, scores)
    moves, plain = (
        m[:, layout.theta_part][:, freed] / sigma[freed] for m in (moves, scores @ whole)
    )
    for point in (7, 15, 23):
        others = observations.select(observations.point_indices != point)
        _, without = solve_again(others, everything != point)
        wanted = (without.as_vector() - state.as_vector())[freed] / sigma[freed]
        np.testing.assert_allclose(moves[point], wanted, atol=1e-4)
        # residuals of points that took part are too small
        assert np.linalg.norm(plain[point]) < np.linalg.norm(wanted) - 1e-3
    # ends of known distances are not left out
    np.testing.assert_array_equal(moves[:4], plain[:4])


def leave_out_densely(layout, state, loss, whole, scores):
    """The jackknife with dense matrices: one row for each observation, and a solver of LAPACK."""
    rows, _ = covariance._whiten(layout, state, loss.noise)
    pair_points, pair_views, pair_rows = layout.pairs
    change = layout.problem.step_jacobian(state)
    moves = scores @ whole
    for point in np.flatnonzero(~layout.kept):
        wide = []
        for pair in np.flatnonzero(pair_points == point):
            view = pair_views[pair]
            x, y, z = state.rotations[view] @ state.points_world_mm[point]
            x, y, z = np.array([x, y, z]) + state.translations_mm[view]
            turned = [[0, z, -y, 1, 0, 0], [-z, 0, x, 0, 1, 0], [y, -x, 0, 0, 0, 1]]
            for each in range(pair_rows[pair], pair_rows[pair + 1]):
                for row in rows[each] * layout.active[each]:
                    full = np.zeros(layout.size + 3)
                    full[6 * view : 6 * view + 6] = row[:3] @ turned
                    full[layout.theta_part] = row[3:] @ change
                    full[layout.size :] = row[:3] @ state.rotations[view]
                    wide.append(full)
        normal = np.transpose(wide) @ wide
        own = normal[-3:, -3:]
        added = normal[:-3, :-3] - normal[:-3, -3:] @ np.linalg.solve(own, normal[-3:, :-3])
        size = np.sqrt(np.diag(whole))
        size[size == 0.0] = 1.0  # poses and distortion differ by 1e12
        share = (size[:, None] * added) @ (whole / size)
        left = np.eye(layout.size) - covariance._MOST_LEVERAGE * share
        moves[point] = np.linalg.solve(left, size * scores[point]) / size @ whole
    return moves


@pytest.mark.parametrize("name", ["mini", "mini-keplerian"])
@pytest.mark.parametrize("distances", [False, True])
def test_leaving_points_out_as_with_dense_matrices(name, distances, rng):
    scene = cases.small_scene(name, rng, n_points=12, n_views=4)
    observations, _ = scene.noisy(cases.NOISE_PX, rng)
    active = rng.random(len(observations)) > 0.1
    known = {"distances": cases.distances_of(scene, [[0, 1], [2, 3]])} if distances else {}
    problem = Problem(
        observations, scene.camera.pixel_size_mm, scene.truth, fixed=("k2",), active=active, **known
    )
    layout = Layout(problem)
    loss = Loss("none", 1.0, cases.NOISE_PX)
    free = np.flatnonzero(layout.determined)
    whole = np.zeros((layout.size, layout.size))
    system = layout.linearize(scene.truth, loss).reduce(0.0)
    dense = system.dense()[np.ix_(free, free)]
    scale = 1.0 / np.sqrt(np.diag(dense))  # poses and distortion differ by 1e12
    whole[np.ix_(free, free)] = np.linalg.inv(scale[:, None] * dense * scale) * np.outer(
        scale, scale
    )
    scores, _ = covariance._point_scores(layout, scene.truth, loss)
    moves = covariance._leave_points_out(layout, scene.truth, loss, whole, scores)
    wanted = leave_out_densely(layout, scene.truth, loss, whole, scores)
    sigma = np.sqrt(np.diag(whole))
    moved = sigma > 0.0
    np.testing.assert_allclose(
        moves[:, moved] / sigma[moved], wanted[:, moved] / sigma[moved], rtol=1e-6, atol=1e-7
    )


def test_what_is_not_used_is_as_if_it_were_not_there(scene, rng):
    observations, _ = scene.noisy(cases.NOISE_PX, rng)
    problem, state = solved(scene, observations)
    unused = rng.random(len(observations)) < 0.2
    wild = observations.points_raw_px + 0.4 * unused[:, None]
    marked = replace(
        problem, observations=replace(observations, points_raw_px=wild), active=~unused
    )
    fewer = replace(problem, observations=observations.select(~unused))
    loss = Loss("none", 1.0, cases.NOISE_PX)
    with_marks, without = (
        compute_covariance(Layout(case), state, cases.NOISE_PX, clustered=loss).array
        for case in (marked, fewer)
    )
    np.testing.assert_allclose(with_marks, without, rtol=1e-6)


def test_what_a_loss_costs_counts_once(scene, rng):
    """The efficiency of a robust loss makes clustered sigmas grow as it does the others."""
    observations, _ = scene.noisy(cases.NOISE_PX, rng)
    problem, state = solved(scene, observations)
    layout, loss = Layout(problem), Loss("none", 1.0, cases.NOISE_PX)
    one, more = (
        compute_covariance(layout, state, cases.NOISE_PX, inflation=factor, clustered=loss).sigmas()
        for factor in (1.0, 1.44)
    )
    for name, value in one.items():
        assert more[name] == pytest.approx(1.2 * value, rel=0.02), name


# The grid's own error


def test_an_error_of_the_grid_moves_the_camera_as_solving_with_it_does(scene):
    """A bend with one unknown coefficient: the sigmas it adds are what the solution moves by."""
    problem, state = solved(scene, scene.observations)
    size = scene.camera.image_size
    sigma_px = 0.02
    unknown = np.zeros((6, 6))
    unknown[4, 4] = sigma_px**2  # the term x y
    bend = GridBend(size, np.zeros((3, 2)), unknown)
    layout = Layout(problem)
    plain, wider = (
        compute_covariance(layout, state, cases.NOISE_PX, bend=b).array for b in (None, bend)
    )
    wanted = np.zeros_like(plain)
    shift = sigma_px * evaluate_terms(scene.observations.centers_raw_px, size, 2)[:, 4]
    for axis in np.eye(2):
        centers = scene.observations.centers_raw_px + shift[:, None] * axis
        _, moved = solved(scene, replace(scene.observations, centers_raw_px=centers))
        move = moved.as_vector() - state.as_vector()
        wanted += np.outer(move, move)
    # so small an error is linear to a per cent; the rest is the loss, which sees it as residuals
    np.testing.assert_allclose(np.diag(wider - plain), np.diag(wanted), rtol=0.05)
    assert np.diag(wanted)[1:3].max() > 0.0


# Loss


@pytest.mark.parametrize("name", ["none", "huber", "cauchy"])
@pytest.mark.parametrize("scale", [1.0, 2.3])
def test_weights_are_the_slope_of_the_loss(name, scale, rng):
    """rho(s) of the squared length, written as the books have it; by central differences."""
    squares = np.concatenate([rng.uniform(0.01, 30.0, 50), [1e-4, 400.0]])

    def rho(s):
        if name == "huber":
            root = np.sqrt(s)
            return np.where(root <= scale, s, 2.0 * scale * root - scale**2)
        if name == "cauchy":
            return scale**2 * np.log1p(s / scale**2)
        return s

    step = 1e-6
    numeric = (rho(squares + step) - rho(squares - step)) / (2.0 * step)
    weights = Loss(name, scale).weights(squares)
    np.testing.assert_allclose(weights, numeric, atol=1e-7)
    assert Loss(name, scale).weights(np.zeros(1)) == 1.0
    if name != "none":
        assert np.abs(Loss(name, 1.001 * scale).weights(squares) - numeric).max() > 1e-4


def test_weights_are_those_of_the_kernels(scene, rng):
    """The gradient of the solver's cost is made of them."""
    observations, _ = scene.noisy(3.0 * cases.NOISE_PX, rng)
    problem = Problem(observations, scene.camera.pixel_size_mm, scene.truth)
    layout = Layout(problem)
    loss = Loss("cauchy", 2.0, cases.NOISE_PX)
    residuals = layout.compute_residuals(scene.truth) / cases.NOISE_PX
    weights = loss.weights(np.sum(residuals**2, axis=1))
    rows = layout.compute_rows(scene.truth)[:, :, 3:8] / cases.NOISE_PX
    wanted = np.einsum("n,nki,nk->i", weights, rows, residuals)
    costs = []
    step = 1e-5 * scene.truth.array.as_vector()
    for axis in range(5):
        ends = [
            layout.compute_cost(
                scene.truth.with_intrinsics(
                    scene.truth.as_vector()
                    + sign * np.pad(np.eye(5)[axis] * step, (0, len(problem.names) - 5))
                ),
                loss,
            )
            for sign in (1, -1)
        ]
        costs.append((ends[0] - ends[1]) / (2.0 * step[axis]))
    ratio = np.array(costs) / wanted
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
