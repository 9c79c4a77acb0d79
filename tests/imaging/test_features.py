"""Features: found again where the image moved, one to one, and none where nothing is."""

import numpy as np

from lifcal.imaging.features import detect_features, match_features
from lifcal.imaging.filters import smooth


def make_texture(rng, size=240):
    image = smooth(rng.normal(size=(size, size)).astype(np.float32), 2.0)
    image -= image.min()
    return (255.0 * image / image.max()).astype(np.uint8)


def test_features_follow_the_image(rng):
    image = make_texture(rng)
    first = detect_features(image[:200, :200], most=300)
    second = detect_features(image[7:207, 12:212], most=300)
    i, j = match_features(first.descriptors, second.descriptors)
    moved = second.points_px[j] - first.points_px[i]
    assert len(i) > 80
    # a whole-pixel shift moves features by exactly as much, but for those at the border
    assert np.mean(np.linalg.norm(moved - [-12.0, -7.0], axis=1) < 0.2) > 0.95
    assert len(np.unique(j)) == len(j)


def test_masks_limits_and_nothing(rng):
    image = make_texture(rng)
    valid = np.zeros(image.shape, np.bool_)
    valid[:, :120] = True
    found = detect_features(image, valid, 50)
    assert 0 < len(found) <= 50
    assert (found.points_px[:, 0] < 117).all()
    nothing = detect_features(np.full((60, 60), 90, np.uint8))
    assert len(nothing) == 0
    i, j = match_features(nothing.descriptors, found.descriptors)
    assert len(i) == len(j) == 0


def test_strangers_do_not_match(rng):
    first, second = (detect_features(make_texture(rng), most=300) for _ in range(2))
    i, _ = match_features(first.descriptors, second.descriptors)
    assert len(i) < 0.05 * len(first)
