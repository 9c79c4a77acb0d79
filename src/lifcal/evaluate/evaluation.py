"""Comparison of a calibration folder with the truth of a simulation."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.camera import PlenopticCamera, read_camera
from lifcal.errors import DataError
from lifcal.evaluate.depth import DepthComparison, measure_depth_errors, read_pinhole
from lifcal.evaluate.parameters import (
    ParameterComparison,
    compare_parameters,
    compute_error_squares,
    find_missing_terms,
)
from lifcal.evaluate.trajectory import (
    TrajectoryComparison,
    can_align,
    compare_trajectories,
)
from lifcal.export import StoredCalibration, open_calibration
from lifcal.geometry import RigidTransform, SimilarityTransform, read_tum

_SAME_PITCH = 0.005
"""Largest relative difference between the pitches of two grids of one camera."""


@dataclass(frozen=True)
class Evaluation:
    """Differences between a calibration and the truth.

    Parameters
    ----------
    folder, truth : Path
    scale_source : str or None
        Source of the calibration's metric scale. If it is None, only parameters that need no scale
        are compared.
    parameters : tuple of ParameterComparison
    mean_error_square : float or None
        Mean of the squared errors, in sigmas, of f_L, b_L0, B, c_x and c_y, or without a scale of
        F, c_x, c_y and alpha. It is about 1 if the sigmas are right, and None without sigmas.
    mean_error_square_correlated : float or None
        The same with correlations taken into account: e^T C^-1 e / n.
    trajectory : TrajectoryComparison or None
    depth : DepthComparison or None
    notes : tuple of str
        Sentences that say what was not compared, and why.
    """

    folder: Path
    truth: Path
    scale_source: str | None
    parameters: tuple[ParameterComparison, ...]
    mean_error_square: float | None
    mean_error_square_correlated: float | None
    trajectory: TrajectoryComparison | None
    depth: DepthComparison | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation for JSON."""
        return {**asdict(self), "folder": str(self.folder), "truth": str(self.truth)}


def evaluate_calibration(folder: str | Path, truth: str | Path, world: int = 1) -> Evaluation:
    """Compare a calibration folder with the truth of a simulation.

    Parameters
    ----------
    folder : str or Path
        Folder of a calibration, with camera.json and poses.txt; the comparison of depths also needs
        points.ply and observations.csv.
    truth : str or Path
        Folder of a simulation, or the folder `truth` in it.
    world : int
        Number of the world, from 1, whose trajectory and depths are compared. The truth must be
        that of its recording.

    Raises
    ------
    DataError
        If a file is missing or broken, or the two are not of the same camera and frames.
    """
    calibration = open_calibration(folder, world)
    truth = _find_truth(Path(truth))
    physical = read_camera(truth / "camera.json")
    best_fit = truth / "best_fit.json"
    true_camera = read_camera(best_fit) if best_fit.is_file() else physical
    camera = calibration.camera
    _check_same_sensor(calibration, true_camera, truth)
    metric = camera.scale_source is not None
    notes = []
    if not metric:
        notes.append(
            "the calibration has no scale: only F, c, alpha and the distortion are compared, and "
            "the scale of the trajectory is aligned"
        )
    if calibration.n_worlds > 1:
        notes.append(
            f"trajectory and depths are those of world {world} of {calibration.n_worlds}; --world "
            "chooses another one"
        )
    if camera.covariance is None:
        notes.append("camera.json has no covariance: no errors in sigmas")
    missing = find_missing_terms(camera.distortion, true_camera.distortion)
    if missing:
        notes.append(
            f"the calibration has no distortion {missing}, which the truth has: this biases c, and "
            "the sigma of c does not include it"
        )
    if best_fit.is_file():
        notes.append(
            "the simulated optics are outside the camera model: errors are relative to the best "
            f"fit of the model to exact chief rays ({best_fit}); physical values are shown beside"
        )
    parameters = compare_parameters(
        camera,
        true_camera,
        metric=metric,
        physical=physical if best_fit.is_file() else None,
    )
    squares = compute_error_squares(parameters, camera, metric=metric)
    true_poses = _match_frames(calibration, truth)
    trajectory, depth = None, None
    rows = sorted(true_poses)
    matched = [true_poses[row] for row in rows]
    if not can_align(matched):
        notes.append(
            f"{len(matched)} camera positions, fewer than three or on one line, do not determine "
            "a frame: trajectory and depths are not compared"
        )
    else:
        trajectory, alignment = compare_trajectories(
            [calibration.world_from_cam[row] for row in rows], matched, metric=metric
        )
        depth = _compare_depths(calibration, truth, true_poses, alignment, notes)
    return Evaluation(
        calibration.folder,
        truth,
        camera.scale_source,
        parameters,
        *squares,
        trajectory,
        depth,
        tuple(notes),
    )


def _find_truth(folder: Path) -> Path:
    for place in (folder / "truth", folder):
        if (place / "camera.json").is_file() and (place / "poses.txt").is_file():
            return place
    raise DataError(
        f"{folder}: no truth here; needs a folder that lifcal simulate wrote, with "
        "truth/camera.json and truth/poses.txt"
    )


def _check_same_sensor(calibration: StoredCalibration, true: PlenopticCamera, truth: Path) -> None:
    ours = calibration.camera
    size = "{} x {} px".format
    grids = ours.grid.pitch_px, true.grid.pitch_px
    differences = []
    if ours.image_size != true.image_size:
        differences.append(f"images of {size(*ours.image_size)}, not of {size(*true.image_size)}")
    if not math.isclose(ours.pixel_size_mm, true.pixel_size_mm, rel_tol=1e-5):
        pixels = f"{ours.pixel_size_mm * 1e3:.6g} um, not of {true.pixel_size_mm * 1e3:.6g} um"
        differences.append(f"pixels of {pixels}")
    if not math.isclose(*grids, rel_tol=_SAME_PITCH):
        differences.append("micro images {:.2f} px apart, not {:.2f} px".format(*grids))
    if differences:
        raise DataError(
            f"{calibration.folder}: is not of the same camera as {truth}: {'; '.join(differences)}"
        )


def _frame_number(calibration: StoredCalibration, row: int) -> int:
    """Return the index of a view's frame in the simulation.

    Simulated frames are named by their index, which is valid even if only some of them were used.
    With several recordings the name ends in that index. Frames with other names are identified by
    their position in the sequence.
    """
    name = calibration.names[row]
    if calibration.n_worlds > 1:
        number = re.search(r"([0-9]+)(_(png|tiff?))?$", name)
        name = number.group(1) if number else name
    return int(name) if name.isascii() and name.isdigit() else int(calibration.views[row])


def _match_frames(calibration: StoredCalibration, truth: Path) -> dict[int, RigidTransform]:
    """Return the true `world_from_cam` of the calibration's views that have one, by row."""
    trajectory = read_tum(truth / "poses.txt")
    true = dict(
        zip(
            np.rint(trajectory.timestamps).astype(int).tolist(),
            trajectory.world_from_cam,
            strict=True,
        )
    )
    numbers = [_frame_number(calibration, row) for row in range(len(calibration.views))]
    matched = {row: true[number] for row, number in enumerate(numbers) if number in true}
    if not matched:
        theirs = f"{min(true)} to {max(true)}" if true else "none"
        raise DataError(
            f"{calibration.poses_path}: no frame in common with {truth / 'poses.txt'}: "
            f"frames {min(numbers)} to {max(numbers)} here, {theirs} there"
        )
    return matched


def _compare_depths(
    calibration: StoredCalibration,
    truth: Path,
    true_poses: dict[int, RigidTransform],
    alignment: SimilarityTransform,
    notes: list[str],
) -> DepthComparison | None:
    needed = (
        calibration.points_path,
        calibration.folder / "observations.csv",
        truth / "pinhole.json",
        truth / "depth",
    )
    absent = [str(path) for path in needed if not path.exists()]
    if absent:
        notes.append(f"depths are not compared: {', '.join(absent)} missing")
        return None
    pinhole = read_pinhole(truth / "pinhole.json")
    seen = calibration.seen
    views, points = seen.pairs
    points_true_world = alignment.apply(seen.points_world_mm)
    found = []
    for row, pose in true_poses.items():
        chosen = points[views == row]
        if chosen.size:
            path = truth / "depth" / f"{_frame_number(calibration, row):04d}.tiff"
            found.append(
                measure_depth_errors(path, pinhole, pose.inverse(), points_true_world[chosen])
            )
    errors = np.concatenate(found) if found else np.empty(0)
    if errors.size == 0:
        notes.append("depths are not compared: no point is at a pixel with a known true depth")
        return None
    return DepthComparison(
        len(errors),
        sum(part.size > 0 for part in found),
        100.0 * float(np.median(np.abs(errors))),
        100.0 * float(np.median(errors)),
    )
