"""The adjustment's derivatives, block by block, against complex steps on the slow twin."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import CameraPositions, Distances, Layout, Loss, Prior, Problem
from lifcal.bundle.covariance import compare_lengths
from lifcal.bundle.linear import extra_rows
from lifcal.bundle.scale import compute_spans
from lifcal.camera import BrownDistortion, DivisionDistortion, NoDistortion
from tests.bundle import cases
from tests.camera.cases import twin_distortion
from tests.derivatives.checker import central_difference, check_block, check_columns, complex_step
from tests.reference import bundle_twin, paper_model

EXACT = 1e-10
THROUGH_STEP = 1e-6
# ruff: noqa: B023 (each function is used up within its turn of the loop)

DISTORTIONS = {
    "none": NoDistortion(),
    "brown": BrownDistortion(-3e-8, 2e-14, -1e-20, 5e-7, -3e-7),
    "division": DivisionDistortion(-4e-8),
}


@pytest.fixture(params=["mini", "mini-keplerian"])
def scene(request, rng):
    return cases.small_scene(request.param, rng, n_points=12, n_views=3, images_per_pair=4)


@pytest.mark.parametrize("tilt", [(), (6e-5, -4e-5)], ids=["parallel", "tilted"])
@pytest.mark.parametrize("shape", [None, "linear", "overlap", "devignetted"])
@pytest.mark.parametrize("kind", DISTORTIONS)
def test_rows(scene, kind, shape, tilt, rng):
    distortion = DISTORTIONS[kind]
    truth = replace(scene.truth, distortion=distortion, tilt=np.array(tilt))
    problem = cases.make_problem(replace(scene, truth=truth), shape=shape)
    state, observations = problem.start, problem.observations
    layout = Layout(problem)
    rows = layout.compute_rows(state)
    residuals = layout.compute_residuals(state)
    s = problem.pixel_size_mm
    model = type(twin_distortion(distortion))
    n_k = len(distortion.parameters)
    n_tilt = len(tilt)
    strength = 8 + n_k + n_tilt
    discs = problem.focus.discs if shape in ("overlap", "devignetted") else None
    for i in rng.choice(len(observations), 8, replace=False):
        pose = state.cam_from_world[observations.view_indices[i]]
        point = pose.apply(state.points_world_mm[observations.point_indices[i]][None])[0]
        center, lens = observations.centers_raw_px[i], observations.lens_types[i]

        def twin(x):
            focus = None
            if shape is not None:
                g, inverse = x[strength], x[strength + 1 + lens]
                focus = bundle_twin.Focus(g, 1.0 / inverse)
                if discs is not None:
                    radii = (discs.main_px, discs.micro_px[lens])
                    focus = bundle_twin.Focus(g, 1.0 / inverse, *radii, shape == "devignetted")
            t = x[8 + n_k : strength] if n_tilt else None
            return bundle_twin.project(
                x[:3], center, paper_model.Pinholes(*x[3:8]), s, model(*x[8 : 8 + n_k]), focus, t
            )

        x = np.concatenate([point, state.as_vector()])
        np.testing.assert_allclose(
            residuals[i], twin(x) - observations.points_raw_px[i], rtol=0, atol=1e-9
        )
        numeric = complex_step(twin, x)
        check_block("point", rows[i, :, :3], numeric[:, :3], EXACT)
        names = [*problem.names[: 5 + n_k + n_tilt]]
        # Zero where nothing is cut off. Below 1e-3, rounding of the place in the micro image
        # (1e-15 of some px) is more than the tolerance.
        if shape is not None and np.abs(numeric[:, strength]).max() > 1e-3:
            names.append("g")
            plane = strength + 1 + lens
            check_block("plane", rows[i, :, plane], numeric[:, plane], EXACT)
            others = [strength + 1 + j for j in range(len(state.focal_planes)) if j != lens]
            assert not rows[i][:, others].any()
        # Where the discs of the overlap hardly cut each other, the derivative of its centroid
        # changes steeply, and through the tilt the same rounding is 2e-10 of the column.
        exact = 10.0 * EXACT if tilt and shape == "overlap" else EXACT
        check_columns(names, rows[i, :, 3 : 3 + len(names)], numeric[:, 3 : 3 + len(names)], exact)


def test_rows_are_the_cameras(scene):
    """Without the focus term, they are those of `project_with_jacobian`."""
    problem = cases.make_problem(scene)
    observations, state = problem.observations, problem.start
    rows = Layout(problem).compute_rows(state)
    lenses = scene.camera.grid.nearest(observations.centers_raw_px)
    world = state.points_world_mm[observations.point_indices]
    cam = (
        np.einsum("nij,nj->ni", state.rotations[observations.view_indices], world)
        + state.translations_mm[observations.view_indices]
    )
    jacobian = scene.camera.project_with_jacobian(cam, lenses)
    np.testing.assert_allclose(rows[:, :, :3], jacobian.by_point, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(rows[:, :, 3:8], jacobian.by_intrinsics, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(rows[:, :, 8:], jacobian.by_distortion, rtol=1e-9, atol=1e-6)


def all_terms(scene, **options):
    """A problem with every kind of row: a distance between points, one between means of four."""
    ends = np.array([[[0] * 4, [1] * 4], [[2, 3, 4, 5], [6, 1, 7, 0]]])
    lengths = np.linalg.norm(compute_spans(scene.truth.points_world_mm, ends), axis=1) + 1.0
    positions = scene.truth.positions_world_mm() + 2.0
    return cases.make_problem(
        scene,
        shape="linear",
        priors={"f_L": Prior(16.0, 0.1), "B": Prior(0.4, 0.01), "F": Prior(900.0, 3.0)},
        distances=Distances(scene.observations.point_ids[ends], lengths, np.full(2, 0.3)),
        positions=CameraPositions(scene.observations.view_ids, positions, np.full(3, 0.5)),
        **options,
    )


def numeric_system(problem, layout, noise):
    """All residuals and their Jacobian by central differences through the step."""
    state = problem.start
    n_theta, n_views = len(problem.names), layout.n_views

    def residuals(x):
        moved = problem.step(
            state,
            x[:n_theta],
            x[n_theta : n_theta + 6 * n_views].reshape(-1, 6),
            x[n_theta + 6 * n_views :].reshape(-1, 3),
        )
        _, extra = extra_rows(layout, moved)
        return np.concatenate([layout.compute_residuals(moved).ravel() / noise, extra])

    size = n_theta + 6 * n_views + 3 * layout.n_points
    steps = np.concatenate(
        [
            np.maximum(np.abs(state.as_vector()), 1e-3) * 1e-6,
            np.tile([1e-6] * 3 + [1e-3] * 3, n_views),
            np.full(3 * layout.n_points, 1e-3),
        ]
    )
    n_k = len(state.distortion.parameters)
    steps[5 : 5 + n_k] = (np.array([1e-9, 1e-15, 1e-21, 1e-8, 1e-8]))[:n_k]
    steps[5 + n_k : 5 + n_k + len(state.tilt)] = 1e-8
    if problem.uses_physical:
        steps[:3] = 1e-4, 1e-4, 1e-6
    return residuals(np.zeros(size)), central_difference(residuals, np.zeros(size), steps)


@pytest.mark.parametrize("tilt", [(), (6e-5, -4e-5)], ids=["parallel", "tilted"])
@pytest.mark.parametrize("fixed", [(), ("f_L",)], ids=["array", "physical"])
def test_whole_system(scene, fixed, tilt):
    """Gradient and damped step of the whole problem, against dense matrices."""
    scene = replace(scene, truth=replace(scene.truth, tilt=np.array(tilt)))
    problem = all_terms(scene, fixed=fixed)
    layout = Layout(problem)
    noise, damping = 0.3, 1e-3
    loss = Loss("none", 1.0, noise)
    linearization = layout.linearize(problem.start, loss)
    system = linearization.reduce(damping)
    r, J = numeric_system(problem, layout, noise)
    assert abs(linearization.cost - 0.5 * r @ r) < 1e-9 * linearization.cost
    gradient = J.T @ r
    n_theta, n_poses = len(problem.names), 6 * layout.n_views
    part = layout.theta_part
    check_columns(
        problem.step_names, system.gradient[part][None], gradient[:n_theta][None], THROUGH_STEP
    )
    poses = slice(n_theta, n_theta + n_poses)
    check_block("poses", system.gradient[:n_poses], gradient[poses], THROUGH_STEP)
    points = gradient[n_theta + n_poses :].reshape(-1, 3)
    check_block("points", system.point_gradient()[~layout.kept], points[~layout.kept], THROUGH_STEP)
    kept = system.gradient[n_poses : part.start].reshape(-1, 3)
    check_block("kept points", kept, points[layout.kept_points], THROUGH_STEP)

    step = system.solve(400)
    free = np.concatenate([problem.free, np.ones(len(gradient) - n_theta, bool)])
    normal = (J.T @ J)[np.ix_(free, free)]
    normal[np.diag_indices(len(normal))] *= 1.0 + damping
    scale = 1.0 / np.sqrt(np.diag(normal))
    dense = scale * np.linalg.solve(normal * scale[:, None] * scale, -scale * gradient[free])
    whole = np.zeros(len(gradient))
    whole[free] = dense
    check_block(
        "step, intrinsics",
        step.intrinsics / scale_of(J, n_theta),
        whole[:n_theta] / scale_of(J, n_theta),
        1e-4,
    )
    check_block("step, poses", step.poses.ravel(), whole[poses], 1e-4)
    check_block("step, points", step.points.ravel(), whole[n_theta + n_poses :], 1e-4)
    sparse = system.solve(1)
    np.testing.assert_allclose(
        sparse.points, step.points, rtol=0, atol=1e-6 * np.abs(step.points).max()
    )
    np.testing.assert_allclose(sparse.intrinsics, step.intrinsics, rtol=1e-6)


def test_what_the_images_know_of_distances(scene):
    """Between markers' centers: corners are correlated, through the poses and the camera."""
    ends = np.array([[[0] * 4, [1] * 4], [[2, 3, 4, 5], [6, 1, 7, 0]]])
    spans = compute_spans(scene.truth.points_world_mm, ends)
    lengths = np.linalg.norm(spans, axis=1)
    distances = Distances(scene.observations.point_ids[ends], 1.1 * lengths, np.full(2, 0.3))
    problem = cases.make_problem(scene)
    noise = 0.3
    found, covariance = compare_lengths(problem, scene.truth, distances, noise)
    np.testing.assert_allclose(found, lengths, rtol=1e-6)
    # The same from dense matrices: all unknowns but the first pose, lengths known to their size.
    loose = replace(problem, distances=replace(distances, lengths_mm=lengths, sigmas_mm=lengths))
    layout = Layout(loose)
    _, J = numeric_system(loose, layout, noise)
    n_theta, n_poses = len(loose.names), 6 * layout.n_views
    free = np.ones(J.shape[1], bool)
    free[:n_theta] = loose.free
    free[n_theta : n_theta + 6] = False
    scale = 1.0 / np.sqrt((J[:, free] ** 2).sum(axis=0))
    inverse = np.linalg.inv((J[:, free] * scale).T @ (J[:, free] * scale)) * scale[:, None] * scale
    slopes = np.zeros((2, J.shape[1]))
    for row, (span, length) in enumerate(zip(spans, lengths, strict=True)):
        for members, sign in zip(ends[row], (0.25, -0.25), strict=True):
            for point in members:
                place = n_theta + n_poses + 3 * point
                slopes[row, place : place + 3] += sign * span / length**2
    expected = slopes[:, free] @ inverse @ slopes[:, free].T
    # differences through the step are good to 1e-6, of an inverse with a condition of some hundred
    np.testing.assert_allclose(covariance, expected, rtol=1e-3)


def scale_of(J, n):
    return 1.0 / np.sqrt((J[:, :n] ** 2).sum(axis=0))


@pytest.mark.parametrize("loss", ["none", "huber", "cauchy"])
def test_gradient_of_every_loss(scene, loss, rng):
    """Through the value path: the cost's own differences."""
    observations, _ = scene.noisy(0.5, rng)
    problem = Problem(observations, scene.camera.pixel_size_mm, scene.truth)
    layout = Layout(problem)
    kind = Loss(loss, 1.0, 0.3, bends=True)
    system = layout.linearize(scene.truth, kind).reduce(0.0)

    def cost(x):
        n = layout.n_theta
        moved = problem.step(
            scene.truth,
            x[:n],
            np.vstack([x[n : n + 6], np.zeros((layout.n_views - 1, 6))]),
            np.vstack([x[n + 6 :], np.zeros((layout.n_points - 1, 3))]),
        )
        return layout.compute_cost(moved, kind)

    steps = np.concatenate(
        [
            # Small steps: few residuals pass the kink of the Huber loss.
            [1e-3, 1e-3, 1e-3, 1e-6, 1e-3, 1e-10, 1e-15, 1e-21, 1e-9, 1e-9][: layout.n_theta],
            [1e-6] * 3 + [1e-3] * 3,
            [1e-3] * 3,
        ]
    )
    numeric = central_difference(cost, np.zeros(len(steps)), steps)
    analytic = np.concatenate(
        [system.gradient[layout.theta_part], system.gradient[:6], system.point_gradient()[0]]
    )
    # a difference of costs keeps half the digits
    names = [str(i) for i in range(len(steps))]
    check_columns(names, analytic[None], numeric[None], 2e-4)


def test_value_and_jacobian_path_have_the_same_cost(scene, rng):
    observations, _ = scene.noisy(0.5, rng)
    problem = Problem(observations, scene.camera.pixel_size_mm, scene.truth)
    layout = Layout(problem)
    for name in ("none", "huber", "cauchy"):
        loss = Loss(name, 1.0, 0.3)
        value = layout.compute_cost(scene.truth, loss)
        assert abs(layout.linearize(scene.truth, loss).cost - value) <= 1e-13 * value


def test_gradient_is_zero_at_the_truth(scene):
    for problem in (
        cases.make_problem(scene),
        cases.make_problem(scene, distances=cases.distances_of(scene, [[0, 1], [1, 2]])),
        cases.make_problem(scene, positions=cases.positions_of(scene)),
        cases.make_problem(scene, fixed=("f_L", "B")),
    ):
        layout = Layout(problem)
        for loss in ("none", "huber", "cauchy"):
            system = layout.linearize(problem.start, Loss(loss, 1.0, 0.1)).reduce(0.0)
            assert system.largest_gradient() < 1e-8


def test_a_scaled_column_is_caught(scene):
    rows = Layout(cases.make_problem(scene)).compute_rows(scene.truth)[0]
    names = [str(i) for i in range(rows.shape[1])]
    for column in range(rows.shape[1]):
        wrong = rows.copy()
        wrong[:, column] *= 1.001
        with pytest.raises(AssertionError):
            check_columns(names, wrong, rows, EXACT)
