"""Depth maps that confirm each other, on a plane that several cameras see."""

import numpy as np
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.geometry import RigidTransform
from lifcal.metric import DepthMap, confirm_depth

K = PinholeIntrinsics(80, 60, 100.0, 100.0, 39.5, 29.5)
INNER = np.s_[15:-15, 15:-15]
SIGMA = 2.0


def see_plane(x_mm, turn=0.0, rng=None):
    """What a camera at (x, 0, 0), turned about y, sees of the plane z = 1000 mm."""
    pose = RigidTransform.from_rotation_vector([0.0, turn, 0.0], [x_mm, 0.0, 0.0])
    rows, cols = np.mgrid[: K.height, : K.width]
    rays = np.stack([(cols - K.cx) / K.fx, (rows - K.cy) / K.fy, np.ones(rows.shape)], axis=-1)
    depth = 1000.0 / (rays @ pose.rotation[2])
    if rng is not None:
        depth = depth + SIGMA * rng.standard_normal(depth.shape)
    return DepthMap(depth.astype(np.float32), np.full(depth.shape, SIGMA, np.float32), pose)


def test_what_agrees_is_averaged(rng):
    cameras = [see_plane(x, turn, rng) for x, turn in ((0, 0.0), (20, 0.01), (-15, -0.02))]
    found = confirm_depth(cameras[0], cameras[1:], K)
    error = found.depth_mm[INNER] - 1000.0
    # three sigma of a difference: some pixels are left out, the mean of three has 1.15
    assert np.isfinite(error).mean() > 0.95
    assert np.nanstd(error) == pytest.approx(SIGMA / np.sqrt(3.0), rel=0.1)
    assert abs(np.nanmean(error)) < 0.1
    # the common part does not fall: sqrt(0.6 + 0.4 / 3) of it is left at least
    expected = SIGMA * np.sqrt((1.0 + 0.6 * 2.0) / 3.0)
    np.testing.assert_allclose(np.nanmedian(found.sigma_mm), expected, rtol=1e-4)


def test_what_others_see_through_is_left_out():
    cameras = [see_plane(x) for x in (0, 20, -20)]
    depth = cameras[0].depth_mm.copy()
    depth[30, 40] = 900.0
    depth[25, 35] = np.nan
    floating = DepthMap(depth, cameras[0].sigma_mm, cameras[0].world_from_cam)
    found = confirm_depth(floating, cameras[1:], K)
    assert np.isnan(found.depth_mm[[30, 25], [40, 35]]).all()
    assert np.isfinite(found.depth_mm[30, 41])


def test_two_must_agree_if_there_are_three():
    here, other = see_plane(0), see_plane(20)
    far = see_plane(2000.0)  # sees nothing of it
    assert np.isnan(confirm_depth(here, [other, far, far], K).depth_mm).all()
    assert np.isfinite(confirm_depth(here, [other, far], K).depth_mm[INNER]).all()
    assert np.isfinite(confirm_depth(here, [other], K).depth_mm[INNER]).all()
    assert confirm_depth(here, [], K) is here


def test_more_that_see_through_outvote_those_that_agree():
    plane = see_plane(0)
    depth = plane.depth_mm.copy()
    depth[30, 40] = 900.0
    floating = DepthMap(depth, plane.sigma_mm, plane.world_from_cam)
    found = [
        confirm_depth(floating, [floating] * 2 + [plane] * count, K).depth_mm for count in (2, 3)
    ]
    assert found[0][30, 40] == 900.0
    assert np.isnan(found[1][30, 40])
    assert found[1][30, 41] == 1000.0


def test_what_another_distance_sees_is_scaled():
    """Half as far away, a difference of depth along a ray is half as large."""
    here = see_plane(0)
    pose = RigidTransform.from_rotation_vector([0.0, 0.0, 0.0], [0.0, 0.0, 500.0])
    near = DepthMap(np.full_like(here.depth_mm, 502.0), here.sigma_mm, pose)
    found = confirm_depth(here, [near], K)
    middle = found.depth_mm[25:35, 32:48]  # which the nearer one sees too
    np.testing.assert_allclose(middle, 1002.0, rtol=1e-6)  # the mean of 1000 and 1004
