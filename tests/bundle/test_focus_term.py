"""The focus term for devignetted images: strength 1, the same in both rooms that use it."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import AdjustOptions, FocusTerm, Layout, Prior, adjust
from lifcal.camera import OverlapDiscs
from lifcal.measure import _kernels as measure_kernels
from lifcal.virtual.optics import LensOptics
from tests.bundle import cases

DISCS = OverlapDiscs(4.0, (2.6, 3.1, 3.6))


@pytest.fixture
def scene(rng):
    """Observations as devignetted images show them."""
    scene = cases.small_scene("mini", rng, n_points=60, n_views=8)
    term = devignetted(scene.camera)
    problem = replace(
        cases.make_problem(scene), focus=term, start=scene.truth.with_focus(term.focal_planes, 1.0)
    )
    moves = Layout(problem).compute_residuals(problem.start)
    assert np.abs(moves).max() > 0.05
    seen = scene.observations.points_raw_px + moves
    return replace(scene, observations=replace(scene.observations, points_raw_px=seen))


def devignetted(camera, **options):
    return FocusTerm(camera.grid.focal_planes, "devignetted", DISCS, **options)


def run(scene, term, strength):
    return adjust(
        scene.observations,
        scene.truth,
        scene.camera.pixel_size_mm,
        scene.camera.grid,
        AdjustOptions(
            distortion="brown",
            fixed={"k1": 0.0, "k2": 0.0},
            focus=term,
            focus_strength=strength,
            reject_sigmas=None,
        ),
        distances=cases.distances_of(scene, [[0, 1], [2, 3], [4, 5]]),
    )


def test_the_camera_is_recovered_with_strength_1(scene):
    term = devignetted(scene.camera)
    true = scene.camera.parameters.as_vector()
    found = run(scene, term, 1.0).camera.parameters.as_vector()
    np.testing.assert_allclose(found, true, rtol=1e-6)
    # The checker can fail: without the term, or with the curve of images as they are, B is off.
    for other in (None, FocusTerm(scene.camera.grid.focal_planes, "overlap", DISCS)):
        wrong = run(scene, other, 1.0 if other else 0.0).camera.parameters.as_vector()
        assert abs(wrong[2] / true[2] - 1.0) > 3e-3


def test_the_strength_is_found(scene):
    found = run(scene, devignetted(scene.camera), Prior(0.6, 5.0))
    assert found.state.focus_strength == pytest.approx(1.0, abs=1e-4)
    true = scene.camera.parameters.as_vector()
    np.testing.assert_allclose(found.camera.parameters.as_vector(), true, rtol=1e-4)


def test_both_rooms_move_points_alike(scene, rng):
    """`measure` has the same curve in tables, linear between steps of an eighth of a pixel."""
    grid = replace(scene.camera.grid, discs=DISCS)
    term, optics = devignetted(scene.camera), LensOptics.from_grid(grid)
    n = 200
    types = rng.integers(0, 3, n)
    u = rng.uniform(2.2, 4.5, n)
    offsets = rng.uniform(0.3, optics.radius_px - 1.0, n)
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    direction = np.column_stack([np.cos(angle), np.sin(angle)])
    out = np.empty((n, 2))
    bends = (optics.focal_rhos[types] - 1.0 / u) / optics.focal_rhos[types]
    measure_kernels.shift_points(
        offsets[:, None] * direction,
        np.zeros((n, 2)),
        types,
        bends,
        optics.shifts_px.astype(np.float64),
        out,
    )
    factors = [
        1.0 + term.compute_magnification(m, t, depth)
        for m, t, depth in zip(offsets, types.tolist(), u, strict=True)
    ]
    moved = np.sum(out * direction, axis=1)
    np.testing.assert_allclose(moved, offsets * factors, atol=2e-3)
    assert np.abs(moved - offsets).max() > 0.05
