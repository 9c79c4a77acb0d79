"""Compile the numba loops of measurement and adjustment ahead of time, in a thread.

Structure from motion leaves a core idle. During this time, the loops of the later stages are
compiled by running them once on a small synthetic problem, here called a rehearsal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from lifcal.bundle import AdjustOptions, FocusTerm, adjust
from lifcal.camera import BrownDistortion, PinholeArray
from lifcal.errors import LifcalError
from lifcal.geometry import RigidTransform
from lifcal.measure import (
    MeasureOptions,
    compute_tangents,
    cut_patches,
    find_micro_images,
    measure,
    predict,
)
from lifcal.reconstruction import Observations, Reconstruction
from lifcal.virtual import FocusEngine

_VIEWS, _POINTS = 5, 40
"""Number of views and points of the rehearsal. They are few, so that it takes little time, but
enough that the adjustment accepts them."""
_DEPTH_MM = (500.0, 1500.0)
"""Depth of the nearest and the farthest point of the rehearsal. They differ enough to determine
alpha and beta."""
_NOISE_PX = 0.05
"""Standard deviation of the noise that is added to the synthetic observations. The adjustment
estimates the noise from its residuals, so these must not be zero."""


@contextmanager
def compile_ahead(engine: FocusEngine) -> Iterator[None]:
    """Run `rehearse` in a thread while the body of the `with` statement is executed."""
    left = threading.Event()

    def work() -> None:
        with suppress(LifcalError):  # the real run reports its own errors
            rehearse(engine, left)

    thread = threading.Thread(target=work, name="lifcal-rehearsal")
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def rehearse(engine: FocusEngine, stop: threading.Event | None = None) -> None:
    """Measure and adjust a few synthetic points with the grid, optics and depth range of an engine.

    Every compiled loop runs once, with the argument types of the real run, so numba compiles it. If
    the event `stop` is set after the measurement, the adjustment is skipped.
    """
    grid, depth_range = engine.grid, engine.options.depth_range
    assert depth_range is not None
    rng = np.random.default_rng(0)
    geometry = _make_geometry(grid.image_size, depth_range, rng)
    points, views = (a.ravel() for a in np.mgrid[:_POINTS, :_VIEWS])
    owners, lenses = find_micro_images(geometry, grid, points, views, 0.7 * grid.radius_px)
    tangents = compute_tangents(geometry, np.arange(_POINTS), np.zeros(_POINTS, np.int64))
    images = predict(geometry, grid, tangents, points[owners], views[owners], lenses)
    last = np.array(grid.image_size) - 1.0
    inside = (images.places_px > 0.0) & (images.places_px < last)
    images = images.select(np.asarray(inside.all(axis=1)))
    texture = rng.random(grid.image_size[::-1], np.float32)
    options = MeasureOptions(rounds=1)
    measure(
        images, cut_patches(texture, images.places_px, options), grid, engine.optics, 0.1, options
    )
    if stop is not None and stop.is_set():
        return
    noise = rng.normal(scale=_NOISE_PX, size=(len(images), 2))
    observations = Observations.from_arrays(
        images.views,
        images.tracks,
        grid.centers_raw_px[images.lenses],
        np.clip(images.places_px + noise, 0.0, last),
        covariances_px2=np.tile(_NOISE_PX**2 * np.eye(2), (len(images), 1, 1)),
        lens_types=grid.lens_types[images.lenses],
    )
    adjust(
        observations,
        replace(geometry, points_world_mm=geometry.points_world_mm[observations.point_ids]),
        0.005,
        grid,
        AdjustOptions(
            focus=None if grid.focal_planes is None else FocusTerm.from_grid(grid, "linear"),
            plane_error=0.01,
            clustered=True,
            magnification_error=1e-4,
            max_iterations=2,
        ),
    )


def _make_geometry(
    image_size: tuple[int, int], depth_range: tuple[float, float], rng: np.random.Generator
) -> Reconstruction:
    width, height = image_size
    near, far = _DEPTH_MM
    depth = 1.0 / np.linspace(1.0 / far, 1.0 / near, _POINTS)
    low, high = depth_range
    beta = 0.8 * (high - low) / (1.0 / near - 1.0 / far)
    array = PinholeArray(
        float(width), 0.5 * width, 0.5 * height, low + 0.1 * (high - low) - beta / far, beta
    )
    places = rng.uniform(-0.4, 0.4, (_POINTS, 2)) * (width, height)
    poses = [
        RigidTransform.from_rotation_vector(0.05 * rng.normal(size=3), 30.0 * rng.normal(size=3))
        for _ in range(_VIEWS)
    ]
    return Reconstruction(
        array,
        BrownDistortion(),
        np.array([pose.rotation for pose in poses]),
        np.array([pose.translation_mm for pose in poses]),
        np.column_stack([places * depth[:, None] / width, depth]),
    )
