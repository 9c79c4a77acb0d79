"""Trajectory errors against evo's, which the SLAM field knows."""

import numpy as np
import pytest

from lifcal.evaluate.trajectory import can_align, compare_trajectories
from lifcal.geometry import RigidTransform


def random_path(rng, n=15):
    return [
        RigidTransform.from_rotation_vector(rng.normal(scale=0.3, size=3), place)
        for place in np.cumsum(rng.normal(scale=40.0, size=(n, 3)), axis=0)
    ]


def disturb(path, rng, scale):
    world = RigidTransform.from_rotation_vector(rng.normal(size=3), rng.normal(scale=300.0, size=3))
    found = []
    for pose in path:
        wrong = RigidTransform.from_rotation_vector(
            rng.normal(scale=0.01, size=3), rng.normal(scale=1.5, size=3)
        )
        moved = world @ pose @ wrong
        found.append(RigidTransform(moved.rotation, scale * moved.translation_mm))
    return found


def matrix(pose):
    found = np.eye(4)
    found[:3, :3], found[:3, 3] = pose.rotation, pose.translation_mm
    return found


@pytest.mark.parametrize("metric", [True, False])
def test_errors_are_evos(rng, metric):
    evo_metrics = pytest.importorskip("evo.core.metrics")
    evo_trajectory = pytest.importorskip("evo.core.trajectory")
    true = random_path(rng)
    estimated = disturb(true, rng, 1.0 if metric else 0.02)
    found, alignment = compare_trajectories(estimated, true, metric=metric)
    reference = evo_trajectory.PosePath3D(poses_se3=[matrix(pose) for pose in true])
    moved = evo_trajectory.PosePath3D(poses_se3=[matrix(pose) for pose in estimated])
    rotation, translation, scale = moved.align(reference, correct_scale=not metric)
    np.testing.assert_allclose(alignment.rotation, rotation, atol=1e-12)
    np.testing.assert_allclose(alignment.translation_mm, translation, atol=1e-9)
    assert alignment.scale == pytest.approx(scale, rel=1e-12)
    for value, relation in (
        (found.translation_rmse_mm, evo_metrics.PoseRelation.translation_part),
        (found.rotation_rmse_deg, evo_metrics.PoseRelation.rotation_angle_deg),
    ):
        error = evo_metrics.APE(relation)
        error.process_data((reference, moved))
        wanted = error.get_statistic(evo_metrics.StatisticsType.rmse)
        assert value == pytest.approx(wanted, rel=1e-9)
        assert value > 0.1
    assert found.length_mm == pytest.approx(reference.path_length)
    assert found.n_frames == len(true)


def test_positions_on_a_line_fix_no_frame(rng):
    line = [RigidTransform(np.eye(3), np.array([t, 2.0 * t, 0.0])) for t in range(6)]
    assert not can_align(line)
    assert not can_align(random_path(rng, 2))
    assert can_align(random_path(rng))
