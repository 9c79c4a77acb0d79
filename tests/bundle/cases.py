"""Small adjustments for the tests."""

from dataclasses import replace

import numpy as np

from benchmarks.bundle_scenes import make_scene
from lifcal.bundle import CameraPositions, Distances, FocusTerm, Problem
from lifcal.camera import OverlapDiscs
from lifcal.simulate import build_camera

DEPTHS_MM = {"mini": (400.0, 1500.0), "mini-keplerian": (300.0, 1500.0)}
NOISE_PX = 0.1


def small_scene(name, rng, n_points=40, n_views=6, **options):
    camera = build_camera(name).camera
    return make_scene(camera, DEPTHS_MM[name], n_points, n_views, rng, **options)


def focus_term(camera, shape):
    if shape is None:
        return None
    # discs that overlap in part at most depths
    planes = camera.grid.focal_planes
    discs = OverlapDiscs(4.0, tuple(np.linspace(3.0, 4.0, len(planes))))
    return FocusTerm(planes, shape, discs, plane_sigma=0.02)


def make_problem(scene, *, shape=None, strength=0.3, **options):
    term = focus_term(scene.camera, shape)
    start = scene.truth.with_focus(None if term is None else term.focal_planes, strength)
    return Problem(scene.observations, scene.camera.pixel_size_mm, start, focus=term, **options)


def distances_of(scene, pairs, sigma_mm=0.01):
    ends = scene.truth.points_world_mm[np.asarray(pairs)]
    lengths = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
    ids = scene.observations.point_ids[np.asarray(pairs)]
    return Distances(ids, lengths, np.full(len(ids), sigma_mm))


def positions_of(scene, sigma_mm=0.1):
    return CameraPositions(
        scene.observations.view_ids,
        scene.truth.positions_world_mm(),
        np.full(len(scene.observations.view_ids), sigma_mm),
    )


def perturb(state, rng, size=1e-3):
    """A start a little off, in everything."""
    vector = state.as_vector()
    vector[:5] *= 1.0 + size * rng.normal(size=5)
    n_views, n_points = len(state.rotations), len(state.points_world_mm)
    moved = state.with_intrinsics(vector)
    return moved.step(
        np.zeros(len(vector)),
        rng.normal(size=(n_views, 6)) * np.array([size] * 3 + [300 * size] * 3),
        rng.normal(size=(n_points, 3)) * 300.0 * size,
    )


def with_observations(scene, observations):
    return replace(scene, observations=observations)


def texts_of(adjustment, severity=None):
    """What an adjustment found, in words; of one severity only if it is given."""
    found = adjustment.summary.findings
    return [each.text for each in found if severity is None or each.severity is severity]
