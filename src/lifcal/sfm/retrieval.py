"""Which images of a large set look alike, so that not all pairs need to be matched.

Each image is described by where its features lie about the centers of some clusters of all
features (VLAD: sums of differences, by cluster). Clusters are those of the set itself: nothing has
to be downloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.cluster.vq import kmeans2

from lifcal.arrays import Float32Array, FloatArray

_CLUSTERS = 64
"""Clusters of descriptors at most, by which images are compared."""
_FEATURES = 20_000
"""Features from which the clusters are found; more would not move them."""
_ROUNDS = 12
"""Iterations of the clustering, which need not converge: any clusters compare images."""


def find_similar_pairs(
    descriptors: Sequence[Float32Array], neighbors: int, seed: int = 0
) -> list[tuple[int, int]]:
    """Return pairs (i, j), i < j: every image with those that look most like it.

    Parameters
    ----------
    descriptors : sequence of (n_features, length) float32
        Of each image; may be empty.
    neighbors : int
        For each image. All pairs if there are not more.
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
    """Return descriptors whose Euclidean distance is that of Hellinger, better for SIFT."""
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
        warnings.simplefilter("ignore")  # a cluster that stays empty does no harm
        centers = kmeans2(some, some[:count], iter=_ROUNDS, minit="matrix")[0]
    squares = (centers**2).sum(axis=1)
    codes = np.zeros((len(features), count, centers.shape[1]))
    for code, part in zip(codes, features, strict=True):
        if len(part):
            owner = np.argmin(squares - 2.0 * part @ centers.T, axis=1)
            np.add.at(code, owner, part - centers[owner])
    # Each cluster counts alike, however many features it has: a repeated pattern is one word.
    codes /= np.maximum(np.linalg.norm(codes, axis=2, keepdims=True), 1e-9)
    flat = codes.reshape(len(codes), -1)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9))
