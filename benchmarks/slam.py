"""RGB-D SLAM on the output of `lifcal depth`, compared with the true trajectory.

Two systems for ordinary RGB-D cameras read images, depth maps and intrinsics from the folder.
ORB-SLAM3 (`pip install pyorbslam3`) reads camera.yaml and associations.txt as they are. With Open3D
(`pip install lifcal[mesh]`), odometry between consecutive frames, and to frames farther back, is
combined in a pose graph. The camera was calibrated by `lifcal calibrate` on another recording; the
true camera is used for comparison. Recordings are kept in LIFCAL_BENCHMARK_DATA if that is set.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibrate import Case, run_case
from benchmarks.figures import Figure
from lifcal.evaluate.trajectory import compare_trajectories
from lifcal.export.rgbd_folder import RgbdFolder, open_rgbd
from lifcal.geometry import RigidTransform, Trajectory, read_tum, write_tum
from lifcal.metric.mesh import import_open3d
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

CAMERA = "r5-16mm"
CALIBRATED_ON = Case(CAMERA, "desk", 2, "markers")
FRAMES = 60
SEED = 4
SCENES = ("desk", "room")
_BACK = (4, 16)
"""Distances, in frames, of the earlier frames to which additional edges of the pose graph lead."""
_LEAST_OVERLAP = 0.4
"""Smallest fraction of the pixels that must be matched for an edge to be used."""
_MOST_OFF_M = 0.05


def run() -> list[Figure]:
    if importlib.util.find_spec("pyorbslam3") is None:
        raise SystemExit("pip install pyorbslam3 before the SLAM benchmark")
    import_open3d()  # raises an error that names the extra to install
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        run_case(CALIBRATED_ON, data)
        calibrated = data / f"{CALIBRATED_ON.name}-calibration" / "camera.json"
        figures = []
        for scene in SCENES:
            recording = data / f"{CAMERA}-{scene}-{SEED}-{FRAMES}"
            options = SimulationOptions(camera=CAMERA, scene=scene, frames=FRAMES, seed=SEED)
            write_sequence(recording, Simulation(options))
            for name, camera in (
                ("calibrated camera", calibrated),
                ("true camera", recording / "truth" / "camera.json"),
            ):
                out = data / f"{recording.name}-rgbd-{name.split()[0]}"
                figures += track(recording, camera, out, f"{scene}, {name}")
        return figures


def track(recording: Path, camera: Path, out: Path, name: str) -> list[Figure]:
    """Make the RGB-D folder, run both systems on it, and compare."""
    words = ["depth", str(recording / "raw"), "--camera", str(camera), "-o", str(out)]
    words += ["--white", str(recording / "white.png"), "--no-clouds"]
    subprocess.run([sys.executable, "-m", "lifcal", *words], check=True, stdout=subprocess.DEVNULL)
    rgbd = open_rgbd(out)
    true = read_tum(recording / "truth" / "poses.txt")
    figures = [Figure(f"{name}: frames without depth", FRAMES - len(rgbd), "", "lower", 0)]
    for system, run_system in (("ORB-SLAM3", run_orb_slam3), ("Open3D", run_open3d)):
        found = run_system(rgbd)
        write_tum(out / f"{system}.txt", found)
        figures += compare(found, true, f"{name}, {system}")
    return figures


def compare(found: Trajectory, true: Trajectory, name: str) -> list[Figure]:
    """Compare the frames that were tracked with the truth; times are frame indices."""
    matched = [true.world_from_cam[round(time)] for time in found.timestamps]
    error, _ = compare_trajectories(found.world_from_cam, matched, metric=True)
    print(
        f"{name}: rmse {error.translation_rmse_mm:.2f} mm, {error.rotation_rmse_deg:.3f} deg over "
        f"{error.n_frames} frames, {error.length_mm:.0f} mm; scale {error.scale:.4f}"
    )
    return [
        Figure(f"{name}: frames not tracked", FRAMES - error.n_frames, "", "lower", 0),
        Figure(f"{name}: trajectory rmse", error.translation_rmse_mm, "mm", "lower", 10.0),
        Figure(f"{name}: scale error", 100.0 * abs(error.scale - 1.0), "%", "lower", 1.0),
    ]


def run_orb_slam3(recording: RgbdFolder) -> Trajectory:
    """Run ORB-SLAM3 in a separate process; return the trajectory of the frames that it tracks."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "trajectory.txt"
        words = [sys.executable, "-m", "benchmarks.orb_slam3", str(recording.folder), str(out)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"ORB-SLAM3: {done.stderr}")
        return read_tum(out)


def run_open3d(recording: RgbdFolder) -> Trajectory:
    """Return the trajectory of all frames, the first at the origin."""
    o3d: Any = import_open3d()
    k = recording.intrinsics
    intrinsic = o3d.camera.PinholeCameraIntrinsic(k.width, k.height, k.fx, k.fy, k.cx, k.cy)
    frames = [_read(o3d, recording, index) for index in range(len(recording))]
    graph = o3d.pipelines.registration.PoseGraph()
    node, edge = o3d.pipelines.registration.PoseGraphNode, o3d.pipelines.registration.PoseGraphEdge
    graph.nodes.append(node(np.eye(4)))
    cam_from_first = [np.eye(4)]
    for index in range(1, len(frames)):
        motion = np.eye(4) if index < 2 else cam_from_first[-1] @ np.linalg.inv(cam_from_first[-2])
        for back in (1, *_BACK):
            other = index - back
            if other < 0:
                continue
            last = back == 1
            start = motion if last else cam_from_first[index] @ np.linalg.inv(cam_from_first[other])
            step, information = _odometry(o3d, frames[other], frames[index], intrinsic, start)
            if step is None and last:
                step, information = start, np.eye(6)
            if step is None:
                continue
            if last:
                cam_from_first.append(step @ cam_from_first[-1])
                graph.nodes.append(node(np.linalg.inv(cam_from_first[-1])))
            graph.edges.append(edge(other, index, step, information, uncertain=not last))
    registration = o3d.pipelines.registration
    registration.global_optimization(
        graph,
        registration.GlobalOptimizationLevenbergMarquardt(),
        registration.GlobalOptimizationConvergenceCriteria(),
        registration.GlobalOptimizationOption(
            max_correspondence_distance=_MOST_OFF_M, edge_prune_threshold=0.25, reference_node=0
        ),
    )
    poses = [_pose(np.asarray(n.pose)) for n in graph.nodes]
    return Trajectory(np.array(recording.times), tuple(poses))


def _read(o3d: Any, recording: RgbdFolder, index: int) -> Any:
    """Return a frame as Open3D reads it from the files."""
    name = recording.names[index]
    color = o3d.io.read_image(str(recording.folder / "rgb" / f"{name}.png"))
    depth = o3d.io.read_image(str(recording.folder / "depth" / f"{name}.png"))
    return o3d.geometry.RGBDImage.create_from_color_and_depth(
        color, depth, depth_scale=recording.depth_factor, depth_trunc=20.0
    )


def _odometry(o3d: Any, first: Any, second: Any, intrinsic: Any, start: Any) -> tuple[Any, Any]:
    """Return second_from_first and its information matrix; None if too few pixels agree."""
    odometry = o3d.pipelines.odometry
    done, step, information = odometry.compute_rgbd_odometry(
        first,
        second,
        intrinsic,
        start,
        odometry.RGBDOdometryJacobianFromHybridTerm(),
        odometry.OdometryOption(
            iteration_number_per_pyramid_level=o3d.utility.IntVector([20, 10, 8]),
            depth_diff_max=_MOST_OFF_M,
            depth_min=0.1,
            depth_max=20.0,
        ),
    )
    known = np.isfinite(np.asarray(first.depth)) & (np.asarray(first.depth) > 0.0)
    # The last diagonal entry of the information matrix is the number of matched pixels.
    if not done or information[5, 5] < _LEAST_OVERLAP * known.sum():
        return None, None
    return step, information


def _pose(matrix: np.ndarray) -> RigidTransform:
    return RigidTransform(matrix[:3, :3], 1000.0 * matrix[:3, 3])
