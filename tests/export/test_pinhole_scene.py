"""COLMAP and nerfstudio folders of images without distortion, as their readers take them."""

import json
import math
from dataclasses import replace

import cv2
import numpy as np
import plyfile
import pycolmap
import pytest

from lifcal.camera import BrownDistortion, DivisionDistortion, NoDistortion
from lifcal.errors import DataError, EstimationError
from lifcal.export import open_calibration, write_colmap, write_nerfstudio
from lifcal.export.pinhole_scene import choose_intrinsics
from lifcal.files import write_json
from lifcal.simulate import build_camera
from tests.export.cases import exact_case, moved, wave, write_focused, write_out


@pytest.fixture(scope="module")
def case():
    return moved(exact_case())


@pytest.fixture(scope="module")
def calibration(case, tmp_path_factory):
    folder = write_out(tmp_path_factory.mktemp("calibration"), case)
    return open_calibration(write_focused(folder, case))


@pytest.fixture(scope="module")
def colmap(calibration, tmp_path_factory):
    folder = tmp_path_factory.mktemp("colmap")
    scene, _ = write_colmap(folder, calibration)
    return folder, scene


def project(case, view, k):
    """Return where a pinhole camera sees the points of a case, pixel centers at integers."""
    points = case.poses[view].inverse().apply(case.points_world_mm)
    return points[:, :2] / points[:, 2:] * k.fx + [k.cx, k.cy]


def test_colmap_reads_the_model(colmap, case):
    folder, scene = colmap
    model = pycolmap.Reconstruction(folder / "sparse" / "0")
    assert model.num_reg_images() == len(case.poses)
    assert model.num_points3D() == len(case.points_world_mm)
    model.update_point_3d_errors()
    # poses and points are as read from files of 1e-12 and 1e-9 m
    assert model.compute_mean_reprojection_error() < 1e-6
    assert model.compute_num_observations() == len(scene.views)
    (camera,) = model.cameras.values()
    assert camera.model.name == "PINHOLE"
    for view in (0, 3):
        image = model.find_image_with_name(f"{view:04d}.png")
        stored = cv2.imread(str(folder / "images" / image.name), cv2.IMREAD_UNCHANGED)
        assert stored.shape == (camera.height, camera.width, 3)
        matrix = image.cam_from_world().matrix()
        expected = case.poses[view].inverse()
        np.testing.assert_allclose(matrix[:, :3], expected.rotation, atol=1e-9)
        np.testing.assert_allclose(matrix[:, 3] * 1000.0, expected.translation_mm, atol=1e-6)
        places = project(case, view, scene.intrinsics)
        for point in image.points2D:
            assert np.abs(point.xy - 0.5 - places[point.point3D_id - 1]).max() < 0.01
    np.testing.assert_allclose(model.point3D(1).xyz * 1000.0, case.points_world_mm[0], atol=1e-5)


def test_a_loader_for_gaussian_splatting_takes_it(colmap, case):
    """It takes PINHOLE only, reads the field of view, and puts the principal point in the middle.

    Its parser skips comments, then reads two lines for an image.
    """
    folder, _ = colmap
    lines = (folder / "sparse/0/cameras.txt").read_text().splitlines()
    words = next(line for line in lines if not line.startswith("#")).split()
    assert words[1] == "PINHOLE"
    width, height, fx, fy, cx, cy = map(float, words[2:])
    assert (cx, cy) == (width / 2, height / 2)
    fov = [2.0 * math.atan(width / (2.0 * fx)), 2.0 * math.atan(height / (2.0 * fy))]
    lines = (folder / "sparse/0/images.txt").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert len(rows) == 2 * len(case.poses)
    for view, (pose, points) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
        name = pose.split()[9]
        image = cv2.imread(str(folder / "images" / name))
        assert image.shape == (height, width, 3)
        found = np.array(points.split(), float).reshape(-1, 3)
        cam = case.poses[view].inverse().apply(case.points_world_mm[found[:, 2].astype(int) - 1])
        slope = cam[:, :2] / cam[:, 2:]
        seen = (1.0 + slope / np.tan(np.array(fov) / 2.0)) * np.array([width, height]) / 2.0
        assert np.abs(seen - found[:, :2]).max() < 0.01


@pytest.mark.parametrize("bits", [8, 16])
def test_images_show_what_a_pinhole_sees(case, tmp_path, bits):
    """Distorted images of a wave of 18 px: 0.05 px off would be two levels of 255."""
    folder = write_focused(write_out(tmp_path / "out", case), case, bits=bits)
    scene, _ = write_colmap(tmp_path / "new", open_calibration(folder))
    k = scene.intrinsics
    cols, rows = np.meshgrid(np.arange(k.width), np.arange(k.height))
    slopes = np.column_stack([(cols.ravel() - k.cx) / k.fx, (rows.ravel() - k.cy) / k.fy])
    image = cv2.imread(str(tmp_path / "new/images/0004.png"))[:, :, ::-1]
    expected = 255.0 * wave(slopes, 4).reshape(image.shape)
    assert np.abs(image - expected).max() < 2.0  # 1/64 px of interpolation, and rounding twice


def test_points_have_the_colors_of_the_images(case, tmp_path):
    still = replace(case, poses=(case.poses[0],) * len(case.poses))
    folder = write_out(tmp_path / "out", still)
    write_focused(folder, still)
    scene, _ = write_colmap(tmp_path / "new", open_calibration(folder))
    cam = case.poses[0].inverse().apply(case.points_world_mm)
    shown = np.unique(scene.points)
    expected = 255.0 * wave(cam[:, :2] / cam[:, 2:], 3)[shown]
    np.testing.assert_allclose(scene.colors[shown][:, :2], expected[:, :2], atol=4.0)


def test_nerfstudio_sees_the_points(calibration, case, tmp_path):
    """Its cameras look along -z with y up, and its pixel centers are half-integers."""
    scene, _ = write_nerfstudio(tmp_path, calibration)
    content = json.loads((tmp_path / "transforms.json").read_text())
    assert content["camera_model"] == "OPENCV"
    assert not any(content[name] for name in ("k1", "k2", "p1", "p2"))
    cloud = plyfile.PlyData.read(tmp_path / content["ply_file_path"])["vertex"]
    points = np.column_stack([cloud[axis] for axis in "xyz"]).astype(float)
    np.testing.assert_allclose(points * 1000.0, case.points_world_mm, atol=1e-3)
    np.testing.assert_array_equal(cloud["red"], scene.colors[:, 0])
    for view, frame in enumerate(content["frames"]):
        image = cv2.imread(str(tmp_path / frame["file_path"]))
        assert image.shape == (content["h"], content["w"], 3)
        cam_from_world = np.linalg.inv(frame["transform_matrix"])
        x, y, z = (cam_from_world @ np.column_stack([points, np.ones(len(points))]).T)[:3]
        assert (z < 0.0).all()
        # a ray through (i + 0.5, j + 0.5) has the direction ((i + 0.5 - cx) / fx, -(...), -1)
        i = content["cx"] + content["fl_x"] * x / -z - 0.5
        j = content["cy"] - content["fl_y"] * y / -z - 0.5
        found = np.column_stack([i, j])
        assert np.abs(found - project(case, view, scene.intrinsics)).max() < 0.01


@pytest.mark.parametrize(
    "distortion",
    [
        NoDistortion(),
        BrownDistortion(-3e-7, 2e-13, -1e-19, 1e-6, 2e-6),
        BrownDistortion(k0=2e-7),
        DivisionDistortion(-3e-7),
        DivisionDistortion(2e-7),
    ],
)
def test_every_pixel_was_recorded(distortion):
    camera = replace(build_camera("mini").camera, distortion=distortion)
    k = choose_intrinsics(camera, 0.5)
    assert (k.cx, k.cy) == (k.width / 2 - 0.5, k.height / 2 - 0.5)
    cols, rows = np.meshgrid([0.0, k.cx, k.width - 1.0], [0.0, k.cy, k.height - 1.0])
    slopes = np.column_stack([cols.ravel() - k.cx, rows.ravel() - k.cy]) / k.fx
    und = camera.principal_point_px + slopes * camera.array.focal_px
    recorded = distortion.distort(und, camera.principal_point_px)
    assert (recorded >= 0.0).all()
    assert (recorded <= np.array(camera.image_size) - 1.0).all()
    # and it is no smaller than it has to be: an image one pixel larger on each side would not fit
    size = np.array(camera.image_size) / 2.0
    shift = np.abs(camera.principal_point_px / 2.0 - size / 2.0)
    if isinstance(distortion, NoDistortion):
        np.testing.assert_allclose([k.width, k.height], size - 2.0 * shift, atol=5.0)


def test_a_principal_point_at_the_border_is_refused():
    camera = build_camera("mini").camera
    far = replace(camera, parameters=replace(camera.parameters, principal_x_px=1.0))
    with pytest.raises(EstimationError, match="at the border"):
        choose_intrinsics(far, 0.5)


def test_images_that_are_not_there(case, calibration, tmp_path):
    folder = write_out(tmp_path / "bare", case)
    bare = open_calibration(folder)
    with pytest.raises(DataError, match=r"0000\.png: no such image.*--no-images"):
        write_colmap(tmp_path / "new", bare)
    assert not (tmp_path / "new" / "sparse").exists()
    scene, _ = write_colmap(tmp_path / "new", bare, images=False)
    assert (scene.colors == 128).all()
    assert not (tmp_path / "new" / "images").exists()
    assert pycolmap.Reconstruction(tmp_path / "new/sparse/0").num_reg_images() == len(case.poses)
    # images of another size than the summary says
    summary = json.loads((folder / "summary.json").read_text())
    summary["provenance"] = {"settings": {"scale": 0.25}}
    write_json(folder / "summary.json", summary)
    write_focused(folder, case)
    with pytest.raises(DataError, match="320 x 240 px, needs 160 x 120 px"):
        write_colmap(tmp_path / "other", open_calibration(folder))


def test_models_are_not_mixed(calibration, tmp_path):
    (tmp_path / "sparse" / "0").mkdir(parents=True)
    (tmp_path / "sparse" / "0" / "points3D.bin").write_text("")
    with pytest.raises(DataError, match="another COLMAP model"):
        write_colmap(tmp_path, calibration)
