"""Several scenes before one camera: each a world with a frame of its own."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import AdjustOptions, CameraPositions, Layout, Problem, adjust, cross_validate
from lifcal.bundle.covariance import compute_covariance
from lifcal.bundle.degeneracy import describe_geometry
from lifcal.bundle.selection import are_known, keep_known_views
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, find_worlds
from tests.bundle.cases import (
    NOISE_PX,
    distances_of,
    perturb,
    positions_of,
    small_scene,
    with_observations,
)

OPTIONS = AdjustOptions(loss="none", distortion="brown", tilt="none", reject_sigmas=None)


def join(*scenes):
    """Scenes of one camera as one: views and points of each follow those of the one before."""
    parts, views, points = [], 0, 0
    for scene in scenes:
        found = scene.observations
        parts.append(
            (
                found.view_ids[found.view_indices] + views,
                found.point_ids[found.point_indices] + points,
                found.centers_raw_px,
                found.points_raw_px,
            )
        )
        views += 1 + int(found.view_ids.max())
        points += 1 + int(found.point_ids.max())
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    first = scenes[0].truth
    truth = first.with_scene(
        np.concatenate([scene.truth.rotations for scene in scenes]),
        np.concatenate([scene.truth.translations_mm for scene in scenes]),
        np.concatenate([scene.truth.points_world_mm for scene in scenes]),
    )
    return replace(scenes[0], observations=Observations.from_arrays(*columns), truth=truth)


def two_scenes(rng, noise_px=0.0, **options):
    scenes = [small_scene("mini", rng, **options) for _ in range(2)]
    if noise_px > 0.0:
        scenes = [with_observations(scene, scene.noisy(noise_px, rng)[0]) for scene in scenes]
    return scenes


def run(scene, start, options=OPTIONS, **known):
    camera = scene.camera
    return adjust(
        scene.observations, start, camera.pixel_size_mm, camera.grid.image_size, options, **known
    )


def test_worlds_are_the_parts_without_a_common_point(rng):
    both = join(*two_scenes(rng, n_points=20, n_views=4))
    worlds = find_worlds(both.observations)
    assert len(worlds) == 2
    assert worlds.of_views.tolist() == [0] * 4 + [1] * 4
    assert worlds.first_views.tolist() == [0, 4]
    assert np.bincount(worlds.of_points).sum() == len(both.observations.point_ids)


def test_one_scale_makes_every_world_metric(rng):
    """Distances in one world only: the shared camera carries the scale over."""
    first, second = two_scenes(rng)
    both = join(first, second)
    start = perturb(both.truth, rng).scaled(1.7)
    found = run(both, start, distances=distances_of(first, [(0, 1), (2, 3)]))
    # 1e-6: noise-free observations, solved to convergence
    assert found.state.as_vector()[:5] == pytest.approx(both.truth.as_vector()[:5], rel=1e-6)
    views = found.problem.worlds.of_views == 1
    places = found.state.positions_world_mm()[views]
    true = second.truth.positions_world_mm()
    for a in range(1, len(true)):
        assert np.linalg.norm(places[a] - places[0]) == pytest.approx(
            np.linalg.norm(true[a] - true[0]), rel=1e-5
        )
    for view in (0, len(first.truth.rotations)):  # each world is that of its first view
        np.testing.assert_allclose(found.state.rotations[view], np.eye(3), atol=1e-12)
        np.testing.assert_allclose(found.state.translations_mm[view], 0.0, atol=1e-9)


def test_worlds_add_up_to_one_camera(rng):
    """The information about the camera is the sum of what each world knows of it."""
    scenes = two_scenes(rng, noise_px=NOISE_PX)
    inverses = []
    for scene in (*scenes, join(*scenes)):
        problem = Problem(scene.observations, scene.camera.pixel_size_mm, scene.truth)
        found = compute_covariance(Layout(problem), scene.truth, NOISE_PX).array
        free = np.diag(found) > 0.0
        inverses.append(np.linalg.inv(found[np.ix_(free, free)]))
    # 1e-6 of the largest: inverses of inverses, beta held in all
    total = inverses[0] + inverses[1]
    size = np.sqrt(np.outer(np.diag(total), np.diag(total)))
    assert np.abs((inverses[2] - total) / size).max() < 1e-6


def test_sigmas_shrink_and_hold(rng):
    scenes = two_scenes(rng, noise_px=NOISE_PX, n_points=60)
    both = join(*scenes)
    known = {"distances": distances_of(scenes[0], [(0, 1), (2, 3)])}
    alone = run(scenes[0], perturb(scenes[0].truth, rng), **known)
    found = run(both, perturb(both.truth, rng), **known)
    assert found.covariance.sigmas()["F"] < alone.covariance.sigmas()["F"] / 1.25
    errors = found.state.as_vector()[:5] - both.truth.as_vector()[:5]
    sigmas = np.sqrt(np.diag(found.covariance.array))[:5]
    assert (np.abs(errors) < 4.0 * sigmas).all()  # each parameter within 4 predicted sigma


@pytest.mark.parametrize("n_known", [1, 2])
def test_positions_in_one_world_or_in_both(rng, n_known):
    """A world with known positions is in their frame, the others in that of their first view."""
    scenes = two_scenes(rng)
    both = join(*scenes)
    n = len(scenes[0].truth.rotations)
    places = positions_of(both)
    shift = np.array([[500.0, -200.0, 90.0]] * n + [[-7.0, 2000.0, 30.0]] * n)
    known = CameraPositions(
        places.view_ids[: n * n_known],
        (places.positions_world_mm + shift)[: n * n_known],
        places.sigmas_mm[: n * n_known],
    )
    start = both.truth.scaled(0.6).moved(
        RigidTransform.from_rotation_vector([0, 0.3, 0], [9, 9, 9])
    )
    found = run(both, start, positions=known)
    assert found.state.as_vector()[:5] == pytest.approx(both.truth.as_vector()[:5], rel=1e-6)
    off = found.state.positions_world_mm()[: n * n_known] - known.positions_world_mm
    assert np.abs(off).max() < 1e-3
    if n_known == 1:
        np.testing.assert_allclose(found.state.translations_mm[n], 0.0, atol=1e-9)


def test_a_lone_position_of_a_world_is_left_out(rng):
    scenes = two_scenes(rng)
    both = join(*scenes)
    n = len(scenes[0].truth.rotations)
    places = positions_of(both)
    findings = []
    kept = keep_known_views(places.select(np.arange(2 * n) <= n), both.observations, findings)
    assert kept.view_ids.tolist() == list(range(n))
    assert [each.code for each in findings] == ["positions-unused"]


def test_no_distance_between_two_worlds(rng):
    scenes = two_scenes(rng)
    both = join(*scenes)
    n = len(scenes[0].observations.point_ids)
    known = distances_of(both, [(0, 1), (0, n + 1)])
    assert are_known(known, both.observations).tolist() == [True, False]


def test_only_what_is_poor_in_all_worlds_is_told(rng):
    first, second = two_scenes(rng)
    flat = first.truth.points_world_mm.copy()
    flat[:, 2] = flat[:, 2].mean()
    both = join(replace(first, truth=replace(first.truth, points_world_mm=flat)), second)
    codes = [each.code for each in describe_geometry(both.truth, both.observations)]
    assert "flat-scene" not in codes
    alone = replace(first.truth, points_world_mm=flat)
    assert "flat-scene" in [each.code for each in describe_geometry(alone, first.observations)]


def test_worlds_are_compared_by_cross_validation(rng):
    scenes = two_scenes(rng, noise_px=NOISE_PX, n_points=60, n_views=8)
    both = join(*scenes)
    found = cross_validate(run(both, both.truth), OPTIONS)
    names = [split.name for split in found.cross_validation.splits]
    assert names[-1] == "world 1 and the others"
    worst = max(map(abs, found.cross_validation.splits[-1].in_sigmas().values()))
    assert worst < 4.0

    camera = scenes[1].truth.array
    longer = replace(scenes[1].truth, array=replace(camera, focal_px=1.03 * camera.focal_px))
    moved = Layout(Problem(scenes[1].observations, both.camera.pixel_size_mm, longer))
    residuals = moved.compute_residuals(longer)
    other = scenes[1].observations
    refocused = Observations.from_arrays(
        other.view_ids[other.view_indices],
        other.point_ids[other.point_indices],
        other.centers_raw_px,
        other.points_raw_px + residuals,
    )
    both = join(scenes[0], replace(scenes[1], observations=refocused))
    found = cross_validate(run(both, both.truth), OPTIONS)
    assert abs(found.cross_validation.splits[-1].in_sigmas()["F"]) > 6.0
