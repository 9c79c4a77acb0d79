"""A calibration folder and a truth folder, small and exact: points on a slanted plane."""

from dataclasses import dataclass, replace

import numpy as np

from lifcal.bundle.files import write_points
from lifcal.camera import BrownDistortion, PlenopticCamera, write_camera
from lifcal.files import write_json
from lifcal.geometry import RigidTransform, Trajectory, write_tum
from lifcal.imaging.files import write_float_tiff, write_png
from lifcal.imaging.frames import to_stored
from lifcal.reconstruction import Observations, write_observations
from lifcal.simulate import build_camera

NORMAL = np.array([0.2, 0.1, 1.0])
HEIGHT_MM = 700.0
SIGMAS = np.array([1.0, 0.5, 0.5, 0.02, 5.0])


@dataclass(frozen=True, eq=False)
class Case:
    """What a perfect calibration finds."""

    camera: PlenopticCamera
    poses: tuple  # world_from_cam
    points_world_mm: np.ndarray
    observations: Observations


def exact_case(distortion=BrownDistortion(-2e-8, 1e-14, 0.0, 1e-7, -2e-7)):  # noqa: B008 (frozen)
    rng = np.random.default_rng(5)
    camera = replace(build_camera("mini").camera, distortion=distortion, scale_source="simulation")
    covariance = np.zeros((5 + len(distortion.parameters),) * 2)
    covariance[:5, :5] = np.diag(SIGMAS**2)
    camera = replace(camera, covariance=covariance)
    xy = rng.uniform(-0.12, 0.12, (60, 2)) * HEIGHT_MM
    points = np.column_stack([xy, (HEIGHT_MM - xy @ NORMAL[:2]) / NORMAL[2]])
    poses = tuple(
        RigidTransform.from_rotation_vector(rng.uniform(-0.05, 0.05, 3), rng.uniform(-40, 40, 3))
        for _ in range(7)
    )
    rows = []
    for view, pose in enumerate(poses):
        seen = camera.project_all(pose.inverse().apply(points))
        centers = camera.grid.centers_raw_px[seen.lens_indices]
        count = np.full(len(centers), view)
        rows.append(np.column_stack([count, seen.point_indices, centers, seen.points_raw_px]))
    table = np.concatenate(rows)
    observations = Observations.from_arrays(
        table[:, 0].astype(int), 10 + 3 * table[:, 1].astype(int), table[:, 2:4], table[:, 4:6]
    )
    seen_ids = (observations.point_ids - 10) // 3
    return Case(camera, poses, points[seen_ids], observations)


def write_out(folder, case, *, frames=None):
    """Write what a calibration writes; `frames`: number and name of each view."""
    frames = frames or [(i, f"{i:04d}") for i in range(len(case.poses))]
    write_camera(folder / "camera.json", case.camera)
    times = np.array([index for index, _ in frames], float)
    write_tum(folder / "poses.txt", Trajectory(times, case.poses))
    write_points(folder / "points.ply", case.points_world_mm, np.arange(len(case.points_world_mm)))
    write_observations(folder / "observations.csv", case.observations)
    listed = [{"name": name, "index": index, "registered": True} for index, name in frames]
    listed.append({"name": "lost", "index": 99, "registered": False})
    ids = case.observations.point_ids.tolist()
    write_json(folder / "summary.json", {"frames": listed, "point_ids": ids})
    return folder


def wave(slopes, view):
    """Return a color, (n, 3) from 0 to 1, that tells the direction of a ray and the view."""
    period = 0.04
    x, y = (0.5 + 0.4 * np.sin(2.0 * np.pi * slopes / period)).T
    return np.column_stack([x, y, np.full(len(x), view / 10.0)])


def write_focused(folder, case, *, bits=8):
    """Write totally focused images that show `wave`, with the camera's distortion."""
    camera = case.camera
    width, height = (length // 2 for length in camera.image_size)
    cols, rows = np.meshgrid(np.arange(width), np.arange(height))
    recorded = (np.column_stack([cols.ravel(), rows.ravel()]) + 0.5) * 2.0 - 0.5
    und = camera.distortion.undistort(recorded, camera.principal_point_px)
    slopes = (und - camera.principal_point_px) / camera.array.focal_px
    for view in range(len(case.poses)):
        image = wave(slopes, view).reshape(height, width, 3).astype(np.float32)
        write_png(folder / "focused" / f"{view:04d}.png", to_stored(image, bits))
    return folder


def write_truth(folder, case, numbers=None):
    """Write what a simulation writes, its depth maps of the plane."""
    truth = folder / "truth"
    camera = replace(case.camera, covariance=None)
    numbers = range(len(case.poses)) if numbers is None else numbers
    write_camera(truth / "camera.json", camera)
    write_tum(truth / "poses.txt", Trajectory(np.array(numbers, float), case.poses))
    width, height = (length // 4 for length in camera.image_size)
    focal = camera.array.focal_px / 4
    cx, cy = (camera.principal_point_px + 0.5) / 4 - 0.5
    size = {"width": width, "height": height}
    write_json(truth / "pinhole.json", {**size, "fx": focal, "fy": focal, "cx": cx, "cy": cy})
    cols, rows = np.meshgrid(np.arange(width), np.arange(height))
    rays = np.stack([(cols - cx) / focal, (rows - cy) / focal, np.ones_like(cols, float)], -1)
    for number, pose in zip(numbers, case.poses, strict=True):
        depth = (HEIGHT_MM - NORMAL @ pose.translation_mm) / (rays @ pose.rotation.T @ NORMAL)
        depth[:2, 5] = np.nan
        write_float_tiff(truth / "depth" / f"{number:04d}.tiff", depth.astype(np.float32))
    return folder


def scaled(case, factor):
    """The same calibration in a world that is larger by `factor`."""
    return replace(
        case,
        poses=tuple(
            RigidTransform(pose.rotation, factor * pose.translation_mm) for pose in case.poses
        ),
        points_world_mm=factor * case.points_world_mm,
    )


def moved(case):
    """The same calibration in another world frame."""
    move = RigidTransform.from_rotation_vector([0.3, -0.5, 1.2], [100.0, -50.0, 30.0])
    return replace(
        case,
        poses=tuple(move @ pose for pose in case.poses),
        points_world_mm=move.apply(case.points_world_mm),
    )
