import json
from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    DivisionDistortion,
    MicroLensGrid,
    NoDistortion,
    PinholeArray,
    write_camera,
)
from lifcal.errors import DataError
from lifcal.evaluate import evaluate_calibration
from lifcal.geometry import RigidTransform, Trajectory, write_tum
from lifcal.simulate import Imperfections, build_camera
from tests.export.cases import SIGMAS, exact_case, moved, scaled, write_out, write_truth


@pytest.fixture(scope="module")
def case():
    return exact_case()


@pytest.fixture(scope="module")
def truth(case, tmp_path_factory):
    return write_truth(tmp_path_factory.mktemp("simulation"), case)


def evaluate(case, tmp_path, truth, **options):
    return evaluate_calibration(write_out(tmp_path / "out", case, **options), truth)


def rows_of(evaluation):
    return {row.name: row for row in evaluation.parameters}


def with_array(case, **changes):
    camera = case.camera
    array = PinholeArray(**{**vars(camera.array), **changes})
    parameters = array.to_physical(camera.pixel_size_mm)
    return replace(case, camera=replace(camera, parameters=parameters))


def test_truth_itself_has_no_error(case, tmp_path, truth):
    found = evaluate(moved(case), tmp_path, truth)
    assert list(rows_of(found)) == [
        *("f_L", "b_L0", "B", "c_x", "c_y", "F", "alpha", "beta", "distortion")
    ]
    for row in found.parameters:
        assert row.error == 0.0
        assert row.within_2_sigma is (None if row.name == "distortion" else True)
    assert found.mean_error_square == found.mean_error_square_correlated == 0.0
    # files hold 1e-12 m
    assert found.trajectory.translation_rmse_mm < 1e-8
    assert found.trajectory.rotation_rmse_deg < 1e-5
    assert found.trajectory.scale == pytest.approx(1.0, abs=1e-10)
    assert (found.trajectory.alignment, found.trajectory.n_frames) == ("SE3", 7)
    # float32 maps, 1/z interpolated, NaN in places
    assert found.depth.median_abs_percent < 1e-4
    assert found.depth.n_views == 7
    assert found.depth.n_pairs > 100
    assert found.notes == ()
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_focal_length_one_per_cent_too_long(case, tmp_path, truth):
    focal = case.camera.array.focal_px
    row = rows_of(evaluate(with_array(case, focal_px=1.01 * focal), tmp_path, truth))["F"]
    assert row.percent == pytest.approx(1.0, rel=1e-6)
    assert row.error_sigmas == pytest.approx(0.01 * focal / SIGMAS[0], rel=1e-6)
    assert row.within_2_sigma is False


def test_error_squares(case, tmp_path, truth):
    c = case.camera.array
    off = with_array(case, principal_x_px=c.principal_x_px + 1.0)
    found = evaluate(off, tmp_path, truth)
    row = rows_of(found)["c_x"]
    assert row.percent is None
    assert row.error == pytest.approx(1.0)
    assert row.error_sigmas == pytest.approx(2.0)
    assert found.mean_error_square == pytest.approx(4.0 / 5.0)
    assert found.mean_error_square_correlated == pytest.approx(4.0 / 5.0)
    # F off by one sigma: f_L, b_L0 and B are off together, which only correlations show
    one = evaluate(with_array(case, focal_px=c.focal_px + SIGMAS[0]), tmp_path / "F", truth)
    assert one.mean_error_square_correlated == pytest.approx(1.0 / 5.0, rel=0.02)
    assert one.mean_error_square != pytest.approx(1.0 / 5.0, rel=0.1)


def test_a_world_one_per_cent_too_large(case, tmp_path, truth):
    found = evaluate(scaled(case, 1.01), tmp_path, truth)
    positions = np.array([pose.translation_mm for pose in case.poses])
    spread = np.sqrt(np.mean(np.sum((positions - positions.mean(axis=0)) ** 2, axis=1)))
    assert found.trajectory.scale == pytest.approx(1.0 / 1.01, rel=1e-9)
    assert found.trajectory.translation_rmse_mm == pytest.approx(0.01 * spread, rel=1e-6)
    # about the middle of the positions, which is near the camera
    assert found.depth.median_percent == pytest.approx(1.0, abs=0.1)


def test_points_too_far(case, tmp_path, truth):
    along = case.points_world_mm - np.mean([p.translation_mm for p in case.poses], axis=0)
    far = replace(case, points_world_mm=case.points_world_mm + 0.02 * along)
    found = evaluate(far, tmp_path, truth)
    assert found.depth.median_percent == pytest.approx(2.0, abs=0.2)
    assert found.depth.median_abs_percent == pytest.approx(2.0, abs=0.2)
    assert found.trajectory.translation_rmse_mm < 1e-8


def test_without_scale(case, tmp_path, truth):
    free = scaled(moved(case), 37.0)
    free = replace(free, camera=replace(case.camera, scale_source=None))
    found = evaluate(free, tmp_path, truth)
    assert list(rows_of(found)) == ["F", "c_x", "c_y", "alpha", "distortion"]
    assert found.trajectory.alignment == "Sim3"
    assert found.trajectory.scale == pytest.approx(1.0 / 37.0, rel=1e-9)
    assert found.trajectory.translation_rmse_mm < 1e-8
    assert found.depth.median_abs_percent < 1e-4
    assert "no scale" in found.notes[0]


@pytest.mark.parametrize("distortion", [NoDistortion(), DivisionDistortion(-1e-8)])
def test_distortion_is_compared_by_displacement(case, tmp_path, truth, distortion):
    other = replace(case, camera=replace(case.camera, distortion=distortion, covariance=None))
    found = evaluate(other, tmp_path, truth)
    row = rows_of(found)["distortion"]
    corners = np.array([[0, 0], [639, 0], [0, 479], [639, 479]], float)
    c = case.camera.principal_point_px
    apart = distortion.undistort(corners, c) - case.camera.distortion.undistort(corners, c)
    assert row.error == pytest.approx(np.hypot(*apart.T).max(), rel=1e-9)
    assert found.mean_error_square is None
    assert "no covariance" in found.notes[0]
    assert "of the model 'brown', which the truth has" in found.notes[1]


def test_some_frames_of_the_simulation(case, tmp_path):
    """Frames are found by name where only some were used, by number where names say nothing."""
    numbers = [0, 2, 4, 6, 8, 10, 12]
    truth = write_truth(tmp_path, case, numbers)
    for frames in (
        [(i, f"{2 * i:04d}") for i in range(7)],
        [(2 * i, f"shot{i}") for i in range(7)],
    ):
        out = {view: index for view, (index, _) in enumerate(frames)}
        observations = replace(
            case.observations, view_ids=np.array([out[v] for v in case.observations.view_ids])
        )
        found = evaluate(replace(case, observations=observations), tmp_path, truth, frames=frames)
        assert found.trajectory.n_frames == 7
        assert found.trajectory.translation_rmse_mm < 1e-8
        assert found.depth.median_abs_percent < 1e-4


def test_without_observations_depth_is_left_out(case, tmp_path, truth):
    folder = write_out(tmp_path, case)
    (folder / "observations.csv").unlink()
    found = evaluate_calibration(folder, truth / "truth")
    assert found.depth is None
    assert found.trajectory is not None
    assert "observations.csv" in found.notes[0]


def test_a_straight_path_is_not_aligned(case, tmp_path):
    poses = tuple(RigidTransform(np.eye(3), np.array([0.0, 0.0, z])) for z in range(0, 70, 10))
    straight = replace(case, poses=poses)
    found = evaluate(straight, tmp_path, write_truth(tmp_path / "true", straight))
    assert found.trajectory is None
    assert found.depth is None
    assert "on one line" in found.notes[0]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda out, sim: (out / "camera.json").unlink(), "camera.json: no such file"),
        (lambda out, sim: (out / "poses.txt").unlink(), "poses.txt: no such file"),
        (lambda out, sim: (sim / "truth" / "camera.json").unlink(), "no truth here"),
        (lambda out, sim: (sim / "truth" / "depth" / "0003.tiff").unlink(), "0003.tiff"),
        (lambda out, sim: (sim / "truth" / "pinhole.json").write_text("{}"), "pinhole.json"),
        (lambda out, sim: (out / "points.ply").write_text("ply\n"), "not a PLY"),
        (lambda out, sim: (out / "summary.json").write_text('{"frames": 1}'), "frames needs"),
        (
            lambda out, sim: (out / "summary.json").write_text('{"point_ids": [1, 2]}'),
            "for 2 ids of point_ids",
        ),
        (
            lambda out, sim: write_tum(
                sim / "truth" / "poses.txt",
                Trajectory(np.array([70.0]), (RigidTransform.identity(),)),
            ),
            "no frame in common",
        ),
    ],
)
def test_what_is_wrong_is_named(case, tmp_path, break_it, words):
    out, simulation = write_out(tmp_path / "out", case), write_truth(tmp_path / "sim", case)
    break_it(out, simulation)
    with pytest.raises(DataError, match=words):
        evaluate_calibration(out, simulation)


def test_another_camera_is_refused(case, tmp_path, truth):
    other = replace(case, camera=replace(case.camera, pixel_size_mm=0.005))
    with pytest.raises(DataError, match=r"pixels of 5 um, not of 17\.6 um"):
        evaluate(other, tmp_path, truth)
    lattice = build_camera("mini", Imperfections(lattice="recorded")).camera.grid.lattice
    coarser = replace(lattice, basis_px=1.02 * lattice.basis_px)
    grid = MicroLensGrid.from_lattice(coarser, case.camera.image_size)
    other = replace(case, camera=replace(case.camera, grid=grid))
    with pytest.raises(DataError, match="px apart, not"):
        evaluate(other, tmp_path / "coarser", truth)
    with pytest.raises(DataError, match="no such folder"):
        evaluate_calibration(tmp_path / "none", truth)


def test_terms_that_were_not_estimated(case, tmp_path, truth):
    """A brown model with fewer terms differs by displacement, whatever its coefficients."""
    fewer = BrownDistortion(case.camera.distortion.k0)
    found = evaluate(replace(case, camera=replace(case.camera, distortion=fewer)), tmp_path, truth)
    assert 0.0 < rows_of(found)["distortion"].error < 1.0
    assert "no distortion k1, p0, p1, which the truth has" in found.notes[0]


def test_tilt_is_compared_in_degrees(case, tmp_path, truth):
    """The truth has none: the calibration's own tilt is the error, in its sigmas."""
    camera = case.camera
    size = len(camera.parameter_names)
    covariance = np.zeros((size + 2, size + 2))
    covariance[:size, :size] = camera.covariance if camera.covariance is not None else 0.0
    covariance[-2, -2], covariance[-1, -1] = 1e-12, 4e-12
    tilted = replace(camera, tilt=ArrayTilt(2e-6, 0.0), covariance=covariance)
    rows = rows_of(evaluate(replace(case, camera=tilted), tmp_path, truth))
    angle = float(tilted.tilt_angles_deg()[0][0])
    assert rows["tilt_x"].error == pytest.approx(angle)
    assert rows["tilt_x"].unit == "deg"
    assert abs(rows["tilt_x"].error_sigmas) == pytest.approx(2.0, rel=1e-4)
    assert rows["tilt_y"].error_sigmas == 0.0


def test_optics_outside_the_model_are_compared_with_the_best_fit(case, tmp_path):
    folder = write_truth(tmp_path / "simulation", case)
    truth = folder / "truth" if (folder / "truth").is_dir() else folder
    best = with_array(case, focal_px=case.camera.array.focal_px * 1.001).camera
    write_camera(truth / "best_fit.json", replace(best, covariance=None))
    found = evaluate(case, tmp_path, folder)
    row = rows_of(found)["F"]
    assert row.true == pytest.approx(best.array.focal_px)
    assert row.physical == pytest.approx(case.camera.array.focal_px)
    assert row.percent == pytest.approx(-0.1, rel=0.01)
    assert any("outside the camera model" in note for note in found.notes)
