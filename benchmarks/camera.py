"""The camera model: agreement with the paper's formulas, and speed."""

from __future__ import annotations

import numpy as np

from benchmarks.figures import Figure, best_time_s
from lifcal.arrays import FloatArray
from lifcal.simulate import CAMERAS, build_camera


def run() -> list[Figure]:
    return [
        Figure(
            "projection against the paper's formulas, largest", _agreement_px(), "px", "lower", 1e-9
        ),
        Figure("virtual image round trip, largest", _round_trip(), "relative", "lower", 1e-9),
        Figure(
            "project 1,000,000 pairs with full Jacobian",
            _projection_s(),
            "s",
            "lower",
            0.5,
            noisy=True,
        ),
    ]


def _points(name: str, n: int, rng: np.random.Generator) -> FloatArray:
    design, camera = CAMERAS[name], build_camera(name).camera
    near, far = design.working_range_mm
    depth = 1.0 / rng.uniform(1.0 / far, 1.0 / near, n)
    places = rng.uniform(0.0, 1.0, (n, 2)) * camera.image_size
    xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    return np.column_stack([xy, depth])


def _agreement_px() -> float:
    """Compare with the paper's formulas (thin lens, C_ML, v), which are written out here again."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for name in CAMERAS:
        camera = build_camera(name).camera
        points = _points(name, 1000, rng)
        lenses = rng.integers(0, len(camera.grid), len(points))
        p, c = camera.parameters, camera.principal_point_px
        b_L = 1.0 / (1.0 / p.focal_length_mm - 1.0 / points[:, 2])
        x_V = c + (b_L / camera.pixel_size_mm / points[:, 2])[:, None] * points[:, :2]
        # A micro lens is where the ray from the main lens' center to C_I meets the array's plane.
        total = p.lens_to_array_mm + p.array_to_sensor_mm
        slopes = np.tan(np.radians(camera.tilt_angles_deg()[0]))
        C_I = camera.image_centers_und_px[lenses]
        climb = camera.pixel_size_mm * (C_I - c) @ slopes
        b_k = p.lens_to_array_mm * total / (total - climb)
        C_ML = c + (C_I - c) * (b_k / total)[:, None]
        v = ((b_L - b_k) / (total - b_k))[:, None]
        x_Rd = camera.distortion.distort(C_ML + (x_V - C_ML) / v, c)
        worst = max(worst, float(np.abs(camera.project(points, lenses) - x_Rd).max()))
    return worst


def _round_trip() -> float:
    rng = np.random.default_rng(1)
    worst = 0.0
    for name in CAMERAS:
        camera, points = build_camera(name).camera, _points(name, 1000, rng)
        back = camera.cam_from_virtual(camera.virtual_from_cam(points))
        error = np.abs(back - points).max(axis=1) / points[:, 2]
        worst = max(worst, float(error.max()))
    return worst


def _projection_s() -> float:
    rng = np.random.default_rng(2)
    camera = build_camera("r5-16mm").camera
    points = _points("r5-16mm", 1_000_000, rng)
    lenses = rng.integers(0, len(camera.grid), len(points))
    return best_time_s(lambda: camera.project_with_jacobian(points, lenses))
