import sys

import numpy as np
import plyfile
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError, InputError, MissingDependencyError
from lifcal.geometry import RigidTransform
from lifcal.metric import (
    CloudFusion,
    MeshFusion,
    PointCloud,
    make_cloud,
    read_cloud,
    read_mesh,
    write_cloud,
)

K = PinholeIntrinsics(80, 60, 100.0, 100.0, 39.0, 31.0)
NORMAL = np.array([0.3, -0.2, 1.0]) / np.linalg.norm([0.3, -0.2, 1.0])


def plane_depth():
    """A slanted plane, 900 mm away along its normal."""
    rows, cols = np.mgrid[: K.height, : K.width]
    rays = np.stack([(cols - K.cx) / K.fx, (rows - K.cy) / K.fy, np.ones(rows.shape)], -1)
    return (900.0 / (rays @ NORMAL)).astype(np.float32)


@pytest.fixture
def cloud():
    z = plane_depth()
    z[:, 5] = np.nan
    image = np.dstack([np.full(z.shape, value, np.float32) for value in (0.2, 0.4, 0.6)])
    return make_cloud(z, np.full(z.shape, 3.0, np.float32), image, K)


def test_points_normals_and_colors(cloud):
    assert len(cloud) == 79 * 60
    np.testing.assert_allclose(cloud.points_mm @ NORMAL, 900.0, rtol=1e-5)
    np.testing.assert_allclose(cloud.normals, np.broadcast_to(-NORMAL, (79 * 60, 3)), atol=1e-4)
    assert (cloud.colors == [51, 102, 153]).all()
    first = cloud.points_mm[0]
    assert first[0] / first[2] * K.fx + K.cx == pytest.approx(0.0, abs=1e-4)
    assert first[1] / first[2] * K.fy + K.cy == pytest.approx(0.0, abs=1e-4)


def test_normals_do_not_look_over_edges():
    z = plane_depth()
    z[:, 40:] *= 2.0
    gray = np.full(z.shape, 0.5, np.float32)
    cloud = make_cloud(z, np.full(z.shape, 3.0, np.float32), gray, K)
    np.testing.assert_allclose(cloud.normals @ -NORMAL, 1.0, atol=1e-5)
    assert (cloud.colors == 128).all()


def test_plyfile_reads_it(cloud, tmp_path):
    cloud.normals[0] = np.nan
    write_cloud(tmp_path / "c.ply", cloud)
    data = plyfile.PlyData.read(tmp_path / "c.ply")
    assert not data.text
    assert data.byte_order == "<"
    vertex = data["vertex"]
    assert [(p.name, p.val_dtype) for p in vertex.properties] == [
        *((name, "f4") for name in ("x", "y", "z", "nx", "ny", "nz")),
        *((name, "u1") for name in ("red", "green", "blue")),
        ("sigma", "f4"),
    ]
    np.testing.assert_allclose(vertex["z"] * 1000.0, cloud.points_mm[:, 2], rtol=1e-6)
    np.testing.assert_allclose(vertex["sigma"], 0.003)
    assert vertex["blue"][7] == 153
    assert vertex["nx"][0] == vertex["nz"][0] == 0.0


def test_it_is_read_back(cloud, tmp_path):
    cloud.normals[3] = np.nan
    write_cloud(tmp_path / "c.ply", cloud)
    found = read_cloud(tmp_path / "c.ply")
    np.testing.assert_allclose(found.points_mm, cloud.points_mm, rtol=1e-6)
    np.testing.assert_array_equal(found.normals, cloud.normals)
    np.testing.assert_array_equal(found.colors, cloud.colors)
    content = (tmp_path / "c.ply").read_bytes()
    (tmp_path / "c.ply").write_bytes(content[:-5])
    with pytest.raises(DataError, match="cut off"):
        read_cloud(tmp_path / "c.ply")
    (tmp_path / "c.ply").write_bytes(content.replace(b"red", b"rot"))
    with pytest.raises(DataError, match="not a point cloud"):
        read_cloud(tmp_path / "c.ply")


def test_a_mesh_is_written_with_its_triangles(cloud, tmp_path):
    triangles = np.array([[0, 1, 2], [2, 1, 3]], np.int32)
    write_cloud(tmp_path / "m.ply", cloud, triangles)
    faces = plyfile.PlyData.read(tmp_path / "m.ply")["face"]
    np.testing.assert_array_equal(np.stack(list(faces["vertex_indices"])), triangles)
    found, again = read_mesh(tmp_path / "m.ply")
    np.testing.assert_array_equal(again, triangles)
    np.testing.assert_allclose(found.points_mm, cloud.points_mm, rtol=1e-6)
    with pytest.raises(DataError, match="not a point cloud"):
        read_cloud(tmp_path / "m.ply")
    content = (tmp_path / "m.ply").read_bytes()
    (tmp_path / "m.ply").write_bytes(content[:-5])
    with pytest.raises(DataError, match="cut off"):
        read_mesh(tmp_path / "m.ply")
    write_cloud(tmp_path / "m.ply", cloud, triangles + len(cloud.points_mm))
    with pytest.raises(DataError, match="a corner that is not there"):
        read_mesh(tmp_path / "m.ply")
    write_cloud(tmp_path / "m.ply", cloud)
    with pytest.raises(DataError, match="not a mesh"):
        read_mesh(tmp_path / "m.ply")


def single(point, sigma, color=100, normal=(0.0, 0.0, -1.0)):
    return PointCloud(
        np.array([point], np.float32),
        np.full((1, 3), color, np.uint8),
        np.array([normal], np.float32),
        np.array([sigma], np.float32),
    )


def test_fusion_weights_by_sigma():
    fusion = CloudFusion(10.0)
    fusion.add(single((1.0, 2.0, 503.0), 3.0, 100))
    fusion.add(single((1.0, 2.0, 507.0), 1.0, 200))
    fusion.add(single((-1.0, 2.0, 507.0), 1.0))  # another cube
    found = fusion.result()
    assert len(found) == 2
    both = found.points_mm[:, 0] > 0.0
    weights = np.array([1.0 / 9.0, 1.0])
    assert found.points_mm[both][0, 2] == pytest.approx(weights @ [503.0, 507.0] / weights.sum())
    # not smaller than that of its frames, whose errors are not independent
    assert found.sigma_mm[both][0] == pytest.approx(weights.mean() ** -0.5)
    assert found.colors[both][0, 0] == round(weights @ [100.0, 200.0] / weights.sum())
    np.testing.assert_allclose(found.normals[both][0], [0.0, 0.0, -1.0])


def test_fusion_does_not_count_a_frame_s_pixels_as_independent():
    twice = single((1.0, 2.0, 503.0), 2.0)
    many = PointCloud(
        np.repeat(twice.points_mm, 50, axis=0),
        np.repeat(twice.colors, 50, axis=0),
        np.repeat(twice.normals, 50, axis=0),
        np.repeat(twice.sigma_mm, 50),
    )
    fusion = CloudFusion(10.0)
    fusion.add(many)
    assert fusion.result().sigma_mm[0] == pytest.approx(2.0)


def test_frames_meet_in_the_world(cloud):
    """Two cameras that see one plane fuse to that plane."""
    move = RigidTransform.from_rotation_vector([0.0, 0.1, 0.0], [50.0, 0.0, -20.0])
    fusion = CloudFusion(20.0)
    fusion.add(cloud)
    fusion.add(cloud.transform(move.inverse()).transform(move))
    found = fusion.result()
    assert np.abs(found.points_mm @ NORMAL - 900.0).max() < 0.01
    turned = cloud.transform(move)
    np.testing.assert_allclose(turned.normals[0], move.rotation @ -NORMAL, atol=1e-4)


def test_voxels_have_a_size():
    with pytest.raises(InputError, match="voxel size"):
        CloudFusion(0.0)


def test_a_mesh_of_open3d():
    pytest.importorskip("open3d")
    fusion = MeshFusion(K, 20.0)
    fusion.add(plane_depth(), np.full((60, 80), 90, np.uint8), RigidTransform.identity())
    corners, triangles = fusion.result()
    assert len(triangles) > 100
    assert np.median(np.abs(corners.points_mm @ NORMAL - 900.0)) < 10.0
    assert np.median(corners.normals @ -NORMAL) > 0.99


def test_without_open3d_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(MissingDependencyError, match=r"lifcal\[mesh\]"):
        MeshFusion(K, 20.0)
