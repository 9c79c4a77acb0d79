"""K and distortion coefficients for OpenCV, seen by OpenCV itself."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from lifcal.camera import (
    BrownDistortion,
    DivisionDistortion,
    NoDistortion,
    make_opencv_camera,
)
from lifcal.errors import EstimationError, InputError
from lifcal.simulate import build_camera

MODELS = [
    (NoDistortion(), (5, 8), 5, 1e-9),
    (BrownDistortion(-2e-8, 1e-14, 0.0, 1e-7, -2e-7), (5, 8), 5, 1e-9),
    (BrownDistortion(-2e-8, 1e-14, 0.0, 1e-7, -2e-7), (4,), 4, 1e-9),
    (BrownDistortion(-3e-7, 2e-13, -1e-19, 1e-6, 2e-6), (5, 8), 5, 1e-9),
    (DivisionDistortion(-3e-7), (5, 8), 5, 0.01),
    (DivisionDistortion(-2e-6), (5, 8), 8, 0.01),
    (DivisionDistortion(1e-6), (5, 8), 8, 0.01),
    (BrownDistortion(-3e-7, 2e-13, -1e-19, 1e-6, 2e-6), (4,), 4, 0.1),
]


def see(camera, matrix, distortion, scale):
    """Return where OpenCV sees points, and where lifcal does in the focused image."""
    rng = np.random.default_rng(1)
    recorded = rng.uniform(0, 1, (500, 2)) * (np.array(camera.image_size) - 1.0)
    und = camera.distortion.undistort(recorded, camera.principal_point_px)
    slopes = (und - camera.principal_point_px) / camera.array.focal_px
    points = np.column_stack([slopes, np.ones(len(slopes))]) * 800.0
    found = cv2.projectPoints(points, np.zeros(3), np.zeros(3), matrix, distortion)[0][:, 0]
    return found, (recorded + 0.5) * scale - 0.5


@pytest.mark.parametrize(("distortion", "n_terms", "count", "tolerance_px"), MODELS)
def test_opencv_sees_points_where_lifcal_does(distortion, n_terms, count, tolerance_px):
    camera = replace(build_camera("mini").camera, distortion=distortion)
    found = make_opencv_camera(camera, 0.5, n_terms)
    assert len(found.distortion) == count
    assert found.largest_error_px < tolerance_px
    theirs, ours = see(camera, found.matrix, found.distortion, 0.5)
    apart = np.hypot(*(theirs - ours).T)
    assert apart.max() < tolerance_px
    # the error that is stated is that of the fit, and no mere bound; it is largest in a corner
    assert found.largest_error_px < 1e-9 or apart.max() > 0.1 * found.largest_error_px


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_a_camera_gives_k_and_coefficients(scale):
    model = BrownDistortion(-2e-8, 1e-14, 1e-21, 1e-7, -2e-7)
    camera = replace(build_camera("mini").camera, distortion=model)
    matrix, distortion = camera.opencv(scale)
    theirs, ours = see(camera, matrix, distortion, scale)
    np.testing.assert_allclose(theirs, ours, atol=1e-9)
    assert matrix[0, 0] == camera.array.focal_px * scale
    assert camera.pinhole(scale).cx == matrix[0, 2]


def test_what_cannot_be_fitted_is_refused():
    camera = replace(build_camera("mini").camera, distortion=DivisionDistortion(-3e-6))
    with pytest.raises(EstimationError, match=r"4 coefficients .* by up to .* px") as caught:
        make_opencv_camera(camera, 0.5, [4])
    assert caught.value.evidence["largest_error_px"] > 0.1
    with pytest.raises(InputError, match="scale is 0"):
        camera.opencv(0.0)
