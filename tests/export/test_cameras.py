"""The camera of the focused images in the files of OpenCV, ROS and Kalibr, read back."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import yaml

from lifcal.camera import ArrayTilt, BrownDistortion, DivisionDistortion
from lifcal.errors import EstimationError
from lifcal.export import write_kalibr, write_opencv, write_ros
from lifcal.export.cameras import describe_lost
from lifcal.simulate import build_camera

BROWN = BrownDistortion(-2e-8, 1e-14, 0.0, 1e-7, -2e-7)


@pytest.fixture(scope="module")
def camera():
    return replace(build_camera("mini").camera, distortion=BROWN)


def check_projection(camera, matrix, distortion, *, undistorted=False):
    """OpenCV's projection is lifcal's own, to 0.01 px."""
    rng = np.random.default_rng(2)
    points = rng.uniform([-80.0, -60.0, 500.0], [80.0, 60.0, 900.0], (300, 3))
    place = camera.virtual_from_cam(points)[:, :2]
    if not undistorted:
        place = camera.distortion.distort(place, camera.principal_point_px)
    k = np.array(matrix, float).reshape(3, 3)
    d = np.array(distortion, float)
    found = cv2.projectPoints(points, np.zeros(3), np.zeros(3), k, d)[0][:, 0]
    assert np.abs(found - ((place + 0.5) / 2.0 - 0.5)).max() < 0.01


@pytest.mark.parametrize("undistorted", [False, True])
def test_opencv_reads_its_file(camera, tmp_path, undistorted):
    path = tmp_path / "camera.yml"
    found = write_opencv(path, camera, undistorted=undistorted)
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_READ)
    assert storage.isOpened()
    matrix = storage.getNode("camera_matrix").mat()
    distortion = storage.getNode("distortion_coefficients").mat()
    np.testing.assert_array_equal(matrix, found.matrix)
    np.testing.assert_array_equal(distortion, found.distortion[None])
    assert distortion.any() != undistorted
    size = [int(storage.getNode(f"image_{name}").real()) for name in ("width", "height")]
    assert size == [length // 2 for length in camera.image_size]
    check_projection(camera, matrix, distortion, undistorted=undistorted)


@pytest.mark.parametrize(
    ("distortion", "model", "count"),
    [(BROWN, "plumb_bob", 5), (DivisionDistortion(-2e-6), "rational_polynomial", 8)],
)
def test_camera_info_is_as_ros_expects(camera, tmp_path, distortion, model, count):
    """The fields, shapes and types that camera_calibration_parsers reads."""
    camera = replace(camera, distortion=distortion)
    write_ros(tmp_path / "info.yaml", camera, name="it's")
    info = yaml.safe_load((tmp_path / "info.yaml").read_text())
    assert list(info) == [
        *("image_width", "image_height", "camera_name", "camera_matrix", "distortion_model"),
        *("distortion_coefficients", "rectification_matrix", "projection_matrix"),
    ]
    assert [info["image_width"], info["image_height"]] == [n // 2 for n in camera.image_size]
    assert info["camera_name"] == "it's"
    assert info["distortion_model"] == model
    shapes = {
        "camera_matrix": (3, 3),
        "distortion_coefficients": (1, count),
        "rectification_matrix": (3, 3),
        "projection_matrix": (3, 4),
    }
    for name, (rows, cols) in shapes.items():
        assert (info[name]["rows"], info[name]["cols"]) == (rows, cols)
        assert len(info[name]["data"]) == rows * cols
        assert all(isinstance(value, float) for value in info[name]["data"])
    check_projection(camera, info["camera_matrix"]["data"], info["distortion_coefficients"]["data"])
    projection = np.array(info["projection_matrix"]["data"]).reshape(3, 4)
    np.testing.assert_array_equal(projection[:, 3], 0.0)  # one camera
    check_projection(camera, projection[:, :3], np.zeros(5), undistorted=True)


def test_kalibr_camchain(camera, tmp_path):
    write_kalibr(tmp_path / "camchain.yaml", camera, name="raytrix")
    chain = yaml.safe_load((tmp_path / "camchain.yaml").read_text())
    cam = chain["cam0"]
    assert (cam["camera_model"], cam["distortion_model"]) == ("pinhole", "radtan")
    assert cam["resolution"] == [length // 2 for length in camera.image_size]
    assert cam["rostopic"] == "/raytrix/image_raw"
    assert len(cam["distortion_coeffs"]) == 4
    fu, fv, pu, pv = cam["intrinsics"]
    check_projection(camera, [[fu, 0, pu], [0, fv, pv], [0, 0, 1]], cam["distortion_coeffs"])
    write_kalibr(tmp_path / "camchain.yaml", camera, undistorted=True)
    cam = yaml.safe_load((tmp_path / "camchain.yaml").read_text())["cam0"]
    assert (cam["distortion_model"], cam["distortion_coeffs"]) == ("none", [])


def test_small_numbers_stay_numbers(camera, tmp_path):
    """YAML 1.1 takes 1e-05 for text."""
    small = replace(camera, distortion=BrownDistortion(k0=1e-6 / camera.array.focal_px**2))
    write_kalibr(tmp_path / "camchain.yaml", small)
    cam = yaml.safe_load((tmp_path / "camchain.yaml").read_text())["cam0"]
    np.testing.assert_allclose(cam["distortion_coeffs"], [1e-6, 0, 0, 0], rtol=1e-12)


def test_a_misfit_writes_nothing(camera, tmp_path):
    wide = replace(camera, distortion=DivisionDistortion(-3e-6))
    with pytest.raises(EstimationError, match="--undistorted"):
        write_kalibr(tmp_path / "camchain.yaml", wide)
    assert list(tmp_path.iterdir()) == []


def test_what_is_lost_is_said(camera):
    (text,) = describe_lost(camera)
    assert "bend of the micro-image centers, 0.23 px rms" in text
    regular = replace(camera, grid=replace(camera.grid, bend=None, deviations_px=None))
    assert describe_lost(regular) == ()
    (text,) = describe_lost(replace(regular, tilt=ArrayTilt(1e-5, 0.0)))
    assert "tilt of the micro-lens array" in text
    assert "bend" not in text
