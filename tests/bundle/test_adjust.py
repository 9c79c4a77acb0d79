"""The whole adjustment: starts, outliers, distortion terms, focus, covariance, degenerate input."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bundle import focus_errors_percent, sfm_start
from benchmarks.bundle_scenes import make_scene
from lifcal.bundle import (
    AdjustOptions,
    CameraPositions,
    Distances,
    FocusTerm,
    Layout,
    Prior,
    Problem,
    adjust,
    compute_covariance,
    fit_virtual_points,
    focal_planes_from_paper,
    grid_from_observations,
    read_distances,
    refit_depth,
    register_views,
    start_from_observations,
    start_from_sfm,
)
from lifcal.bundle.adjustment import _Run
from lifcal.bundle.covariance import describe_weakness
from lifcal.bundle.files import write_adjustment
from lifcal.bundle.selection import keep_known_points, keep_known_views
from lifcal.camera import BrownDistortion, NoDistortion, read_camera
from lifcal.diagnostics import Severity
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.files import read_json
from lifcal.geometry import RigidTransform, read_tum
from lifcal.reconstruction import Observations
from lifcal.simulate import build_camera
from tests.bundle import cases
from tests.bundle.cases import texts_of

AUTO = AdjustOptions(loss="huber", distortion="auto")
BROWN = AdjustOptions(loss="huber", distortion="brown", tilt="none", fixed={"k1": 0.0, "k2": 0.0})


def run(scene, options=BROWN, start=None, **known):
    return adjust(
        scene.observations,
        start or scene.truth,
        scene.camera.pixel_size_mm,
        scene.camera.grid,
        options,
        **known,
    )


@pytest.fixture(params=["mini", "mini-keplerian"])
def scene(request, rng):
    return cases.small_scene(request.param, rng, n_points=50, n_views=8)


# Starts


def test_virtual_points(scene, rng):
    """Exact on exact observations (a camera without distortion), robust to one bad image in ten."""
    truth = replace(scene.truth, distortion=NoDistortion())
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, truth)
    seen = scene.observations.points_raw_px + Layout(problem).compute_residuals(truth)
    exact = replace(scene.observations, points_raw_px=seen)
    fitted = fit_virtual_points(exact)
    views, points = fitted.view_indices, fitted.point_indices
    cam = (
        np.einsum("nij,nj->ni", truth.rotations[views], truth.points_world_mm[points])
        + truth.translations_mm[views]
    )
    camera = replace(scene.camera, distortion=NoDistortion())
    wanted = camera.virtual_from_cam(cam)
    np.testing.assert_allclose(fitted.points_virt, wanted, rtol=1e-8, atol=1e-7)
    wrong = rng.random(len(seen)) < 0.1
    seen = seen + np.where(wrong[:, None], rng.uniform(-6, 6, seen.shape), 0.0)
    robust = fit_virtual_points(replace(exact, points_raw_px=seen))
    error = np.abs(robust.points_virt[:, 2] / wanted[:, 2] - 1.0)
    assert np.nanmedian(error) < 1e-6
    assert np.nanmean(error < 0.02) > 0.9


@pytest.mark.parametrize("name", ["mini", "mini-keplerian", "r5-16mm", "r12-50mm"])
def test_start_from_observations(name, rng):
    depths = {"r5-16mm": (400.0, 1500.0), "r12-50mm": (240.0, 370.0), **cases.DEPTHS_MM}[name]
    camera = build_camera(name).camera
    scene = make_scene(camera, depths, 60, 8, rng)
    observations, _ = scene.noisy(0.1, rng, outliers=0.02)
    nominal = camera.parameters.focal_length_mm / camera.pixel_size_mm
    middle = (np.array(camera.image_size) - 1) / 2
    start = start_from_observations(observations, nominal, middle)
    assert start.registered.all()
    found = adjust(
        observations,
        start,
        camera.pixel_size_mm,
        camera.grid,
        distances=scene.distances(5, 0.02, rng),
    )
    sigmas = found.covariance.sigmas()
    for name_, value, true in zip(
        ("f_L", "b_L0", "B", "c_x", "c_y"),
        found.camera.parameters.as_vector(),
        camera.parameters.as_vector(),
        strict=True,
    ):
        # four sigma is the house's tolerance; 5 because terms of the distortion were left out
        assert abs(value - true) < 5.0 * sigmas[name_], name_
    assert 0.9 * 0.1 < found.summary.noise < 1.1 * 0.1


def test_start_from_sfm(scene, rng):
    noisy, _ = scene.noisy(0.1, rng)
    start, unit = sfm_start(cases.with_observations(scene, noisy), rng)
    assert start.array.alpha == pytest.approx(scene.camera.array.alpha, rel=0.05)
    assert start.array.beta_mm * unit == pytest.approx(scene.camera.array.beta_mm, rel=0.05)
    known = cases.distances_of(scene, [[0, 1], [2, 3]])
    found = run(cases.with_observations(scene, noisy), start=start, distances=known)
    sigmas = found.covariance.sigmas()
    errors = found.camera.parameters.as_vector() - scene.camera.parameters.as_vector()
    for name, error in zip(("f_L", "b_L0", "B", "c_x", "c_y"), errors, strict=True):
        assert abs(error) < 4.0 * sigmas[name], name
    assert found.summary.iterations <= 18  # 12 to 16 on ten seeds


def test_exact_sfm_gives_an_exact_line(scene):
    truth = scene.truth
    start = start_from_sfm(
        scene.observations,
        truth.array.focal_px,
        scene.camera.principal_point_px,
        truth.cam_from_world,
        truth.points_world_mm,
        truth.distortion,
    )
    np.testing.assert_allclose(start.state.array.as_vector(), truth.array.as_vector(), rtol=1e-6)
    wrong = replace(truth, array=replace(truth.array, alpha=truth.array.alpha - 3.0))
    mended = refit_depth(scene.observations, wrong)
    assert mended.array.alpha == pytest.approx(truth.array.alpha, rel=1e-6)


def test_register_views(scene):
    start = register_views(scene.observations, scene.camera.array, scene.camera.distortion)
    assert start.registered.all()
    # the frame is that of the best connected view: compare distances
    found = start.state.points_world_mm
    for i in range(0, len(found) - 1, 7):
        wanted = np.linalg.norm(scene.truth.points_world_mm[i] - scene.truth.points_world_mm[i + 1])
        assert np.linalg.norm(found[i] - found[i + 1]) == pytest.approx(wanted, rel=1e-5)


# Outliers and distortion terms


@pytest.mark.parametrize("loss", ["huber", "cauchy"])
def test_outliers_are_rejected_and_counted(loss, rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    observations, wrong = scene.noisy(0.1, rng, outliers=0.1)
    found = run(
        cases.with_observations(scene, observations),
        replace(BROWN, loss=loss),
        distances=cases.distances_of(scene, [[0, 1], [2, 3]]),
    )
    rejected = ~found.problem.active_mask
    gross = np.hypot(*(observations.points_raw_px - scene.observations.points_raw_px).T) > 1.0
    assert rejected[gross].mean() > 0.98
    assert rejected[~wrong].mean() < 0.005
    counts = found.summary.outliers
    assert counts.total == rejected.sum()
    assert sum(bad for bad, _ in counts.by_view.values()) == counts.total
    assert sum(bad for bad, _ in counts.by_type) == counts.total
    assert sum(bad for _, bad, _ in counts.by_radius) == counts.total
    assert sum(n for _, _, n in counts.by_radius) == len(observations)
    assert 0.9 * 0.1 < found.summary.noise < 1.1 * 0.1
    sigmas = found.covariance.sigmas()
    errors = found.camera.parameters.as_vector() - scene.camera.parameters.as_vector()
    for name, error in zip(("f_L", "b_L0", "B", "c_x", "c_y"), errors, strict=True):
        assert abs(error) < 4.0 * sigmas[name], name


def test_distortion_terms_must_pay(rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    noisy, _ = scene.noisy(0.1, rng)
    found = run(cases.with_observations(scene, noisy), AUTO)
    assert isinstance(found.camera.distortion, BrownDistortion)
    k = found.camera.distortion
    assert k.k0 != 0.0
    assert k.k2 == 0.0
    # what bends the rim by pixels is found
    bent = replace(scene.camera, distortion=BrownDistortion(-1e-8, 4e-13))
    scene = make_scene(bent, (400.0, 1500.0), 60, 8, rng)
    noisy, _ = scene.noisy(0.1, rng)
    found = run(cases.with_observations(scene, noisy), AUTO)
    assert found.camera.distortion.k1 == pytest.approx(4e-13, rel=0.2)


def test_low_terms_are_always_estimated(rng):
    """With tangential terms held at 0, c has a small sigma and is off by many."""
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    noisy, _ = scene.noisy(0.1, rng)
    scene = cases.with_observations(scene, noisy)
    found, held = run(scene, AUTO), run(scene, replace(AUTO, fixed={"p0": 0, "p1": 0}))
    true = scene.camera.principal_point_px
    errors = found.camera.principal_point_px - true
    sigmas = np.array([found.covariance.sigmas()[name] for name in ("c_x", "c_y")])
    assert (np.abs(errors) < 3.5 * sigmas).all()
    narrow = np.array([held.covariance.sigmas()[name] for name in ("c_x", "c_y")])
    assert (narrow < 0.7 * sigmas).all()


# Focus


def test_focus_term_mends_B():
    plain, given, estimated = focus_errors_percent()
    assert abs(plain) > 2.0
    assert abs(given) < 0.3
    assert abs(estimated) < 0.3


def test_overlap_shape_recovers_its_strength(rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    term = cases.focus_term(scene.camera, "overlap")
    term = replace(term, plane_sigma=0.0)
    truth = scene.truth.with_focus(term.focal_planes, 0.4)
    problem = Problem(scene.observations, scene.camera.pixel_size_mm, truth, focus=term)
    seen = scene.observations.points_raw_px + Layout(problem).compute_residuals(truth)
    noise = rng.normal(scale=0.05, size=seen.shape)
    scene = cases.with_observations(scene, replace(scene.observations, points_raw_px=seen + noise))
    options = replace(BROWN, focus=term, focus_strength=Prior(0.0, 1.0))
    found = run(scene, options, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    sigma = found.covariance.sigmas()["g"]
    assert sigma < 0.1
    assert abs(found.state.focus_strength - 0.4) < 4.0 * sigma
    plain = run(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    spread = [
        max(abs(row.percent) for row in each.summary.residual_scale) for each in (plain, found)
    ]
    assert spread[0] > 3.0 * spread[1]


def test_overlap_is_that_of_the_apertures():
    """The shape in u equals the spot that two apertures make, in the paper's v."""
    optics = build_camera("r5-16mm")
    camera = optics.camera
    term = FocusTerm.from_grid(camera.grid, "overlap")
    for lens_type, depth in ((0, 450.0), (1, 700.0), (2, 1500.0)):
        u = float(camera.virtual_depth_from_depth(depth))
        v = float(camera.paper_from_virtual_depth(u))
        for offset_px in (1.0, 5.0, 8.0, 9.5):
            _, shift = optics.apertures.compute_spot(
                offset_px * camera.pixel_size_mm, optics.focal_planes_v[lens_type], v
            )
            h = term.compute_magnification(offset_px, lens_type, u)
            assert h * offset_px == pytest.approx(float(shift) / camera.pixel_size_mm, abs=1e-9)


def test_focal_planes_from_paper():
    optics = build_camera("r5-16mm")
    p = optics.camera.parameters
    found = focal_planes_from_paper(optics.focal_planes_v, p.lens_to_array_mm, p.array_to_sensor_mm)
    np.testing.assert_allclose(found, optics.camera.grid.focal_planes, rtol=1e-12)


def test_focus_term_refuses():
    with pytest.raises(InputError, match="discs"):
        FocusTerm(np.array([2.0, 3.0]), "overlap")
    with pytest.raises(InputError, match="other than 0"):
        FocusTerm(np.array([0.0]))
    with pytest.raises(InputError, match="plane_sigma"):
        FocusTerm(np.array([2.0]), plane_sigma=-1.0)


# Covariance


def test_covariance_is_the_dense_inverse(rng):
    """Intrinsics, poses and points, against the inverse of the whole normal matrix."""
    from tests.derivatives.test_bundle import numeric_system

    scene = cases.small_scene("mini", rng, n_points=12, n_views=3, images_per_pair=5)
    problem = cases.make_problem(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]]))
    layout = Layout(problem)
    found = compute_covariance(layout, problem.start, 0.1, poses=True, points=True)
    _, J = numeric_system(problem, layout, 0.1)
    n_theta = len(problem.names)
    keep = np.ones(J.shape[1], bool)
    keep[:n_theta] = problem.free
    keep[n_theta : n_theta + 6] = False
    J = J[:, keep]
    scale = 1.0 / np.sqrt((J**2).sum(axis=0))
    inverse = np.linalg.inv((J * scale).T @ (J * scale)) * scale[:, None] * scale
    whole = np.zeros((len(keep), len(keep)))
    whole[np.ix_(keep, keep)] = inverse
    # differences of 1e-6 in J are some 1e-4 here: the matrix is badly conditioned
    np.testing.assert_allclose(
        np.sqrt(np.diag(found.array)), np.sqrt(np.diag(whole)[:n_theta]), rtol=1e-3
    )
    for view in range(layout.n_views):
        part = slice(n_theta + 6 * view, n_theta + 6 * view + 6)
        np.testing.assert_allclose(
            np.sqrt(np.diag(found.poses[view])), np.sqrt(np.diag(whole[part, part])), rtol=1e-3
        )
    for point in range(layout.n_points):
        first = n_theta + 6 * layout.n_views + 3 * point
        block = whole[first : first + 3, first : first + 3]
        np.testing.assert_allclose(
            np.sqrt(np.diag(found.points[point])), np.sqrt(np.diag(block)), rtol=1e-3
        )


def test_sigma_scales_with_the_noise(rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    found = []
    for noise in (0.05, 0.2):
        observations, _ = scene.noisy(noise, rng)
        found.append(
            run(
                cases.with_observations(scene, observations),
                distances=cases.distances_of(scene, [[0, 1], [2, 3]], 1e-3),
            )
        )
    ratio = found[1].covariance.sigmas()["F"] / found[0].covariance.sigmas()["F"]
    assert 3.6 < ratio < 4.4


def test_weakness_is_said(rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    found = run(scene, distances=cases.distances_of(scene, [[0, 1], [2, 3]], 1e-3))
    tied = np.array(found.covariance.array)
    names = list(found.covariance.names)
    a, b = names.index("F"), names.index("alpha")
    tied[a, b] = tied[b, a] = 0.998 * np.sqrt(tied[a, a] * tied[b, b])
    covariance = replace(found.covariance, array=tied)
    pixel = scene.camera.pixel_size_mm
    said = describe_weakness(covariance, found.state, pixel, metric=False)
    assert any("F and alpha are correlated 0.998" in each.text for each in said)
    said = describe_weakness(found.covariance, found.state, pixel, metric=False)
    assert not any("F and alpha" in each.text for each in said)


# Degenerate input


def test_one_view(rng):
    scene = cases.small_scene("mini", rng)
    one = scene.observations.select(scene.observations.view_indices == 0)
    with pytest.raises(EstimationError, match="one view only"):
        start_from_observations(one, 900.0, (320, 240))


def test_too_few_points(rng):
    scene = cases.small_scene("mini", rng)
    few = scene.observations.select(scene.observations.point_indices < 6)
    truth = replace(scene.truth, points_world_mm=scene.truth.points_world_mm[:6])
    with pytest.raises(EstimationError, match="need 8"):
        run(cases.with_observations(scene, few), start=truth)


def geometry_scene(rng, points, poses):
    camera = build_camera("mini").camera
    rows = []
    for view, pose in enumerate(poses):
        seen = camera.project_all(pose.apply(points))
        rows.append((np.full(len(seen.lens_indices), view), seen))
    lenses = np.concatenate([seen.lens_indices for _, seen in rows])
    observations = Observations.from_arrays(
        np.concatenate([views for views, _ in rows]),
        np.concatenate([seen.point_indices for _, seen in rows]),
        camera.grid.centers_raw_px[lenses],
        np.concatenate([seen.points_raw_px for _, seen in rows])
        + rng.normal(scale=0.1, size=(len(lenses), 2)),
        lens_types=camera.grid.lens_types[lenses],
    )
    from benchmarks.bundle_scenes import Scene
    from lifcal.reconstruction import Reconstruction

    truth = Reconstruction.from_poses(
        camera.array, camera.distortion, poses, points[observations.point_ids]
    )
    return Scene(camera, observations, truth)


def cloud(rng, depth, n=60):
    xy = rng.uniform(-0.25, 0.25, (n, 2))
    return np.column_stack([xy * depth[:, None], depth])


def outcome(scene):
    """What an adjustment says, as an error or in the summary."""
    try:
        return " ".join(texts_of(run(scene)))
    except EstimationError as error:
        return str(error)


def test_pure_rotation_is_named(rng):
    points = cloud(rng, rng.uniform(400.0, 1500.0, 60))
    poses = [
        RigidTransform.from_rotation_vector(rng.uniform(-0.1, 0.1, 3), np.zeros(3))
        for _ in range(6)
    ]
    assert "turned on the spot" in outcome(geometry_scene(rng, points, poses))


def test_one_depth_is_named(rng):
    points = cloud(rng, np.full(60, 700.0) + rng.uniform(-2.0, 2.0, 60))
    poses = [
        RigidTransform.from_rotation_vector([0.0, 0.0, 0.3 * i], [20.0 * i - 50, 10.0 * i, 0.0])
        for i in range(6)
    ]
    assert "one depth" in outcome(geometry_scene(rng, points, poses))


def test_flat_scene_is_named(rng):
    points = cloud(rng, np.full(60, 700.0))
    poses = [
        RigidTransform.from_rotation_vector(
            rng.uniform(-0.25, 0.25, 3), [*rng.uniform(-50, 50, 2), rng.uniform(-150, 200)]
        )
        for _ in range(8)
    ]
    poses[0] = RigidTransform.identity()
    assert "flat" in outcome(geometry_scene(rng, points, poses))


def test_tilted_flat_scene_is_named(rng):
    """The world's axes have nothing to do with it."""
    points = cloud(rng, np.full(60, 700.0))
    points[:, 2] += 0.8 * points[:, 0] + 0.4 * points[:, 1]
    poses = [
        RigidTransform.from_rotation_vector(
            rng.uniform(-0.2, 0.2, 3), [*rng.uniform(-50, 50, 2), rng.uniform(-100, 200)]
        )
        for _ in range(8)
    ]
    assert "flat" in outcome(geometry_scene(rng, points, poses))


# Wrong input that is plausible


def rename_points(observations, new_ids):
    """The observations with other point names where `new_ids` maps (view, point)."""
    views = observations.view_ids[observations.view_indices]
    points = observations.point_ids[observations.point_indices].copy()
    for i, key in enumerate(zip(views.tolist(), points.tolist(), strict=True)):
        points[i] = new_ids.get(key, points[i])
    return Observations.from_arrays(
        views,
        points,
        observations.centers_raw_px,
        observations.points_raw_px,
        lens_types=observations.lens_types,
    )


def pulls_of(found, camera):
    sigmas = found.covariance.sigmas()
    p, q = found.camera.parameters, camera.parameters
    return {
        "f_L": (p.focal_length_mm - q.focal_length_mm) / sigmas["f_L"],
        "B": (p.array_to_sensor_mm - q.array_to_sensor_mm) / sigmas["B"],
    }


@pytest.fixture
def noisy_scene(rng):
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    return cases.with_observations(scene, scene.noisy(0.1, rng)[0])


def run_alone(scene, observations, **known):
    """Adjust from the observations alone, as `lifcal adjust` does."""
    camera = scene.camera
    start = start_from_observations(observations, 16.0 / camera.pixel_size_mm, (319.5, 239.5))
    return adjust(observations, start, camera.pixel_size_mm, camera.grid, **known)


def three_distances(scene, sigma_mm=0.05):
    return cases.distances_of(scene, [[0, 1], [2, 3], [4, 5]], sigma_mm)


def test_a_track_that_is_wholly_wrong_is_left_out(noisy_scene):
    ids = noisy_scene.observations.point_ids
    a, b = int(ids[20]), int(ids[21])
    swapped = {(view, a): b for view in range(4, 8)} | {(view, b): a for view in range(4, 8)}
    found = run_alone(
        noisy_scene,
        rename_points(noisy_scene.observations, swapped),
        distances=three_distances(noisy_scene),
    )
    assert max(abs(pull) for pull in pulls_of(found, noisy_scene.camera).values()) < 4.0
    assert found.summary.rms_px < 0.12
    assert found.summary.n_used < found.summary.n_observations or texts_of(found)


def test_a_track_of_noise_is_left_out_and_named(noisy_scene, rng):
    observations = noisy_scene.observations
    name = int(observations.point_ids[20])
    mine = observations.point_indices == 20
    noise = rng.uniform(-5.0, 5.0, (int(mine.sum()), 2))
    points = observations.points_raw_px.copy()
    points[mine] = observations.centers_raw_px[mine] + noise
    found = run(cases.with_observations(noisy_scene, replace(observations, points_raw_px=points)))
    assert name not in found.problem.observations.point_ids
    assert any(f"fit in no view: {name}" in note for note in texts_of(found))


def test_a_view_that_is_matched_wrongly_is_left_out(noisy_scene, rng):
    ids = noisy_scene.observations.point_ids
    mixed = rng.permutation(ids)
    wrong = {(3, int(a)): int(b) for a, b in zip(ids, mixed, strict=True)}
    found = run_alone(
        noisy_scene,
        rename_points(noisy_scene.observations, wrong),
        distances=three_distances(noisy_scene),
    )
    assert max(abs(pull) for pull in pulls_of(found, noisy_scene.camera).values()) < 4.0
    assert 3 not in found.problem.observations.view_ids
    assert any("3" in note for note in texts_of(found))


def test_a_refocused_camera_is_named(rng):
    camera = build_camera("mini").camera
    moved = camera.parameters
    moved = replace(moved, lens_to_array_mm=1.005 * moved.lens_to_array_mm)
    other = replace(camera, parameters=moved)
    seed = int(rng.integers(1 << 30))
    first, second = (
        make_scene(each, (400.0, 1500.0), 60, 8, np.random.default_rng(seed))
        for each in (camera, other)
    )
    parts = []
    for part, late in ((first.noisy(0.1, rng)[0], False), (second.noisy(0.1, rng)[0], True)):
        names = part.view_ids[part.view_indices]
        keep = (names >= 4) == late
        parts.append(part.select(keep))
    joined = Observations.from_arrays(
        *(
            np.concatenate([column(part) for part in parts])
            for column in (
                lambda o: o.view_ids[o.view_indices],
                lambda o: o.point_ids[o.point_indices],
                lambda o: o.centers_raw_px,
                lambda o: o.points_raw_px,
            )
        )
    )
    found = run_alone(first, joined)
    assert any("refocused" in word for word in texts_of(found))
    same = run_alone(first, first.noisy(0.1, rng)[0])
    assert not any("refocused" in word for word in texts_of(same))


def test_a_distance_that_contradicts_the_others(noisy_scene):
    good = three_distances(noisy_scene)
    lengths = good.lengths_mm.copy()
    lengths[0] *= 1.5
    labels = ("the long rod", "the short rod", "the plate")
    found = run(noisy_scene, distances=replace(good, lengths_mm=lengths, labels=labels))
    assert any("(the long rod)" in note for note in texts_of(found))
    assert found.problem.distances.labels == labels[1:]
    assert max(abs(pull) for pull in pulls_of(found, noisy_scene.camera).values()) < 4.0
    assert any("contradict" in note for note in texts_of(found))
    two = good.select(np.array([True, True, False]))
    with pytest.raises(EstimationError, match="contradict each other"):
        run(noisy_scene, distances=replace(two, lengths_mm=lengths[:2]))
    # of three, a little off is found; of two, nobody knows which
    slightly = good.lengths_mm.copy()
    slightly[0] *= 1.02
    found = run(noisy_scene, distances=replace(good, lengths_mm=slightly))
    assert any("contradict" in word for word in texts_of(found))
    assert max(abs(pull) for pull in pulls_of(found, noisy_scene.camera).values()) < 4.0
    found = run(noisy_scene, distances=replace(two, lengths_mm=slightly[:2]))
    assert any("disagree" in word for word in texts_of(found))
    assert not texts_of(run(noisy_scene, distances=good), Severity.NOTE)


def test_true_distances_are_not_rejected_for_noise(rng):
    """Short ones, measured coarsely: the images know them to several per cent only."""
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    points = scene.truth.points_world_mm
    apart = np.linalg.norm(points[:, None] - points, axis=2) + 1e6 * np.tri(len(points))
    shortest = np.argsort(apart.ravel())[:3]
    noisy = cases.with_observations(scene, scene.noisy(0.6, rng)[0])
    pairs = np.column_stack(np.unravel_index(shortest, apart.shape))
    known = cases.distances_of(scene, pairs, 0.02)
    found = run(noisy, distances=known)
    assert not texts_of(found, Severity.NOTE)
    assert len(found.problem.distances.lengths_mm) == 3


def test_small_markers_on_perfect_data_do_not_contradict_each_other(rng):
    """Errors of a part of a pixel that all views share are much of a short length."""
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    points = scene.truth.points_world_mm
    apart = np.linalg.norm(points[:, None] - points, axis=2) + 1e6 * np.tri(len(points))
    pairs = np.column_stack(np.unravel_index(np.argsort(apart.ravel())[:6], apart.shape))
    good = cases.distances_of(scene, pairs, 0.02)
    depth = np.linalg.norm(points[pairs].mean(axis=1), axis=1)  # nearly: the first view's origin
    lengths_px = scene.camera.array.focal_px * good.lengths_mm / depth
    assert lengths_px.min() < 30.0
    noisy = cases.with_observations(scene, scene.noisy(0.005, rng)[0])
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    off = replace(good, lengths_mm=good.lengths_mm * (1.0 + signs * 0.3 / lengths_px))
    assert (0.3 / lengths_px).max() > 0.01
    found = run(noisy, distances=off)
    assert not [word for word in texts_of(found, Severity.NOTE) if "distances" in word]
    assert len(found.problem.distances.lengths_mm) == 6
    # a marker of another size is found all the same
    lengths = off.lengths_mm.copy()
    lengths[0] *= 1.25
    found = run(noisy, distances=replace(off, lengths_mm=lengths))
    assert any("contradict" in word for word in texts_of(found))


def test_centers_found_anew_in_each_view(noisy_scene, rng):
    observations = noisy_scene.observations
    jitter = rng.normal(scale=0.05, size=(len(observations), 2))
    moved = replace(observations, centers_raw_px=observations.centers_raw_px + jitter)
    grid = grid_from_observations(moved, noisy_scene.camera.image_size)
    found = adjust(moved, noisy_scene.truth, noisy_scene.camera.pixel_size_mm, grid, BROWN)
    assert not any("outside" in note for note in texts_of(found))
    assert found.summary.rms_px < 0.15


def test_distances_and_positions_of_two_scales(noisy_scene):
    good = three_distances(noisy_scene)
    known = cases.positions_of(noisy_scene)
    longer = replace(good, lengths_mm=1.02 * good.lengths_mm)
    found = run(noisy_scene, distances=longer, positions=known)
    assert any("by the distances than by the camera" in note for note in texts_of(found))
    found = run(noisy_scene, distances=good, positions=known)
    assert not texts_of(found, Severity.NOTE)


def test_a_position_that_does_not_fit(noisy_scene):
    good = cases.positions_of(noisy_scene)
    places = good.positions_world_mm.copy()
    places[3] += 100.0
    wrong = replace(good, positions_world_mm=places)
    found = run(noisy_scene, positions=wrong)
    assert any("views 3" in note for note in texts_of(found))
    error = found.state.positions_world_mm() - noisy_scene.truth.positions_world_mm()
    assert np.abs(error).max() < 1.0
    rng = np.random.default_rng(2)
    # a little off: named
    places = good.positions_world_mm.copy()
    places[3] += 4.0
    found = run(noisy_scene, positions=replace(good, positions_world_mm=places))
    assert any("position of view 3 is" in note for note in texts_of(found))
    with pytest.raises(EstimationError, match="positions do not fit"):
        run(
            noisy_scene,
            positions=replace(good, positions_world_mm=rng.permutation(good.positions_world_mm)),
        )


def test_centers_that_are_not_those_of_the_points(noisy_scene):
    observations = noisy_scene.observations
    centers = observations.centers_raw_px.copy()
    centers[5] += 60.0
    one = replace(observations, centers_raw_px=centers)
    found = run(cases.with_observations(noisy_scene, one))
    assert any("outside the micro image" in note for note in texts_of(found))
    moved = replace(observations, centers_raw_px=observations.centers_raw_px + 40.0)
    with pytest.raises(InputError, match="radii from the center"):
        run(cases.with_observations(noisy_scene, moved))
    centers[5] = 3000.0
    with pytest.raises(InputError, match="micro-image centers lie outside"):
        run(cases.with_observations(noisy_scene, replace(one, centers_raw_px=centers)))


def test_lens_types_come_from_the_grid(noisy_scene):
    observations, grid = noisy_scene.observations, noisy_scene.camera.grid
    bare = replace(observations, lens_types=np.zeros_like(observations.lens_types))
    found = bare.with_types_of(grid)
    np.testing.assert_array_equal(found.lens_types, observations.lens_types)
    assert observations.with_types_of(grid) is observations
    turned = replace(observations, lens_types=(observations.lens_types + 1) % 3)
    with pytest.raises(InputError, match="lens types are not those"):
        turned.with_types_of(grid)
    other = build_camera("mini-keplerian").camera.grid
    with pytest.raises(InputError, match="grid is not that"):
        bare.with_types_of(other)


def test_mixed_cameras(rng):
    scene = cases.small_scene("mini", rng)
    observations = scene.observations
    moved = observations.view_indices >= 3
    centers = observations.centers_raw_px + np.where(moved[:, None], 5.0, 0.0)
    mixed = replace(observations, centers_raw_px=centers)
    with pytest.raises(InputError, match="several cameras"):
        grid_from_observations(mixed, (700, 500))
    with pytest.raises(InputError, match="outside the image"):
        grid_from_observations(observations, (320, 240))


def test_grid_from_observations(rng):
    scene = cases.small_scene("mini", rng)
    grid = grid_from_observations(scene.observations, scene.camera.image_size)
    # the median over the centers observed; distortion bends them by some tenths of a per cent
    assert grid.pitch_px == pytest.approx(scene.camera.grid.pitch_px, rel=3e-3)
    wrong = scene.observations.lens_types.copy()
    wrong[0] = (wrong[0] + 1) % 3
    with pytest.raises(InputError, match="two lens types"):
        grid_from_observations(
            replace(scene.observations, lens_types=wrong), scene.camera.image_size
        )


# Scale files and results


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no distances"),
        ("1 2 3\n", "line 1"),
        ("# x\n1 2 ten 1\n", "line 2"),
        ("1 2 10 0\n", "sigma"),
        ("1 2 -10 1\n", "distance"),
        ("1 1 10 1\n", "itself"),
    ],
)
def test_bad_distances_are_one_line(tmp_path, text, words):
    path = tmp_path / "distances.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_distances(path)


def test_distances_file(tmp_path):
    path = tmp_path / "distances.txt"
    path.write_text("# two\n1 2 10.5 0.1  # first\n\n3 4 20 0.2\n")
    found = read_distances(path)
    assert found.point_ids.tolist() == [[[1], [2]], [[3], [4]]]
    assert found.lengths_mm.tolist() == [10.5, 20.0]


def test_scale_records_refuse():
    with pytest.raises(InputError, match="two different places"):
        CameraPositions(np.array([0, 1]), np.zeros((2, 3)), np.ones(2))
    with pytest.raises(InputError, match="two known positions"):
        CameraPositions(np.array([0, 0]), np.eye(3)[:2], np.ones(2))
    with pytest.raises(InputError, match="needs"):
        Distances.from_markers([[1, 2, 3]], 10.0, 0.1)
    with pytest.raises(InputError, match="prior"):
        Prior(1.0, 0.0)


def test_files(tmp_path, rng):
    scene = cases.small_scene("mini", rng)
    noisy, _ = scene.noisy(0.1, rng)
    found = run(
        cases.with_observations(scene, noisy), distances=cases.distances_of(scene, [[0, 1]])
    )
    paths = write_adjustment(tmp_path / "out", found)
    camera = read_camera(paths["camera.json"])
    np.testing.assert_allclose(
        camera.parameters.as_vector(), found.camera.parameters.as_vector(), rtol=1e-12
    )
    assert camera.scale_source == "distances"
    assert camera.sigmas()["B"] == pytest.approx(found.covariance.sigmas()["B"], rel=1e-9)
    poses = read_tum(paths["poses.txt"])
    np.testing.assert_allclose(
        poses.positions_world_mm(), found.state.positions_world_mm(), atol=1e-6
    )
    lines = paths["points.ply"].read_text().splitlines()
    assert lines[0] == "ply"
    assert len(lines) == 9 + len(found.state.points_world_mm)
    names = [int(line.split()[3]) for line in lines[9:]]
    assert names == found.problem.observations.point_ids.tolist()
    summary = read_json(paths["summary.json"])
    assert summary["scale_source"] == "distances"
    assert summary["n_used"] == found.summary.n_used
    assert summary["distances"][0]["found_mm"] == pytest.approx(
        summary["distances"][0]["mm"], abs=0.1
    )
    assert summary["parameters"]["F"]["sigma"] > 0.0


def test_what_is_known_of_others_is_left_out_and_said(scene):
    """Distances to points, and positions of views, that are not among the observations."""
    observations = scene.observations
    first, second = observations.point_ids[:2].tolist()
    ends = np.array([[first, second], [first, 99999]])
    known = Distances(ends, np.array([10.0, 20.0]), np.ones(2))
    findings = []
    assert len(keep_known_points(known, observations, findings).lengths_mm) == 1
    views = [*observations.view_ids[:3].tolist(), 777]
    positions = CameraPositions(np.array(views), np.eye(4)[:, :3], np.ones(4))
    assert len(keep_known_views(positions, observations, findings).view_ids) == 3
    assert [each.code for each in findings] == ["distances-unused", "positions-unused"]
    assert [each.evidence["count"] for each in findings] == [1, 1]


def test_views_that_fit_none_of_the_others(scene):
    """Where most observations of a view are outliers, the whole view is left out."""
    problem = cases.make_problem(scene)
    observations = problem.observations
    views = observations.view_indices
    active = np.ones(len(views), bool)
    active[np.flatnonzero(views == 1)[2:]] = False
    steps = _Run(AdjustOptions(), None)
    wrong = steps.find_wrong(problem, active)
    assert wrong[views == 1].all()
    assert steps.findings[0].code == "views-left-out"
    assert steps.findings[0].evidence["views"] == [int(observations.view_ids[1])]


def test_noise_that_still_changes_is_said(noisy_scene, monkeypatch):
    assert "not-settled" not in {each.code for each in run(noisy_scene).summary.findings}
    monkeypatch.setattr("lifcal.bundle.adjustment._MOST_SOLVES", 1)
    assert "not-settled" in {each.code for each in run(noisy_scene).summary.findings}
