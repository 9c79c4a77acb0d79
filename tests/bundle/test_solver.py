"""Solves: exactness, agreement with scipy, reproducible sums, every gauge and scale."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bundle import noise_free
from lifcal.bundle import (
    AdjustOptions,
    CameraPositions,
    Distances,
    Follows,
    Layout,
    Loss,
    Prior,
    Problem,
    SolverOptions,
    adjust,
    solve,
)
from lifcal.bundle.files import summary_to_dict
from lifcal.bundle.linear import extra_rows
from lifcal.bundle.scale import compute_spans
from lifcal.camera import NoDistortion, PhysicalParameters
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, Reconstruction
from lifcal.threads import THREADS
from tests.bundle import cases
from tests.bundle.cases import texts_of
from tests.reference import bundle_twin


@pytest.mark.parametrize("name", ["mini", "mini-keplerian", "r12-50mm"])
def test_noise_free(name):
    # 1e-6 is the house's tolerance for a noise-free solve; the worst of four rough starts
    assert noise_free(name) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["r5-12.5mm", "r5-16mm", "r5-35mm", "r25-12mm", "mini-square"])
def test_noise_free_all_paper_cameras(name):
    assert noise_free(name) < 1e-6


@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize("loss", ["none", "huber", "cauchy"])
def test_agrees_with_scipy(loss, with_scale, rng):
    scene = cases.small_scene("mini-keplerian", rng, n_points=9, n_views=3, images_per_pair=4)
    # observations of a camera without distortion, with noise and a few outliers
    state = replace(scene.truth, distortion=NoDistortion())
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, state)
    seen = scene.observations.points_raw_px + Layout(problem).compute_residuals(state)
    noise = rng.normal(scale=0.1, size=seen.shape)
    noise[:: len(noise) // 5] += 2.0
    observations = replace(scene.observations, points_raw_px=seen + noise)
    pairs = [[0, 1], [2, 3]]
    distances = cases.distances_of(replace(scene, truth=state), pairs, 0.5)
    distances = replace(distances, lengths_mm=distances.lengths_mm + np.array([0.4, -0.3]))
    problem = Problem(
        observations,
        scene.camera.pixel_size_mm,
        state,
        distances=distances if with_scale else None,
    )
    options = SolverOptions(
        loss=loss, loss_scale=1.5, noise=0.1, cost_tolerance=1e-14, max_iterations=100
    )
    found, summary = solve(problem, options)
    assert summary.converged
    lengths = [
        (*pair, mm, sigma)
        for pair, mm, sigma in zip(pairs, distances.lengths_mm, distances.sigmas_mm, strict=True)
    ]
    # scipy starts where this solver stopped: it must find nothing better, and stay
    wanted, cost = bundle_twin.solve_without_distortion(
        found.array.as_vector(),
        [(pose.rotation, pose.translation_mm) for pose in found.cam_from_world],
        found.points_world_mm,
        observations.view_indices,
        observations.point_indices,
        observations.centers_raw_px,
        observations.points_raw_px,
        0.1,
        loss,
        1.5,
        lengths if with_scale else [],
        held_beta=not with_scale,
    )
    assert summary.final_cost < summary.initial_cost
    assert abs(summary.final_cost - cost) < 1e-9 * cost
    np.testing.assert_allclose(found.array.as_vector(), wanted, rtol=1e-6)


def test_sums_do_not_depend_on_threads(rng, monkeypatch):
    scene = cases.small_scene("mini", rng)
    layout = Layout(cases.make_problem(scene))
    results = []
    for count in (1, 2, 3):
        monkeypatch.setattr(THREADS, "count", count)
        linearization = layout.linearize(scene.truth, Loss("huber", 1.3, 0.1))
        system = linearization.reduce(1e-4)
        results.append((linearization.cost, system.dense(), system.reduced_gradient.copy()))
    for found in zip(*results, strict=True):
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("with_scale", [False, True])
def test_a_matrix_product_eliminates_as_the_loop_does(rng, monkeypatch, with_scale):
    scene = cases.small_scene("mini", rng, views_per_point=4)
    distances = scene.distances(3, 0.1, rng) if with_scale else None
    state = cases.perturb(scene.truth, rng)
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, state, distances=distances)
    systems = []
    for multiply_from in (0.0, 2.0):
        monkeypatch.setattr("lifcal.bundle.linear.MULTIPLY_FROM", multiply_from)
        layout = Layout(problem)
        assert layout.multiplies == (multiply_from == 0.0)
        linearization = layout.linearize(state, Loss("huber", 1.3, 0.1))
        for damping in (1.0, 1e-4):  # the second finds the buffers of the first
            system = linearization.reduce(damping)
        step = system.solve(400)
        assert step is not None
        systems.append((system.dense(), system.reduced_gradient.copy(), step))
    (product, gradient, step), (loop, wanted, other) = systems
    scale = np.sqrt(np.outer(np.diag(loop), np.diag(loop)))
    np.testing.assert_allclose(product / scale, loop / scale, atol=1e-12)
    np.testing.assert_array_equal(gradient, wanted)
    np.testing.assert_allclose(step.points, other.points, rtol=1e-6, atol=1e-9)


def test_the_same_input_gives_the_same_output(rng):
    scene = cases.small_scene("mini", rng)
    start = cases.perturb(scene.truth, rng)
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, start)
    first, second = solve(problem)[0], solve(problem)[0]
    np.testing.assert_array_equal(first.as_vector(), second.as_vector())
    np.testing.assert_array_equal(first.points_world_mm, second.points_world_mm)


def test_covariances_weigh_like_sigmas(rng):
    scene = cases.small_scene("mini", rng)
    observations = scene.observations
    sigma = rng.uniform(0.5, 2.0, len(observations))
    names = ("views", "points")
    ids = dict(
        zip(
            names,
            (
                observations.view_ids[observations.view_indices],
                observations.point_ids[observations.point_indices],
            ),
            strict=True,
        )
    )
    rest = (observations.centers_raw_px, observations.points_raw_px + 0.3)
    one = Observations.from_arrays(*ids.values(), *rest, sigma_px=sigma)
    matrices = np.zeros((len(sigma), 2, 2))
    matrices[:, 0, 0] = matrices[:, 1, 1] = sigma**2
    two = Observations.from_arrays(*ids.values(), *rest, covariances_px2=matrices)
    costs = [
        Layout(Problem(each, scene.camera.pixel_size_mm, scene.truth)).compute_cost(
            scene.truth, Loss()
        )
        for each in (one, two)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    assert costs[0] == pytest.approx(0.5 * np.sum(2 * 0.09 / sigma**2), rel=1e-9)
    turned = matrices.copy()
    turned[:, 0, 1] = turned[:, 1, 0] = 0.3 * sigma**2
    three = Observations.from_arrays(*ids.values(), *rest, covariances_px2=turned)
    layout = Layout(Problem(three, scene.camera.pixel_size_mm, scene.truth))
    residual = layout.compute_residuals(scene.truth)
    wanted = 0.5 * np.einsum("ni,nij,nj->", residual, np.linalg.inv(turned), residual)
    assert layout.compute_cost(scene.truth, Loss()) == pytest.approx(wanted, rel=1e-9)


# Gauge and scale


def shrunk(scene, factor=0.1):
    """The truth in another unit: a start without a scale."""
    return scene.truth.scaled(factor)


@pytest.fixture
def scene(rng):
    return cases.small_scene("mini", rng)


EXACT = AdjustOptions(loss="none", distortion="brown", reject_sigmas=None)


def run(scene, options=EXACT, start=None, **known):
    return adjust(
        scene.observations,
        start or shrunk(scene),
        scene.camera.pixel_size_mm,
        scene.camera.grid,
        options,
        **known,
    )


def check_metric(found, scene, tolerance=1e-6):
    np.testing.assert_allclose(
        found.camera.parameters.as_vector(), scene.camera.parameters.as_vector(), rtol=tolerance
    )


def test_scale_from_distances(scene):
    found = run(scene, distances=cases.distances_of(scene, [[0, 1], [3, 7]]))
    check_metric(found, scene)
    assert found.summary.scale_source == "distances"
    assert found.camera.scale_source == "distances"
    np.testing.assert_allclose(
        found.state.points_world_mm, scene.truth.points_world_mm, rtol=0, atol=1e-4
    )


def test_scale_from_markers(scene):
    """The sides of a quadrilateral in the order of its corners."""
    corners = np.array([[0, 1, 2, 3]])
    markers = Distances.from_markers(corners, 25.0, 0.01)
    assert markers.point_ids[..., 0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
    # true sides in place of 25 mm: the points of this scene are no square
    sides = np.linalg.norm(compute_spans(scene.truth.points_world_mm, markers.point_ids), axis=1)
    found = run(scene, distances=replace(markers, lengths_mm=sides))
    check_metric(found, scene)
    assert found.summary.scale_source == "markers"


SQUARES = np.array([[[0, 1, 2, 3], [4, 5, 6, 7]]])


def test_scale_from_distances_between_centers(scene):
    """An end of a distance is the mean of four points; together with a plain distance too."""
    length = np.linalg.norm(compute_spans(scene.truth.points_world_mm, SQUARES), axis=1)
    ids = scene.observations.point_ids
    found = run(scene, distances=Distances(ids[SQUARES], length, np.array([0.01])))
    check_metric(found, scene)
    sigma = found.covariance.sigmas()["B"]
    plain = cases.distances_of(scene, [[8, 9]])
    both = Distances(
        np.concatenate([ids[SQUARES], plain.point_ids.repeat(4, axis=2)]),
        np.append(length, plain.lengths_mm),
        np.full(2, 0.01),
    )
    more = run(scene, distances=both)
    check_metric(more, scene)
    assert more.covariance.sigmas()["B"] < sigma
    saved = summary_to_dict(more)["distances"]
    assert [entry["points1"] for entry in saved] == [ids[:4].tolist(), ids[8:9].tolist()]
    np.testing.assert_allclose([entry["found_mm"] for entry in saved], both.lengths_mm, rtol=1e-6)


def test_a_point_four_times_is_the_point(scene):
    """Single points, written as the mean of themselves, give the same to the last digits."""
    plain = cases.distances_of(scene, [[0, 1], [3, 7]])
    found = run(scene, distances=plain)
    same = run(scene, distances=replace(plain, point_ids=plain.point_ids.repeat(4, axis=2)))
    np.testing.assert_allclose(
        same.camera.parameters.as_vector(), found.camera.parameters.as_vector(), rtol=1e-12
    )
    np.testing.assert_allclose(same.covariance.physical, found.covariance.physical, rtol=1e-6)


def test_the_center_of_a_square_with_a_corner_missing():
    distances = Distances(SQUARES, np.array([50.0]), np.array([0.1]))
    there = np.arange(8)
    assert distances.among(there).point_ids.tolist() == SQUARES.tolist()
    # without corner 1, the diagonal through 0 and 2 is left
    without = there[there != 1]
    assert distances.are_between(without).all()
    assert distances.among(without).point_ids.tolist() == [[[0, 2, 0, 2], [4, 5, 6, 7]]]
    # both diagonals gone
    for gone in ([0, 1], [0, 3], [2, 3], [0, 1, 2, 3]):
        left = np.setdiff1d(there, gone)
        assert not distances.are_between(left).any()
        with pytest.raises(InputError, match="none of the distances"):
            distances.among(left)
    # single points have no other
    plain = Distances(np.array([[0, 1]]), np.ones(1), np.ones(1))
    assert not plain.are_between(np.array([0, 2])).any()


def test_ends_that_make_no_sense():
    one = np.ones(1)
    with pytest.raises(InputError, match=r"needs \(n, 2\) or \(n, 2, 4\)"):
        Distances(np.zeros((1, 2, 3), int), one, one)
    with pytest.raises(InputError, match="from point 4 to itself"):
        Distances(np.array([[[4] * 4, [4] * 4]]), one, one)
    with pytest.raises(InputError, match="points 0/1/2/3 and 7 is -1 mm"):
        Distances(np.array([[[0, 1, 2, 3], [7] * 4]]), -one, one)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_scale_from_positions(scene, shift):
    """A robot's trajectory, in a frame of its own."""
    robot_from_world = RigidTransform.from_rotation_vector([0.3, -0.2, 1.0], [100.0, 20.0, -50.0])
    known = CameraPositions(
        scene.observations.view_ids,
        robot_from_world.apply(scene.truth.positions_world_mm()),
        np.full(len(scene.observations.view_ids), 0.01),
    )
    start = shrunk(scene).moved(RigidTransform.from_rotation_vector([0, 0.1, 0], [shift, 0, 0]))
    found = run(scene, start=start, positions=known)
    check_metric(found, scene)
    np.testing.assert_allclose(
        found.state.positions_world_mm(), known.positions_world_mm, rtol=0, atol=1e-4
    )


def test_positions_on_a_line_leave_a_turn_free(rng):
    """Two places give the scale; the turn about their line is held, and nothing is singular."""
    scene = cases.small_scene("mini", rng)
    both = [0, 3]
    known = CameraPositions(
        scene.observations.view_ids[both],
        scene.truth.positions_world_mm()[both],
        np.full(2, 0.01),
    )
    found = run(scene, positions=known)
    check_metric(found, scene, 1e-5)
    assert found.covariance.sigmas()["B"] > 0.0


def test_known_optics(scene):
    """Recalibration: f_L and B known, b_L0 and all else found, and the scene is metric."""
    p = scene.camera.parameters
    options = replace(EXACT, fixed={"f_L": p.focal_length_mm, "B": p.array_to_sensor_mm})
    found = run(scene, options)
    check_metric(found, scene)
    np.testing.assert_allclose(
        found.state.points_world_mm, scene.truth.points_world_mm, rtol=0, atol=1e-3
    )
    assert any("they fit" in note for note in texts_of(found))


def test_wrong_known_optics_are_noticed(scene, rng):
    p = scene.camera.parameters
    observations, _ = scene.noisy(0.1, rng)
    options = replace(EXACT, fixed={"f_L": p.focal_length_mm * 1.02, "B": p.array_to_sensor_mm})
    found = run(cases.with_observations(scene, observations), options)
    assert any("do not fit" in note for note in texts_of(found))
    # so far off that it is another lens
    options = replace(EXACT, fixed={"f_L": 3.0 * p.focal_length_mm, "B": p.array_to_sensor_mm})
    with pytest.raises(EstimationError, match=r"do not fit the images: they say b_L0 \+ B"):
        run(scene, options)


def test_prior_on_physical_length(scene):
    p = scene.camera.parameters
    options = replace(EXACT, priors={"B": Prior(p.array_to_sensor_mm, 0.001)})
    found = run(scene, options)
    check_metric(found, scene)
    assert found.summary.scale_source == "known B"


def correlated_priors(scene, off_mm=0.0):
    """Priors of f_L and B with a correlation of -0.8, and their covariance."""
    p = scene.camera.parameters
    covariance = np.array([[0.02**2, -0.8 * 0.02 * 0.001], [-0.8 * 0.02 * 0.001, 0.001**2]])
    slope = covariance[0, 1] / covariance[1, 1]
    sigma = np.sqrt(covariance[0, 0] - slope * covariance[0, 1])
    f, b = p.focal_length_mm + off_mm, p.array_to_sensor_mm
    return {"f_L": Prior(f, sigma, Follows("B", b, slope)), "B": Prior(b, 0.001)}, covariance


def test_priors_have_the_covariance_of_both_lengths(scene):
    """Rows of f_L given B and of B alone: their square is the inverse of the covariance."""
    priors, covariance = correlated_priors(scene)
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, scene.truth, priors=priors)
    layout = Layout(problem)
    rows, residuals = extra_rows(layout, scene.truth)
    assert np.abs(residuals).max() < 1e-9
    physical = scene.truth.array.to_physical(scene.camera.pixel_size_mm)
    by_physical = rows.toarray()[:, layout.theta_part][:, :5] @ physical.array_jacobian(
        scene.camera.pixel_size_mm
    )
    found = by_physical.T @ by_physical
    np.testing.assert_allclose(found[np.ix_([0, 2], [0, 2])], np.linalg.inv(covariance), rtol=1e-9)
    assert np.abs(found[[1, 3, 4]]).max() < 1e-9 * np.abs(found).max()
    # residuals and rows belong together
    step = np.array([1e-4, -1e-5, 2e-5])
    moved = replace(
        scene.truth,
        array=PhysicalParameters(
            *(physical.as_vector()[:3] + step), *physical.as_vector()[3:]
        ).to_pinhole_array(scene.camera.pixel_size_mm),
    )
    np.testing.assert_allclose(extra_rows(layout, moved)[1], by_physical[:, :3] @ step, rtol=1e-6)


def test_known_optics_with_their_covariance(scene, rng):
    observations, _ = scene.noisy(0.1, rng)
    noisy = cases.with_observations(scene, observations)
    priors, _ = correlated_priors(scene)
    found = run(noisy, replace(EXACT, priors=priors))
    assert found.summary.scale_source == "known f_L, B"
    sigmas = found.covariance.sigmas()
    p, true = found.camera.parameters, scene.camera.parameters
    assert sigmas["f_L"] < 0.02
    assert 0.0 < sigmas["B"] < 0.0011
    assert abs(p.focal_length_mm - true.focal_length_mm) < 4.0 * sigmas["f_L"]
    assert abs(p.array_to_sensor_mm - true.array_to_sensor_mm) < 4.0 * sigmas["B"]
    assert any("they fit" in note for note in texts_of(found))
    priors, _ = correlated_priors(scene, off_mm=0.05 * true.focal_length_mm)
    wrong = run(noisy, replace(EXACT, priors=priors))
    assert any("do not fit" in note for note in texts_of(wrong))


def test_only_lengths_follow_each_other(scene):
    with pytest.raises(InputError, match="the prior of c_x follows B"):
        Problem(
            scene.observations,
            scene.camera.pixel_size_mm,
            scene.truth,
            priors={"c_x": Prior(300.0, 1.0, Follows("B", 0.4, 1.0))},
        )


def test_without_scale_the_output_says_so(scene):
    found = run(scene)
    assert found.camera.scale_source is None
    assert found.summary.scale_source is None
    assert any("no metric meaning" in note for note in texts_of(found))
    a, t = found.camera.array, scene.camera.array
    for name in ("focal_px", "principal_x_px", "principal_y_px", "alpha"):
        assert getattr(a, name) == pytest.approx(getattr(t, name), rel=1e-6)
    assert found.covariance.sigmas()["beta"] == 0.0


def test_fixed_parameters_stay(scene, rng):
    observations, _ = scene.noisy(0.1, rng)
    options = replace(EXACT, fixed={"c_x": 320.0, "alpha": 2.2})
    found = run(cases.with_observations(scene, observations), options)
    assert found.state.array.principal_x_px == 320.0
    assert found.state.array.alpha == 2.2
    sigmas = found.covariance.sigmas()
    assert sigmas["c_x"] == 0.0
    assert sigmas["c_y"] > 0.0


def test_a_strong_prior_pulls(scene, rng):
    observations, _ = scene.noisy(0.1, rng)
    scene = cases.with_observations(scene, observations)
    free = run(scene, distances=cases.distances_of(scene, [[0, 1]]))
    value = free.state.array.focal_px + 5.0
    options = replace(EXACT, priors={"F": Prior(value, 1e-3)})
    pulled = run(scene, options, distances=cases.distances_of(scene, [[0, 1]]))
    assert pulled.state.array.focal_px == pytest.approx(value, abs=0.01)
    assert pulled.covariance.sigmas()["F"] < 1.1e-3


def test_many_views_use_the_sparse_solver(rng):
    scene = cases.small_scene("mini", rng, n_points=40, n_views=10)
    start = cases.perturb(scene.truth, rng)
    problem = Problem(
        scene.observations,
        scene.camera.pixel_size_mm,
        start,
        distances=cases.distances_of(scene, [[0, 1]]),
    )
    dense, _ = solve(problem)
    sparse, summary = solve(problem, SolverOptions(sparse_from_views=5))
    assert summary.converged
    np.testing.assert_allclose(sparse.as_vector()[:5], dense.as_vector()[:5], rtol=1e-8)


# What is refused


def test_unknown_names(scene):
    with pytest.raises(ConfigError, match="Did you mean 'alpha'"):
        cases.make_problem(scene, fixed=("alhpa",))
    with pytest.raises(ConfigError, match="one form"):
        cases.make_problem(scene, fixed=("alpha", "f_L"))
    with pytest.raises(ConfigError, match="loss"):
        SolverOptions(loss="hubert")
    with pytest.raises(ConfigError, match="distortion"):
        AdjustOptions(distortion="fisheye")


def test_strangers(scene):
    with pytest.raises(InputError, match="point 999"):
        cases.make_problem(scene, distances=Distances(np.array([[0, 999]]), np.ones(1), np.ones(1)))


def test_points_behind_the_camera(scene):
    points = scene.truth.points_world_mm.copy()
    points[3, 2] *= -1.0
    start = replace(scene.truth, points_world_mm=points)
    with pytest.raises(EstimationError, match="behind"):
        solve(Problem(scene.observations, scene.camera.pixel_size_mm, start))
    # the whole adjustment leaves them out and says so
    found = run(scene, start=start, distances=cases.distances_of(scene, [[0, 1]]))
    assert any("behind" in note for note in texts_of(found))
    check_metric(found, scene)


def test_start_of_another_size(scene):
    start = Reconstruction(
        scene.truth.array,
        scene.truth.distortion,
        scene.truth.rotations[:2],
        scene.truth.translations_mm[:2],
        scene.truth.points_world_mm,
    )
    with pytest.raises(InputError, match="2 poses"):
        Problem(scene.observations, scene.camera.pixel_size_mm, start)


def test_summary_says_why_it_stopped(scene, rng):
    start = cases.perturb(scene.truth, rng)
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, start)
    _, summary = solve(problem, SolverOptions(max_iterations=1))
    assert not summary.converged
    assert "limit of 1" in summary.reason
    _, summary = solve(problem)
    assert summary.converged
    assert summary.final_cost < 1e-10 * summary.initial_cost
