"""Images that look alike are found by their features."""

import numpy as np

from lifcal.sfm import retrieval
from lifcal.sfm.retrieval import find_similar_pairs


def make_sets(rng, n_scenes=3, n_images=12):
    """Return descriptors of images of several scenes, shuffled, and the scene of each."""
    scenes = rng.gamma(0.5, size=(n_scenes, 150, 128))
    owners = rng.permutation(np.repeat(np.arange(n_scenes), n_images))
    images = []
    for owner in owners:
        seen = scenes[owner][rng.permutation(150)[:90]]
        others = rng.gamma(0.5, size=(60, 128))
        noisy = np.concatenate([seen, others]) * rng.uniform(0.8, 1.2, (150, 128))
        images.append((255.0 * noisy / noisy.max()).astype(np.float32))
    return images, owners


def test_images_of_one_scene_are_paired(rng):
    images, owners = make_sets(rng)
    pairs = np.array(find_similar_pairs(images, 6))
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len(pairs) < len(images) * 6 + 1
    assert (owners[pairs[:, 0]] == owners[pairs[:, 1]]).mean() > 0.95
    assert set(pairs.ravel().tolist()) == set(range(len(images)))


def test_the_same_seed_gives_the_same_pairs(rng):
    images, _ = make_sets(rng)
    assert find_similar_pairs(images, 4, 7) == find_similar_pairs(images, 4, 7)


def test_small_sets_are_paired_whole(rng):
    images, _ = make_sets(rng, 1, 4)
    assert find_similar_pairs(images, 3) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert find_similar_pairs([], 3) == []


def test_images_without_features(rng):
    images, _ = make_sets(rng, 1, 8)
    images[3] = np.zeros((0, 128), np.float32)
    assert len(find_similar_pairs(images, 2)) >= 8
    assert len(find_similar_pairs([np.zeros((0, 128), np.float32)] * 6, 2)) >= 6


def test_contrast_does_not_matter(rng):
    """SIFT's lengths follow the light; Hellinger's distance is that of vectors of length 1."""
    images, _ = make_sets(rng)
    darker = [values * rng.uniform(0.3, 1.0, (len(values), 1)) for values in images]
    assert find_similar_pairs(darker, 6) == find_similar_pairs(images, 6)
    roots = retrieval._root(images[0])
    np.testing.assert_allclose(np.linalg.norm(roots, axis=1), 1.0, rtol=1e-5)


def test_codes_have_length_one_and_so_do_their_words(rng):
    """Or images with many features would look like everything, and a wall would be its brick."""
    images, _ = make_sets(rng)
    images[0] = np.concatenate([images[0], np.repeat(images[0][:1], 500, axis=0)])
    codes = retrieval._describe([retrieval._root(values) for values in images], 0)
    np.testing.assert_allclose(np.linalg.norm(codes, axis=1), 1.0, rtol=1e-6)
    words = np.linalg.norm(codes[0].reshape(-1, 128), axis=1)
    used = words > 1e-6
    assert used.sum() > 20
    np.testing.assert_allclose(words[used], words[used][0], rtol=1e-4)
