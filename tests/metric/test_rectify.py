from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import BrownDistortion, NoDistortion
from lifcal.errors import InputError
from lifcal.imaging.resample import resample
from lifcal.metric import Rectification
from lifcal.simulate import build_camera
from lifcal.virtual import LensOptics, Workspace
from tests.metric.cases import STRONG


@pytest.fixture(scope="module")
def camera():
    return replace(build_camera("mini").camera, distortion=STRONG)


def waves(x, y):
    return (0.5 + 0.2 * np.sin(x / 4.0) * np.cos(y / 5.0)).astype(np.float32)


def test_no_distortion_needs_no_map(camera):
    assert Rectification.from_camera(replace(camera, distortion=NoDistortion())) is None
    assert Rectification.from_camera(replace(camera, distortion=BrownDistortion())) is None


def test_points_go_where_undistorting_puts_them(camera):
    rectification = Rectification.from_camera(camera)
    width, height = camera.image_size
    y, x = np.mgrid[:height, :width].astype(float)
    places = camera.distortion.undistort(
        np.column_stack([x.ravel(), y.ravel()]), camera.principal_point_px
    )
    recorded = waves(*places.T).reshape(height, width)
    found = rectification.apply(recorded)
    inner = (slice(20, -20), slice(20, -20))
    assert np.abs(found - waves(x, y))[inner].max() < 0.005  # 0.02 px on slopes of 0.05
    assert np.abs(recorded - waves(x, y))[inner].max() > 0.1
    color = rectification.apply(np.dstack([recorded, 2.0 * recorded, recorded]))
    np.testing.assert_allclose(color[..., 1], 2.0 * found, atol=1e-5)


def test_grid_is_undistorted_and_whole(camera):
    grid = Rectification.from_camera(camera).grid
    back = camera.distortion.distort(grid.centers_raw_px, camera.principal_point_px)
    nearest = camera.grid.nearest(back)
    np.testing.assert_allclose(back, camera.grid.centers_raw_px[nearest], atol=1e-8)
    np.testing.assert_array_equal(grid.lens_types, camera.grid.lens_types[nearest])
    assert (back >= LensOptics.from_grid(camera.grid).radius_px - 1e-9).all()
    assert 0.85 * len(camera.grid) < len(grid) < len(camera.grid)
    assert grid.discs == camera.grid.discs
    np.testing.assert_array_equal(grid.focal_planes, camera.grid.focal_planes)


def test_nothing_comes_from_beyond_the_fold(camera):
    """There the model comes back to places that were recorded."""
    folded = replace(camera, distortion=BrownDistortion(-4e-6))
    fold = folded.distortion.fold_radius_px
    assert fold < 300.0
    rectification = Rectification.from_camera(folded)
    y, x = np.mgrid[:480, :640]
    beyond = np.hypot(x - folded.principal_point_px[0], y - folded.principal_point_px[1]) > fold
    assert (rectification.map_x[beyond] < 0.0).all()
    assert (rectification.map_x[~beyond] >= 0.0).all()
    distance = np.hypot(*(rectification.grid.centers_raw_px - folded.principal_point_px).T)
    assert distance.max() <= fold


def test_buffers_are_kept(camera):
    space = Workspace()
    rectification = Rectification.from_camera(camera, space)
    image = np.ones(camera.image_size[::-1], np.float32)
    first = rectification.apply(image)
    assert rectification.apply(2.0 * image) is first
    assert first[240, 320] == pytest.approx(2.0)


def test_shapes_are_checked():
    image, place = np.zeros((4, 5), np.float32), np.zeros((2, 3), np.float32)
    assert resample(image, place, place).shape == (2, 3)
    with pytest.raises(InputError, match="maps"):
        resample(image, place, place[:1])
    with pytest.raises(InputError, match="out is"):
        resample(image, place, place, np.zeros((2, 3)))
