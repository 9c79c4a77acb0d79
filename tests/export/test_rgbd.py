import json

import cv2
import numpy as np
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError, InputError
from lifcal.export.rgbd import (
    choose_depth_factor,
    decode_depth,
    encode_depth,
    read_orbslam_depth,
    write_intrinsics,
    write_lists,
    write_orbslam,
)

K = PinholeIntrinsics(1024, 768, 1479.0, 1479.0, 509.25, 383.5)

REALS = (
    *("Camera1.fx", "Camera1.fy", "Camera1.cx", "Camera1.cy"),
    *("Stereo.ThDepth", "Stereo.b", "RGBD.DepthMapFactor", "ORBextractor.scaleFactor"),
    *("Viewer.KeyFrameSize", "Viewer.KeyFrameLineWidth", "Viewer.GraphLineWidth"),
    *("Viewer.PointSize", "Viewer.CameraSize", "Viewer.CameraLineWidth"),
    *("Viewer.ViewpointX", "Viewer.ViewpointY", "Viewer.ViewpointZ", "Viewer.ViewpointF"),
)
INTEGERS = (
    *("Camera.width", "Camera.height", "Camera.fps", "Camera.RGB", "ORBextractor.nFeatures"),
    *("ORBextractor.nLevels", "ORBextractor.iniThFAST", "ORBextractor.minThFAST"),
)
STRINGS = ("File.version", "Camera.type")


def check_settings(path):
    """Read with OpenCV, as ORB-SLAM3 does; it stops at a number of the wrong type."""
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_READ)
    assert storage.isOpened()
    nodes = {name: storage.getNode(name) for name in (*REALS, *INTEGERS, *STRINGS)}
    assert [name for name, node in nodes.items() if node.empty()] == []
    assert [name for name in REALS if not nodes[name].isReal()] == []
    assert [name for name in INTEGERS if not nodes[name].isInt()] == []
    assert [name for name in STRINGS if not nodes[name].isString()] == []
    return {name: node.string() if name in STRINGS else node.real() for name, node in nodes.items()}


def test_settings_have_the_types_that_orb_slam_checks(tmp_path):
    path = tmp_path / "camera.yaml"
    write_orbslam(path, K, 5000, fps=30, baseline_m=0.04)
    assert path.read_text().startswith("%YAML:1.0\n")
    found = check_settings(path)
    assert found["Camera.type"] == "PinHole"
    assert found["File.version"] == "1.0"
    assert found["Camera1.fx"] == 1479.0
    assert found["Camera1.cx"] == 509.25
    assert (found["Camera.width"], found["Camera.height"]) == (1024, 768)
    assert found["RGBD.DepthMapFactor"] == 5000.0
    assert found["Stereo.b"] == 0.04


def test_the_check_can_fail(tmp_path):
    path = tmp_path / "camera.yaml"
    write_orbslam(path, K, 5000, fps=30, baseline_m=0.04)
    good = path.read_text()
    for old, new in (("1479.0", "1479"), ("fps: 30", "fps: 30.0"), ('"1.0"', "1.0")):
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(AssertionError):
            check_settings(path)


def test_settings_are_checked_against_the_depth_maps(tmp_path):
    path = tmp_path / "camera.yaml"
    write_orbslam(path, K, 5000, fps=30, baseline_m=0.04)
    found = read_orbslam_depth(path, 5000)
    assert (found.factor, found.baseline_m) == (5000.0, 0.04)
    assert found.close_m == pytest.approx(1.6)
    with pytest.raises(DataError, match=r"DepthMapFactor is 5000, the depth maps have 1000 units"):
        read_orbslam_depth(path, 1000)
    good = path.read_text()
    for old, new, words in (
        ("Stereo.b: 0.04", "Stereo.b: wide", "Stereo.b is missing or no number"),
        ("Stereo.ThDepth", "ThDepth", "Stereo.ThDepth is missing"),
        ("Stereo.ThDepth: 40.0", "Stereo.ThDepth: nan", "needs a positive number"),
    ):
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(DataError, match=words):
            read_orbslam_depth(path, 5000)
    write_orbslam(path, K, 5000, fps=30, baseline_m=1e-12)  # nine decimals do not hold it
    with pytest.raises(DataError, match=r"Stereo\.b is 0"):
        read_orbslam_depth(path, 5000)


@pytest.mark.parametrize(
    ("far_mm", "factor"),
    [(4000.0, 5000), (13_100.0, 5000), (13_200.0, 2000), (40_000.0, 1000), (1e5, 500)],
)
def test_depth_fits_into_16_bits(far_mm, factor):
    assert choose_depth_factor(far_mm) == factor
    depth = np.array([[far_mm, np.nan, 1.0]], np.float32)
    stored = encode_depth(depth, factor)
    assert stored.dtype == np.uint16
    assert stored[0, 1] == 0
    found = decode_depth(stored, factor)
    np.testing.assert_allclose(found[0, [0, 2]], depth[0, [0, 2]], atol=500.0 / factor)
    assert np.isnan(found[0, 1])


def test_what_does_not_fit_is_unknown_or_said():
    assert encode_depth(np.array([[14_000.0]], np.float32), 5000)[0, 0] == 0
    ends = np.array([[13_107.0, 13_107.2]], np.float32)  # 65535 and 65536 units
    assert encode_depth(ends, 5000).tolist() == [[65535, 0]]
    assert encode_depth(np.array([[0.01]], np.float32), 5000)[0, 0] == 1
    with pytest.raises(InputError, match="range"):
        choose_depth_factor(np.inf)


def test_lists_are_in_the_tum_layout(tmp_path):
    write_lists(tmp_path, [(0.0, "a"), (0.5, "b")])
    assert (tmp_path / "associations.txt").read_text() == (
        "0.000000 rgb/a.png 0.000000 depth/a.png\n0.500000 rgb/b.png 0.500000 depth/b.png\n"
    )
    lines = (tmp_path / "depth.txt").read_text().splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ["0.000000 depth/a.png", "0.500000 depth/b.png"]


def test_intrinsics_for_open3d(tmp_path):
    write_intrinsics(tmp_path / "intrinsics.json", K, 5000)
    content = json.loads((tmp_path / "intrinsics.json").read_text())
    matrix = np.array(content["intrinsic_matrix"]).reshape(3, 3, order="F")
    np.testing.assert_array_equal(
        matrix, [[1479.0, 0.0, 509.25], [0.0, 1479.0, 383.5], [0.0, 0.0, 1.0]]
    )
    assert (content["width"], content["height"], content["depth_factor"]) == (1024, 768, 5000)
    open3d = pytest.importorskip("open3d")
    found = open3d.io.read_pinhole_camera_intrinsic(str(tmp_path / "intrinsics.json"))
    np.testing.assert_array_equal(found.intrinsic_matrix, matrix)
    assert (found.width, found.height) == (1024, 768)
