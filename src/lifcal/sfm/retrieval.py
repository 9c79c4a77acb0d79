"""Image retrieval: similar images of a large set are found, so that not all pairs must be matched.

Each image is described by the sums, for each cluster of feature descriptors, of the differences
between its features and the cluster's center (VLAD). The clusters are computed from the set itself,
so no vocabulary has to be downloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.cluster.vq import kmeans2

from lifcal.arrays import Float32Array, FloatArray

_CLUSTERS = 64
"""Largest number of clusters of descriptors by which images are compared."""
_FEATURES = 20_000
"""Largest number of features from which the clusters are computed; more would not change them."""
_ROUNDS = 12
"""Number of iterations of the clustering. It need not converge, because any clusters will do."""


def find_similar_pairs(
    descriptors: Sequence[Float32Array], neighbors: int, seed: int = 0
) -> list[tuple[int, int]]:
    """Return pairs (i, j), i < j, of every image with those that look most similar.

    Parameters
    ----------
    descriptors : sequence of (n_features, length) float32
        Descriptors of the features of each image; there may be none.
    neighbors : int
        Number of similar images for each image. If there are not more images than that, all pairs
        are returned.
    seed : int
    """
    n = len(descriptors)
    if n <= neighbors + 1:
        return [(i, j) for i in range(n) for j in range(i + 1, n)]
    codes = _describe([_root(values) for values in descriptors], seed)
    alike = codes @ codes.T
    np.fill_diagonal(alike, -np.inf)
    nearest = np.argsort(-alike, axis=1, kind="stable")[:, :neighbors]
    pairs = {(min(i, int(j)), max(i, int(j))) for i in range(n) for j in nearest[i]}
    return sorted(pairs)


def _root(values: Float32Array) -> Float32Array:
    """Return descriptors whose Euclidean distance is the Hellinger distance (RootSIFT)."""
    values = np.asarray(values, np.float32)
    total = np.maximum(values.sum(axis=1, keepdims=True), 1e-9)
    return np.asarray(np.sqrt(values / total), np.float32)


def _describe(features: Sequence[Float32Array], seed: int) -> FloatArray:
    """Return one vector of length 1 for each image; zeros for images without features."""
    rng = np.random.default_rng(seed)
    everything = np.concatenate(
        [part for part in features if len(part)] or [np.zeros((1, 1), np.float32)]
    )
    some = everything[rng.permutation(len(everything))[:_FEATURES]]
    count = min(_CLUSTERS, len(some))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns of empty clusters, which do no harm
        centers = kmeans2(some, some[:count], iter=_ROUNDS, minit="matrix")[0]
    squares = (centers**2).sum(axis=1)
    codes = np.zeros((len(features), count, centers.shape[1]))
    for code, part in zip(codes, features, strict=True):
        if len(part):
            owner = np.argmin(squares - 2.0 * part @ centers.T, axis=1)
            np.add.at(code, owner, part - centers[owner])
    # Give each cluster the same weight, however many features it has, so that a repeated pattern
    # does not dominate.
    codes /= np.maximum(np.linalg.norm(codes, axis=2, keepdims=True), 1e-9)
    flat = codes.reshape(len(codes), -1)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9))
