import numpy as np
import pytest

from lifcal.errors import InputError
from lifcal.geometry import RigidTransform, SimilarityTransform


def random_rotation(rng):
    return RigidTransform.from_rotation_vector(rng.normal(size=3), np.zeros(3)).rotation


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_finds_what_moved_the_points(rng, scale):
    points = rng.normal(scale=100.0, size=(20, 3))
    true = SimilarityTransform(random_rotation(rng), rng.normal(scale=50.0, size=3), scale)
    found = SimilarityTransform.align(points, true.apply(points), with_scale=scale != 1.0)
    np.testing.assert_allclose(found.rotation, true.rotation, atol=1e-12)
    np.testing.assert_allclose(found.translation_mm, true.translation_mm, atol=1e-10)
    assert found.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("with_scale", [False, True])
def test_no_other_transform_is_better(rng, with_scale):
    source = rng.normal(scale=100.0, size=(12, 3))
    target = SimilarityTransform(random_rotation(rng), np.ones(3), 1.2).apply(source)
    target += rng.normal(scale=5.0, size=source.shape)
    best = SimilarityTransform.align(source, target, with_scale=with_scale)

    def cost(transform):
        return np.sum((transform.apply(source) - target) ** 2)

    for _ in range(30):
        turn = RigidTransform.from_rotation_vector(rng.normal(scale=1e-3, size=3), np.zeros(3))
        other = SimilarityTransform(
            turn.rotation @ best.rotation,
            best.translation_mm + rng.normal(scale=0.05, size=3),
            best.scale * (1.0 + with_scale * rng.normal(scale=1e-3)),
        )
        assert cost(other) > cost(best)


def test_points_that_a_mirror_would_fit_get_a_rotation(rng):
    source = rng.normal(size=(8, 3))
    found = SimilarityTransform.align(source, source * (1.0, 1.0, -1.0))
    assert np.linalg.det(found.rotation) == pytest.approx(1.0)


def test_two_points_fix_nothing():
    with pytest.raises(InputError, match="2 points do not determine"):
        SimilarityTransform.align(np.eye(3)[:2], np.eye(3)[:2])
