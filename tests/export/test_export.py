import json
from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import DivisionDistortion, read_authors_xml
from lifcal.errors import DataError
from lifcal.export import open_calibration, write_authors
from lifcal.files import write_json
from lifcal.geometry import Trajectory, write_tum
from lifcal.reconstruction import Observations, write_observations
from tests.export.cases import exact_case, moved, write_out


@pytest.fixture(scope="module")
def case():
    return moved(exact_case())


@pytest.fixture
def calibration(case, tmp_path):
    return open_calibration(write_out(tmp_path / "calibration", case))


def test_authors_files(calibration, case, tmp_path):
    paths = write_authors(tmp_path, calibration, calibration.seen)
    camera = read_authors_xml(paths["CameraModel.xml"])
    np.testing.assert_allclose(
        camera.parameters.as_vector(), case.camera.parameters.as_vector(), rtol=1e-12
    )
    poses = np.loadtxt(paths["ExtrinsicOrientations.txt"])
    assert poses.shape == (7, 17)
    matrix = poses[4, 1:].reshape(4, 4)
    assert paths["ExtrinsicOrientations.txt"].read_text().splitlines()[4].startswith("00004 ")
    np.testing.assert_allclose(matrix[:3, 3], case.poses[4].inverse().translation_mm, atol=1e-8)
    np.testing.assert_array_equal(matrix[3], [0, 0, 0, 1])
    lines = paths["objectCoordinates.ply"].read_text().splitlines()
    points = np.array([line.split() for line in lines[lines.index("end_header") + 1 :]], float)
    np.testing.assert_allclose(points[:, :3], case.points_world_mm, atol=1e-6)
    rows = np.loadtxt(paths["rawImagePoints.csv"], delimiter=",")
    assert len(rows) == len(case.observations)
    # exact observations: seen is projected; six decimals, points of 1e-6 mm
    np.testing.assert_allclose(rows[:, 2:4], rows[:, 4:6], atol=3e-6)
    for frame in range(7):
        mine = rows[rows[:, 0] == frame]
        np.testing.assert_array_equal(mine[:, 1], np.arange(len(mine)))
    assert rows[:, 6].max() == len(points) - 1


def test_authors_files_hold_no_division_model(case, tmp_path):
    camera = replace(case.camera, distortion=DivisionDistortion(1e-8), covariance=None)
    found = open_calibration(write_out(tmp_path / "out", replace(case, camera=camera)))
    with pytest.raises(DataError, match="brown"):
        write_authors(tmp_path / "authors", found, found.seen)
    assert not (tmp_path / "authors").exists()


def test_a_folder_as_one_record(case, tmp_path):
    """Exact points: no residual beyond the nine decimals of the files; points without a csv."""
    folder = write_out(tmp_path / "calibration", case)
    stored = open_calibration(folder)
    assert len(stored.residuals_px) == len(stored.observations)
    assert np.abs(stored.residuals_px).max() < 1e-5
    np.testing.assert_array_equal(stored.covariance, case.camera.covariance)
    np.testing.assert_allclose(stored.points_world_mm, case.points_world_mm, atol=1e-6)
    # residuals are where the camera shows a point minus where it was measured
    moved = Observations.from_arrays(
        case.observations.view_ids[case.observations.view_indices],
        case.observations.point_ids[case.observations.point_indices],
        case.observations.centers_raw_px,
        case.observations.points_raw_px - [0.5, 0.0],
    )
    write_observations(folder / "observations.csv", moved)
    np.testing.assert_allclose(
        open_calibration(folder).residuals_px, np.tile([0.5, 0.0], (len(moved), 1)), atol=1e-5
    )
    (folder / "observations.csv").unlink()
    without = open_calibration(folder)
    assert len(without.points_world_mm) == len(case.points_world_mm)
    with pytest.raises(DataError, match=r"observations\.csv: no such file"):
        _ = without.residuals_px
    summary = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", {**summary, "focus": {"shape": "linear"}})
    write_observations(folder / "observations.csv", moved)
    with pytest.raises(DataError, match="focus cannot be used"):
        _ = open_calibration(folder).residuals_px


def test_only_registered_frames_and_listed_points(case, tmp_path):
    """What has no pose or no place is left out, and ids without a list are those observed."""
    folder = write_out(tmp_path, case)
    (folder / "summary.json").unlink()
    text = (folder / "poses.txt").read_text().splitlines()
    (folder / "poses.txt").write_text("\n".join([text[0], *text[3:]][::-1]) + "\n")
    found = open_calibration(folder)
    assert found.names == tuple(f"{i:04d}" for i in range(2, 7))
    np.testing.assert_array_equal(found.views, range(2, 7))
    seen = found.seen
    assert seen.observations.view_ids.min() == 2
    ids = case.observations.point_ids[seen.point_rows]
    np.testing.assert_array_equal(ids, seen.observations.point_ids[seen.observations.point_indices])
    np.testing.assert_allclose(
        found.world_from_cam[0].translation_mm, case.poses[2].translation_mm, atol=1e-8
    )


def test_frames_are_found_by_their_times(case, tmp_path):
    """Times of a clock, as `lifcal calibrate --timestamps` writes them, and their frames."""
    folder = write_out(tmp_path, case)
    start = 1731772800.25
    summary = json.loads((folder / "summary.json").read_text())
    for frame in summary["frames"]:
        frame["time"] = start + frame["index"] / 15.0
    write_json(folder / "summary.json", summary)
    times = start + np.arange(len(case.poses)) / 15.0
    write_tum(folder / "poses.txt", Trajectory(times[2:], case.poses[2:]))
    found = open_calibration(folder)
    np.testing.assert_array_equal(found.views, range(2, 7))
    assert found.names == tuple(f"{i:04d}" for i in range(2, 7))
    write_tum(folder / "poses.txt", Trajectory(times[2:] + 0.01, case.poses[2:]))
    with pytest.raises(DataError, match="no frame has the timestamp"):
        open_calibration(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5 0 0 0 0 0 0 1\n", "no frame has the timestamp 0.5"),
        ("1 0 0 0 0 0 0 1\n1 0 0 1 0 0 0 1\n", "appears twice"),
        ("# nothing\n", "holds no pose"),
        ("99 0 0 0 0 0 0 1\n", "no observation"),
    ],
)
def test_poses_that_do_not_fit(case, tmp_path, text, words):
    folder = write_out(tmp_path, case)
    (folder / "poses.txt").write_text(text)
    with pytest.raises(DataError, match=words):
        _ = open_calibration(folder).seen
