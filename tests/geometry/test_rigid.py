import numpy as np
import pytest

from lifcal.errors import DataError, InputError
from lifcal.geometry import RigidTransform, Trajectory, read_tum, write_tum
from tests.derivatives.checker import central_difference, check_block


def make_transform(rng):
    return RigidTransform.from_rotation_vector(rng.normal(size=3), rng.normal(scale=100, size=3))


def test_composition_reads_as_it_is_written(rng):
    cam_from_world, world_from_board = make_transform(rng), make_transform(rng)
    points = rng.normal(size=(20, 3))
    together = (cam_from_world @ world_from_board).apply(points)
    np.testing.assert_allclose(
        together, cam_from_world.apply(world_from_board.apply(points)), atol=1e-12
    )


def test_inverse(rng):
    transform = make_transform(rng)
    points = rng.normal(scale=1000, size=(20, 3))
    np.testing.assert_allclose(
        transform.inverse().apply(transform.apply(points)), points, atol=1e-9
    )


def test_quaternions(rng):
    for _ in range(20):
        transform = make_transform(rng)
        quaternion = transform.quaternion_xyzw()
        assert quaternion[3] >= 0
        back = RigidTransform.from_quaternion(quaternion, transform.translation_mm)
        np.testing.assert_allclose(back.rotation, transform.rotation, atol=1e-12)


def test_step_has_the_documented_derivative(rng):
    transform, point = make_transform(rng), rng.normal(scale=100, size=3)
    numeric = central_difference(
        lambda delta: transform.step(delta).apply(point[None])[0], np.zeros(6), 1e-5
    )
    x, y, z = transform.apply(point[None])[0]
    turning = -np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    check_block("rotation", turning, numeric[:, :3], 1e-8)
    check_block("translation", np.eye(3), numeric[:, 3:], 1e-8)


def test_what_is_no_rotation_is_refused():
    with pytest.raises(InputError, match="not a rotation matrix"):
        RigidTransform(2 * np.eye(3), np.zeros(3))
    with pytest.raises(InputError, match="not a rotation matrix"):
        RigidTransform(np.diag([1.0, 1.0, -1.0]), np.zeros(3))
    with pytest.raises(InputError, match="quaternion_xyzw is zero"):
        RigidTransform.from_quaternion(np.zeros(4), np.zeros(3))
    with pytest.raises(InputError, match="NaN"):
        RigidTransform(np.eye(3), [0.0, np.nan, 0.0])


def test_tum_round_trip(tmp_path, rng):
    poses = tuple(make_transform(rng) for _ in range(5))
    path = tmp_path / "poses.txt"
    write_tum(path, Trajectory.from_poses(poses))
    back = read_tum(path)
    np.testing.assert_array_equal(back.timestamps, np.arange(5))
    for found, pose in zip(back.world_from_cam, poses, strict=True):
        np.testing.assert_allclose(found.rotation, pose.rotation, atol=1e-11)
        np.testing.assert_allclose(found.translation_mm, pose.translation_mm, atol=1e-8)


def test_tum_is_in_metres(tmp_path):
    pose = RigidTransform(np.eye(3), [1000.0, -500.0, 250.0])
    write_tum(tmp_path / "poses.txt", Trajectory.from_poses([pose]))
    line = (tmp_path / "poses.txt").read_text().splitlines()[1]
    assert [float(word) for word in line.split()] == [0, 1, -0.5, 0.25, 0, 0, 0, 1]


def test_tum_labels_are_comments(tmp_path, rng):
    """One line before each pose, in ASCII, which our reader and evo's skip."""
    from evo.tools import file_interface

    poses = tuple(make_transform(rng) for _ in range(3))
    path = tmp_path / "poses.txt"
    write_tum(path, Trajectory.from_poses(poses), ["a.png", "b\n2.png", "gr\u00fcn.png"])
    lines = path.read_text(encoding="ascii").splitlines()
    assert lines[1::2] == ["# a.png", "# b 2.png", r"# gr\xfcn.png"]
    assert len(read_tum(path).world_from_cam) == 3
    found = file_interface.read_tum_trajectory_file(str(path))
    expected = [pose.translation_mm / 1000.0 for pose in poses]
    np.testing.assert_allclose(found.positions_xyz, expected, atol=1e-9)
    assert np.loadtxt(path).shape == (3, 8)
    with pytest.raises(InputError, match="1 labels for 3 poses"):
        write_tum(path, Trajectory.from_poses(poses), ["a.png"])


def test_tum_errors_name_the_line(tmp_path):
    path = tmp_path / "poses.txt"
    path.write_text("# fine\n0 0 0 0 0 0 0 1\n1 2 3\n")
    with pytest.raises(DataError, match="line 3: needs 8 numbers"):
        read_tum(path)
    with pytest.raises(DataError, match="no such file"):
        read_tum(tmp_path / "nothing.txt")


def test_length_of_a_path():
    poses = [RigidTransform(np.eye(3), [x, 0.0, 0.0]) for x in (0.0, 3.0, 1.0)]
    assert Trajectory.from_poses(poses).length_mm() == 5.0
    with pytest.raises(InputError, match="2 timestamps for 3 poses"):
        Trajectory(np.arange(2.0), tuple(poses))
