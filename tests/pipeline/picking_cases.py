"""A folder as lifcal focus and lifcal calibrate leave it, of a textured wall: quick to make."""

import json
from dataclasses import replace

import numpy as np

from lifcal.bundle.files import name_for_world
from lifcal.camera import write_camera
from lifcal.geometry import RigidTransform, Trajectory, write_tum
from lifcal.imaging.files import write_float_tiff, write_png
from lifcal.simulate import build_camera

SCALE, WALL_MM, VIEWS = 0.5, 900.0, 5


def make_camera(scale="markers"):
    return replace(build_camera("mini").camera, scale_source=scale)


def make_poses():
    """Cameras on a curve before the wall, cam_from_world."""
    return [
        RigidTransform.from_rotation_vector(
            [0.02 * i, 0.03 * i - 0.06, 0.05 * i], [25.0 * i - 50.0, 8.0 * i, 6.0 * i]
        )
        for i in range(VIEWS)
    ]


def paint(points_world):
    """Brightness of the wall, 0 to 1."""
    x, y = points_world[..., 0], points_world[..., 1]
    waves = [
        np.sin(x / 9.0 + y / 23.0),
        np.sin(y / 7.0 - x / 31.0),
        np.sin(x / 3.7),
        np.sin(y / 4.3),
    ]
    return 0.5 + 0.12 * sum(waves)


def look(camera, pose, pixels):
    """Return the points of the wall that pixels of a focused image see, world, (..., 3)."""
    raw = (np.asarray(pixels, np.float64) + 0.5) / SCALE - 0.5
    ideal = camera.distortion.undistort(raw.reshape(-1, 2), camera.principal_point_px)
    rays = np.column_stack(
        [(ideal - camera.principal_point_px) / camera.array.focal_px, np.ones(len(ideal))]
    )
    back = pose.inverse()
    directions = rays @ back.rotation.T
    depth = (WALL_MM - back.translation_mm[2]) / directions[:, 2]
    return (back.translation_mm + depth[:, None] * directions).reshape(*raw.shape[:-1], 3)


def make_focus_folder(folder, *, calibrated=True, scale="markers"):
    """Write focused images, virtual depth (unknown in a corner), and a calibration."""
    camera, poses = make_camera(scale), make_poses()
    width, height = (round(side * SCALE) for side in camera.image_size)
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    names = [f"{i:04d}" for i in range(VIEWS)]
    for name, pose in zip(names, poses, strict=True):
        seen = look(camera, pose, pixels)
        write_png(folder / "focused" / f"{name}.png", (255 * paint(seen)).astype(np.uint8))
        depth = pose.apply(seen.reshape(-1, 3))[:, 2].reshape(height, width)
        u = (camera.array.alpha + camera.array.beta_mm / depth).astype(np.float32)
        u[:40, :60] = np.nan
        write_float_tiff(folder / "virtual_depth" / f"{name}.tiff", u)
    content = {
        "format": "lifcal-focus",
        "settings": {"scale": SCALE},
        "frames": dict.fromkeys(names),
    }
    (folder / "focus.json").write_text(json.dumps(content))
    if calibrated:
        write_camera(folder / "camera.json", camera)
        place_in_worlds(folder, [range(VIEWS)], [np.arange(VIEWS, dtype=np.float64)])
    return camera, poses


def place_in_worlds(folder, worlds, times):
    """Write poses.txt, poses-2.txt and so on, and summary.json, with frames and times of worlds."""
    poses, described, clock = make_poses(), [], {}
    for number, (frames, own) in enumerate(zip(worlds, times, strict=True), start=1):
        name = name_for_world("poses.txt", number - 1)
        back = tuple(poses[i].inverse() for i in frames)
        write_tum(folder / name, Trajectory(np.array(own, np.float64), back))
        described.append({"number": number, "frames": list(frames), "poses": name})
        clock.update(zip(frames, own, strict=True))
    entries = [
        {"name": f"{i:04d}", "index": i, "time": float(clock.get(i, i)), "registered": i in clock}
        for i in range(VIEWS)
    ]
    (folder / "summary.json").write_text(json.dumps({"frames": entries, "worlds": described}))
