"""What an adjustment writes: camera.json, poses.txt, points.ply, summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle.adjustment import Adjustment
from lifcal.bundle.scale import compute_spans
from lifcal.camera import write_camera
from lifcal.files import write_json, write_text
from lifcal.geometry import Trajectory, write_tum
from lifcal.ply import PlyElement, format_header

FILES = ("camera.json", "poses.txt", "points.ply", "summary.json")
"""Names of the files, in the order in which they are written."""


def write_adjustment(
    folder: str | Path,
    adjustment: Adjustment,
    times: FloatArray | None = None,
    *,
    labels: Sequence[str] = (),
    summary: bool = True,
) -> dict[str, Path]:
    """Write the four files, each whole or not at all; return where they are.

    Poses and points of the second and further worlds are in files of their own (`name_for_world`).

    Poses (camera to world; the timestamps are `times` of the views, or their ids) and points are in
    metres, or without a scale in thousandths of its arbitrary unit. The `labels` of the views, the
    files of their raws for example, are comments in poses.txt. summary.json only if wanted.
    """
    folder = Path(folder)
    paths = {name: folder / name for name in FILES if summary or name != "summary.json"}
    figures = adjustment.summary
    write_camera(
        paths["camera.json"],
        adjustment.camera,
        {
            "adjustment": {
                "observations": figures.n_used,
                "views": figures.n_views,
                "points": figures.n_points,
                "rms_px": figures.rms_px,
            }
        },
    )
    observations, worlds = adjustment.problem.observations, adjustment.problem.worlds
    poses = tuple(pose.inverse() for pose in adjustment.cam_from_world)
    if times is None:
        times = observations.view_ids.astype(np.float64)
    metric = figures.scale_source is not None
    _remove_worlds(folder)
    for world in range(len(worlds)):
        views = np.flatnonzero(worlds.of_views == world).tolist()
        mine = worlds.of_points == world
        names = {name: name_for_world(name, world) for name in ("poses.txt", "points.ply")}
        paths.update({name: folder / name for name in names.values()})
        write_tum(
            folder / names["poses.txt"],
            Trajectory(times[views], tuple(poses[view] for view in views)),
            [labels[view] for view in views] if labels else (),
            metric=metric,
        )
        write_points(
            folder / names["points.ply"],
            adjustment.state.points_world_mm[mine],
            observations.point_ids[mine],
            metric=metric,
        )
    if summary:
        write_json(paths["summary.json"], summary_to_dict(adjustment))
    return paths


def name_for_world(name: str, world: int) -> str:
    """Return the file of a world, which counts from 0: poses.txt, poses-2.txt, poses-3.txt."""
    stem, dot, suffix = name.rpartition(".")
    return name if world == 0 else f"{stem}-{world + 1}{dot}{suffix}"


def _remove_worlds(folder: Path) -> None:
    """Remove files of further worlds, which an adjustment before may have had."""
    for name in ("poses.txt", "points.ply", "cameras.ply"):
        world = 1
        while (path := folder / name_for_world(name, world)).is_file():
            path.unlink()
            world += 1


def write_points(
    path: Path, points_world_mm: FloatArray, point_ids: IntArray, *, metric: bool = True
) -> None:
    """Write points as PLY text, in metres if they are metric, with what observations call them."""
    unit = "metres" if metric else "no scale"
    properties = ["double x", "double y", "double z", "double point"]
    header = format_header(
        [PlyElement("vertex", len(points_world_mm), properties)], comment=f"world frame, {unit}"
    )
    rows = [
        f"{x:.9f} {y:.9f} {z:.9f} {name}"
        for (x, y, z), name in zip(
            (points_world_mm / 1000.0).tolist(), point_ids.tolist(), strict=True
        )
    ]
    write_text(path, header + "".join(f"{row}\n" for row in rows))


def describe_worlds(adjustment: Adjustment) -> list[dict[str, Any]]:
    """Return what summary.json says of each world: its views, source of scale and files."""
    problem, worlds = adjustment.problem, adjustment.problem.worlds
    measured = {
        "distances": np.unique(worlds.of_points[problem.distance_points]),
        "camera positions": np.unique(problem.position_worlds),
    }
    found = []
    for world in range(len(worlds)):
        own = [name for name, where in measured.items() if world in where]
        found.append(
            {
                "number": world + 1,
                "frames": problem.observations.view_ids[worlds.of_views == world].tolist(),
                "n_points": int((worlds.of_points == world).sum()),
                "scale": " and ".join(own) or ("camera" if problem.scale_source else None),
                "poses": name_for_world("poses.txt", world),
                "points": name_for_world("points.ply", world),
            }
        )
    return found


def summary_to_dict(adjustment: Adjustment) -> dict[str, Any]:
    """Return what summary.json holds."""
    problem, state = adjustment.problem, adjustment.state
    physical = adjustment.camera.parameters
    focus: dict[str, Any] | None = None
    if problem.focus is not None:
        focus = {
            **problem.focus.as_dict(),
            "strength": state.focus_strength,
            "estimated_focal_planes": state.focal_planes.tolist(),
        }
    distances: list[dict[str, Any]] = []
    if problem.distances is not None:
        spans = compute_spans(state.points_world_mm, problem.distance_points)
        found = np.linalg.norm(spans, axis=1)
        known = problem.distances
        distances = [
            {
                "what": label,
                "points1": list(dict.fromkeys(first)),
                "points2": list(dict.fromkeys(second)),
                "mm": mm,
                "sigma": sigma,
                "found_mm": value,
            }
            for label, (first, second), mm, sigma, value in zip(
                known.labels,
                known.point_ids.tolist(),
                known.lengths_mm.tolist(),
                known.sigmas_mm.tolist(),
                found.tolist(),
                strict=True,
            )
        ]
    sigmas = adjustment.covariance.sigmas()
    values = {
        "f_L": physical.focal_length_mm,
        "b_L0": physical.lens_to_array_mm,
        "B": physical.array_to_sensor_mm,
        **dict(zip(problem.names, state.as_vector().tolist(), strict=True)),
    }
    return {
        **adjustment.summary.as_dict(),
        "worlds": describe_worlds(adjustment),
        "parameters": {
            name: {"value": value, "sigma": sigmas[name]} for name, value in values.items()
        },
        "covariance": adjustment.covariance.as_dict(),
        "focus": focus,
        "distances": distances,
        "cross_validation": None
        if adjustment.cross_validation is None
        else adjustment.cross_validation.as_dict(),
    }
