"""What an engine returns is checked before it is used."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import BrownDistortion
from lifcal.errors import InputError
from lifcal.geometry import RigidTransform
from lifcal.sfm import SfmModel

POSE = RigidTransform.identity()


@pytest.fixture
def model():
    return SfmModel(
        900.0,
        np.array([320.0, 240.0]),
        BrownDistortion(),
        (POSE, None, POSE),
        np.zeros((2, 3)),
        np.array([0, 0, 1]),
        np.array([0, 2, 2]),
        np.zeros((3, 2)),
        0.3,
    )


def test_lists_will_do(model):
    found = replace(
        model, cam_from_sfm=[POSE, None, POSE], point_indices=[0, 0, 1], principal_px=(320, 240)
    )
    assert found.cam_from_sfm == (POSE, None, POSE)
    assert found.point_indices.dtype == np.int64
    assert found.principal_px.tolist() == [320.0, 240.0]
    assert found.registered.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cam_from_sfm": (np.eye(4),) * 3}, "cam_from_sfm has a ndarray, needs RigidTransform"),
        ({"view_indices": [0, 1, 2]}, "found in image 1, which has no pose"),
        ({"view_indices": [0, 3, 2]}, "view_indices has 0 to 3, needs 0 to 2"),
        ({"view_indices": [0, -1, 2]}, "view_indices has -1 to 2, needs 0 to 2"),
        ({"view_indices": [0, 2]}, "2 view_indices for 3 point_indices"),
        ({"point_indices": [0.0, 0.0, 1.0]}, r"point_indices is float64 \(3,\), needs \(n,\) int"),
        ({"points_sfm": np.zeros((1, 3))}, "point_indices has 0 to 1, needs 0 to 0"),
        ({"points_virt_px": np.zeros((2, 2))}, "points_virt_px has shape"),
        ({"point_indices": [0, 1, 0]}, "not sorted by point and image"),
        ({"view_indices": [2, 0, 2]}, "not sorted by point and image"),
        ({"view_indices": [2, 2, 2]}, "a point twice in an image"),
    ],
)
def test_what_does_not_fit_is_refused(model, change, message):
    with pytest.raises(InputError, match=message):
        replace(model, **change)
