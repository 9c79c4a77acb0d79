"""Rough search for the micro-lens lattice in an image without prior knowledge.

A micro-lens array multiplies the image by a pattern that repeats with the lattice over the whole
image, so the spectrum has sharp peaks at the reciprocal lattice. The scene causes only broad peaks:
it repeats from lens to lens too, but with a period that depends on the depth.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import cv2
import numpy as np
import scipy.fft

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray
from lifcal.camera.grid import Lattice
from lifcal.errors import EstimationError
from lifcal.grid import _kernels

MIN_PITCH_PX = 5.0
"""Smallest pitch of a lattice: smaller micro images have too few pixels for depth estimation."""
_MIN_LENSES = 6
"""Smallest number of lenses across the shorter side of the image. With fewer, the peaks of the
lattice in the spectrum cannot be distinguished from those of the scene."""
_LARGEST_CROP = 2048
"""Largest side, in px, of the middle part of the image whose spectrum is computed. It contains
enough lenses, and the limit bounds the computing time."""
_LEAST_HEIGHT = 2.3
"""Smallest natural logarithm of the ratio of a peak to its surroundings. Noise reaches 1.7 in four
million bins."""
_N_PEAKS = 28
"""Number of strongest peaks of the spectrum that are examined. Those of the lattice and its
harmonics are among them."""
_LOW_FREQUENCY_SHARE = 0.4
"""Pairs of peaks with at least this fraction of the largest strength are candidates, and the one
with the lowest frequency is taken. Thin gaps between lenses make harmonics as strong as the
fundamental."""
_N_CHUNKS = 16
"""Number of parts into which sums over lenses are split. It is a constant, so that results do not
depend on the number of threads."""

_CALM_BOX = 101
"""Side in px of the window over which the brightness around a pixel is averaged; it covers a few
lenses."""
_CALM_DARK = 0.25
"""A pixel that is darker than this fraction of the mean around it is in a gap between lenses. Such
a gap is smooth, but it does not belong to a lens."""

NO_PATTERN = "no micro-lens pattern: the spectrum has no lattice of peaks"
"""Beginning of the messages which say that an image shows no micro lenses."""


class _Peaks(NamedTuple):
    """Peaks of a spectrum: place in cycles/px (n, 2), amplitude (n,), height over surroundings."""

    frequencies: FloatArray
    amplitudes: FloatArray
    heights: FloatArray
    bin_size: float


def find_lattice(image: Float32Array) -> Lattice:
    """Return the hexagonal or square lattice of micro images, with an accuracy of about 0.1 %.

    Parameters
    ----------
    image : (height, width) float32
        A white image, a raw, or the mean of several.

    Raises
    ------
    EstimationError
        If the image shows no lattice.
    """
    reciprocal, evidence = _find_reciprocal(image)
    # Rows of `basis` are the lattice vectors; columns of its inverse are the reciprocal ones.
    basis = _order_basis(np.linalg.inv(reciprocal.T).astype(np.float64))
    for _ in range(4):
        pitch = math.sqrt(abs(float(np.linalg.det(basis))))
        lattice = _place_origin(image, basis)
        other = _check_density(image, lattice)
        if other is None:
            return lattice
        basis = _order_basis(other)
    raise EstimationError(
        f"{NO_PATTERN} whose centers are bright (last pitch tried {pitch:.2f} px)",
        stage="grid",
        evidence=evidence,
    )


def compute_calm(image: Float32Array) -> Float32Array:
    """Return a map that is 1 where the image is bright and smooth, 0 at edges and in the dark.

    The content of one micro image ends where that of the next begins, so borders have larger
    gradients than middles for any scene, even without a dark gap between micro images. Gradients
    are those of the logarithm, so that bright and dark parts have equal weight.
    """
    floor = max(0.03 * float(np.percentile(image[::4, ::4], 99.0)), 1e-6)
    log = np.log(np.maximum(image, 0.0) + np.float32(floor))
    by_x = cv2.Sobel(log, cv2.CV_32F, 1, 0, ksize=3, scale=0.125)
    by_y = cv2.Sobel(log, cv2.CV_32F, 0, 1, ksize=3, scale=0.125)
    edges = cv2.magnitude(by_x, by_y)
    around = cv2.blur(edges, (_CALM_BOX, _CALM_BOX)) + np.float32(1e-4)
    # A dark gap is smooth too, but it is not a lens.
    level = cv2.blur(image, (_CALM_BOX, _CALM_BOX)) * np.float32(_CALM_DARK) + np.float32(1e-6)
    lit = np.clip(image / level, 0.0, 1.0)
    return np.ascontiguousarray(lit * around / (around + edges), np.float32)


def _spectrum_peaks(image: Float32Array) -> _Peaks:
    height, width = image.shape
    top, left = max(0, (height - _LARGEST_CROP) // 2), max(0, (width - _LARGEST_CROP) // 2)
    crop = image[top : top + _LARGEST_CROP, left : left + _LARGEST_CROP]
    rows, cols = crop.shape
    floor = 0.03 * float(np.percentile(crop[::4, ::4], 99.0))
    crop = np.log(np.maximum(crop, 0.0) + max(floor, 1e-6))
    crop -= crop.mean()
    window = np.outer(np.hanning(rows + 2)[1:-1], np.hanning(cols + 2)[1:-1]).astype(np.float32)
    transform = scipy.fft.rfft2(crop * window, workers=2)
    amplitude = np.abs(scipy.fft.fftshift(transform, axes=0)) / float(window.sum())
    log = np.log(amplitude.astype(np.float32) + 1e-12)
    height_over = log - cv2.blur(log, (31, 31), borderType=cv2.BORDER_REFLECT)
    f_y = (np.arange(rows) - rows // 2) / rows
    f_x = np.arange(cols // 2 + 1) / cols
    frequency = np.hypot(f_y[:, None], f_x[None, :])
    is_peak = (
        (log >= cv2.dilate(log, np.ones((5, 5), np.uint8)))
        & (height_over > _LEAST_HEIGHT)
        & (frequency > 0.8 * _MIN_LENSES / min(rows, cols))
        & (frequency < 1.16 / MIN_PITCH_PX)
    )
    is_peak[[0, -1]] = False
    is_peak[:, -1] = False
    row, col = np.nonzero(is_peak)
    strongest = np.argsort(-amplitude[row, col])[:_N_PEAKS]
    row, col = row[strongest], col[strongest]
    # Fit a parabola to the logarithm of the spectrum, because the peak of a Hann window is nearly a
    # Gaussian. The neighbor to the left of column 0 is the mirror image of column 1.
    left_of = np.where(col > 0, log[row, col - 1], log[(2 * (rows // 2) - row) % rows, 1])
    d_col = _vertex(left_of, log[row, col], log[row, col + 1])
    d_row = _vertex(log[row - 1, col], log[row, col], log[row + 1, col])
    places = np.stack([(col + d_col) / cols, (row + d_row - rows // 2) / rows], axis=1)
    return _Peaks(
        places, amplitude[row, col].astype(float), height_over[row, col], 1.0 / min(rows, cols)
    )


def _vertex(low: FloatArray, middle: FloatArray, high: FloatArray) -> FloatArray:
    curvature = low - 2.0 * middle + high
    safe = np.where(curvature < -1e-6, curvature, -1.0)
    return np.clip(np.where(curvature < -1e-6, 0.5 * (low - high) / safe, 0.0), -0.5, 0.5)


def _find_reciprocal(image: Float32Array) -> tuple[FloatArray, dict[str, float]]:
    """Return two reciprocal lattice vectors (rows, in cycles/px), and evidence for messages."""
    if min(image.shape) < MIN_PITCH_PX * _MIN_LENSES:
        raise EstimationError(
            f"{image.shape[1]} x {image.shape[0]} px is too small for a micro-lens grid: needs "
            f"{_MIN_LENSES} lenses of at least {MIN_PITCH_PX:g} px across",
            stage="grid",
        )
    peaks = _spectrum_peaks(image)
    places = np.concatenate([peaks.frequencies, -peaks.frequencies])
    amplitudes = np.concatenate([peaks.amplitudes] * 2)
    lengths = np.hypot(places[:, 0], places[:, 1])
    reach = 2.5 * peaks.bin_size
    found: list[tuple[float, float, FloatArray]] = []
    for i, j in itertools.permutations(range(len(places)), 2):
        ratio = lengths[j] / lengths[i]
        if not 0.92 < ratio < 1.087:
            continue
        cross = places[i, 0] * places[j, 1] - places[i, 1] * places[j, 0]
        angle = math.degrees(math.atan2(cross, float(places[i] @ places[j])))
        if abs(angle - 90.0) < 5.0:
            members = [i, j]
        elif abs(angle - 60.0) < 5.0:
            distance = np.hypot(*(places - (places[j] - places[i])).T)
            third = int(np.argmin(distance))
            if distance[third] > reach:
                continue
            members = [i, j, third]
        else:
            continue
        pair = np.stack([places[i], places[j]])
        found.append((float(amplitudes[members].min()), float(lengths[i] + lengths[j]), pair))
    evidence = {"peaks": float(len(peaks.amplitudes)), "lattices": float(len(found))}
    if not found:
        raise EstimationError(
            f"{NO_PATTERN} ({len(peaks.amplitudes)} single peaks)", stage="grid", evidence=evidence
        )
    strongest = max(strength for strength, _, _ in found)
    # Thin gaps between lenses make harmonics as strong as the fundamental, so take the lowest
    # frequency.
    strong = [item for item in found if item[0] >= _LOW_FREQUENCY_SHARE * strongest]
    lowest = min(length for _, length, _ in strong)
    best = max(
        (item for item in strong if item[1] < 1.1 * lowest), key=lambda item: (item[0], item[1])
    )
    return best[2], evidence


def _order_basis(basis: FloatArray) -> FloatArray:
    """Return the shortest basis: the vector nearest to +x, and the next at 60 or 90 degrees."""
    a, b = basis[0], basis[1]
    while True:
        if a @ a > b @ b:
            a, b = b, a
        shorter = b - round(float(a @ b) / float(a @ a)) * a
        if shorter @ shorter >= (1.0 - 1e-9) * (b @ b):
            break
        b = shorter
    candidates = [a, b, a + b, a - b]
    shortest = min(float(np.hypot(*vector)) for vector in candidates)
    around = [
        sign * vector
        for vector in candidates
        for sign in (1.0, -1.0)
        if np.hypot(*vector) < 1.25 * shortest
    ]
    angles = np.array([math.atan2(vector[1], vector[0]) for vector in around])
    # Prefer directions slightly towards +y, so that rounding does not decide between -30 and +30
    # degrees.
    first = int(np.argmin(np.abs(angles - 1e-3)))
    onward = np.mod(angles - angles[first], 2.0 * math.pi)
    onward[(onward < 0.5) | (onward > 2.0)] = np.inf
    return np.stack([around[first], around[int(np.argmin(onward))]])


class CellIndex(NamedTuple):
    """The lenses of a lattice in an image, as a list and as a table.

    `indices` (n, 2) and `centers` (n, 2) are the list; `first` is (q, r) of the table's corner,
    `shape` is its size (rows r, columns q).
    """

    indices: IntArray
    centers: FloatArray
    first: IntArray
    shape: tuple[int, int]

    def table_of(self, values: FloatArray) -> FloatArray:
        """Return values (n,) as a table, NaN elsewhere."""
        table = np.full(self.shape, np.nan)
        place = self.indices - self.first
        table[place[:, 1], place[:, 0]] = values
        return table

    def from_table(self, table: FloatArray) -> FloatArray:
        """Return the entries of a table, (n,)."""
        place = self.indices - self.first
        found: FloatArray = table[place[:, 1], place[:, 0]]
        return found


def list_cells(lattice: Lattice, size: tuple[int, int], margin_px: float) -> CellIndex:
    """Return the lenses whose centers are in the image or up to `margin_px` outside it."""
    indices = lattice.inside(size, margin_px)
    return make_cells(indices, lattice.centers(indices))


def make_cells(indices: IntArray, centers: FloatArray) -> CellIndex:
    """Return the lenses (q, r) with their centers as a list and as a table."""
    first, last = indices.min(axis=0), indices.max(axis=0)
    shape = (int(last[1] - first[1]) + 1, int(last[0] - first[0]) + 1)
    return CellIndex(indices, centers, first, shape)


def smooth_over_lenses(cells: CellIndex, values: FloatArray) -> FloatArray:
    """Return the median over 5 x 5 lenses, (n,); NaN entries get the value nearest to them."""
    from scipy.ndimage import distance_transform_edt, median_filter

    table = cells.table_of(values)
    unknown = ~np.isfinite(table)
    if unknown.all():
        return np.full(len(values), np.nan)
    nearest = distance_transform_edt(unknown, return_distances=False, return_indices=True)
    return cells.from_table(median_filter(table[tuple(nearest)], size=5, mode="nearest"))


def measure_brightness(
    image: Float32Array, cells: CellIndex, radius_px: float
) -> tuple[FloatArray, FloatArray]:
    """Return the mean brightness of each micro image, and the median of this over its neighbors."""
    means = np.empty(len(cells.centers))
    _kernels.measure_discs(image, cells.centers, radius_px, means)
    return means, smooth_over_lenses(cells, means)


def fold(
    image: Float32Array,
    lattice: Lattice,
    cells: CellIndex,
    brightness: FloatArray,
    box: tuple[int, int, int, int],
    size: int,
) -> FloatArray:
    """Return the mean cell, (size, size), as a function of the fractional parts of r and q.

    Each lens is divided by its brightness. Cells are placed at the centers of `cells`, which need
    not be on the lattice. Bins into which no pixel falls (if the pitch is a whole number of pixels
    and the lattice is not rotated) are filled from the bins around them.
    """
    inverse = np.asarray(np.linalg.inv(lattice.basis_px), np.float64)
    totals = np.empty((_N_CHUNKS, size, size))
    counts = np.empty_like(totals)
    offsets = cells.centers - lattice.centers(cells.indices)
    _kernels.fold_cell(
        image,
        _kernels.LatticeCells(
            origin=lattice.origin_px,
            inverse=inverse,
            q_first=int(cells.first[0]),
            r_first=int(cells.first[1]),
            offsets=np.stack([cells.table_of(offsets[:, axis]) for axis in range(2)], axis=2),
            brightness=cells.table_of(brightness),
        ),
        _kernels.Box(*box),
        size,
        totals,
        counts,
    )
    total, count = totals.sum(axis=0), counts.sum(axis=0)
    if count.min() < 4.0:
        # Smooth sums and counts over neighboring bins, wider and wider until no bin is empty.
        frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(size)] * 2))
        for sigma in (0.7, 1.0, 1.5, 2.0, 3.0, 5.0):
            kernel = np.exp(-2.0 * (np.pi * sigma * frequency) ** 2)
            spread = np.fft.ifft2(np.fft.fft2(count) * kernel).real
            if spread.min() >= 0.5 * count.mean() or sigma == 5.0:
                total = np.fft.ifft2(np.fft.fft2(total) * kernel).real
                count = np.maximum(spread, 1e-9)
                break
    mean: FloatArray = total / count
    return mean


def _middle_box(shape: tuple[int, int], reach_px: float) -> tuple[int, int, int, int]:
    height, width = shape
    x, y = (width - 1) / 2.0, (height - 1) / 2.0
    return (
        max(0, math.floor(x - reach_px)),
        max(0, math.floor(y - reach_px)),
        min(width, math.ceil(x + reach_px) + 1),
        min(height, math.ceil(y + reach_px) + 1),
    )


def _place_origin(image: Float32Array, basis: FloatArray) -> Lattice:
    """Return the lattice with its origin on the bright center of a micro image, near the middle."""
    height, width = image.shape
    middle = np.array([(width - 1) / 2.0, (height - 1) / 2.0])
    lattice = Lattice(middle, basis)
    pitch = lattice.pitch_px
    cells = list_cells(lattice, (width, height), pitch)
    _, level = measure_brightness(image, cells, 0.6 * pitch)
    size = 24
    table = fold(image, lattice, cells, level, _middle_box(image.shape, 10.0 * pitch), size)
    # Use the fundamental frequencies only; their sum is largest at the micro-image centers.
    transform = np.fft.fft2(table)
    keep = np.zeros_like(transform)
    orders = [(1, 0), (0, 1), (1, -1)] if lattice.layout == "hexagonal" else [(1, 0), (0, 1)]
    # The lattice vectors are 60 degrees apart, so the reciprocal ones are 120 degrees apart. The
    # three shortest reciprocal vectors are (1, 0), (0, 1) and their sum.
    if lattice.layout == "hexagonal":
        orders[2] = (1, 1)
    for q, r in orders:
        keep[r % size, q % size] = transform[r % size, q % size]
        keep[-r % size, -q % size] = transform[-r % size, -q % size]
    padded = np.zeros((192, 192), complex)
    half = size // 2
    picks = np.r_[0:half, -half:0]
    padded[np.ix_(picks, picks)] = keep[np.ix_(picks, picks)]
    smooth = np.fft.ifft2(padded).real
    r_part, q_part = (np.array(np.unravel_index(int(np.argmax(smooth)), smooth.shape)) / 192.0)[:2]
    parts = np.array([q_part, r_part])
    parts -= np.round(parts)
    return Lattice(middle + parts @ basis, basis)


def _check_density(image: Float32Array, lattice: Lattice) -> FloatArray | None:
    """Return another basis if this lattice is too coarse or too fine, else None.

    Every center must be brighter than the gaps around it. If every second or third is not, the
    lattice is too fine (a harmonic was taken for it). If the gaps are as bright as the centers, it
    is too coarse (the lattice of a single lens type was found).
    """
    height, width = image.shape
    pitch = lattice.pitch_px
    a, b = lattice.basis_px
    cells = list_cells(lattice, (width, height), -1.2 * pitch)
    if len(cells.indices) < 16:
        return None
    hexagonal = lattice.layout == "hexagonal"
    gaps = [(a + b) / 3.0, (2.0 * b - a) / 3.0] if hexagonal else [(a + b) / 2.0]
    small = 0.18 * pitch
    center = _disc_means(image, cells.centers, small)
    around = [
        _disc_means(image, cells.centers + sign * gap, small)
        for gap in (gaps if hexagonal else [*gaps, (a - b) / 2.0])
        for sign in (1.0, -1.0)
    ]
    level = np.maximum(smooth_over_lenses(cells, center), 1e-9)
    contrast = (center - np.mean(around, axis=0)) / level
    q, r = cells.indices.T
    # The lattice is too fine if only the lenses of a sub-lattice have bright centers.
    finer: list[tuple[BoolArray, FloatArray]] = [
        (q % 2 == 0, np.stack([2.0 * a, b])),
        (r % 2 == 0, np.stack([a, 2.0 * b])),
        ((q + r) % 2 == 0, np.stack([a + b, b - a])),
        ((q + 2 * r) % 3 == 0, np.stack([a + b, 2.0 * b - a])),
        ((q % 2 == 0) & (r % 2 == 0), np.stack([2.0 * a, 2.0 * b])),
        ((q % 3 == 0) & (r % 3 == 0), np.stack([3.0 * a, 3.0 * b])),
    ]
    overall = float(np.median(contrast))
    for chosen, basis in finer:
        for shift_q, shift_r in itertools.product(range(3), repeat=2):
            rolled = _shifted(cells, chosen, shift_q, shift_r)
            if rolled.sum() < 8 or (~rolled).sum() < 8:
                continue
            inside, outside = np.median(contrast[rolled]), np.median(contrast[~rolled])
            if inside > 0.05 and outside < -0.2 * inside:
                return basis
    # The lattice is too coarse if the gaps are as bright as the centers and other places are dark.
    some = np.random.default_rng(0).permutation(len(cells.centers))[:1000]
    depth = max(
        float(np.median((center[some] - _disc_means(image, place, 0.6 * small)) / level[some]))
        for place in (
            cells.centers[some] + (i / 6.0) * a + (j / 6.0) * b
            for i, j in itertools.product(range(6), repeat=2)
        )
    )
    if overall < 0.5 * depth:
        if hexagonal:
            return np.stack([(a + b) / 3.0, (2.0 * b - a) / 3.0])
        return np.stack([(a + b) / 2.0, (b - a) / 2.0])
    return None


def _shifted(cells: CellIndex, chosen: BoolArray, shift_q: int, shift_r: int) -> BoolArray:
    """Return the membership of lens (q + shift_q, r + shift_r); False outside."""
    table = cells.table_of(chosen.astype(float))
    rolled = np.roll(table, (-shift_r, -shift_q), axis=(0, 1))
    found: BoolArray = cells.from_table(rolled) == 1.0
    return found


def _disc_means(image: Float32Array, centers: FloatArray, radius_px: float) -> FloatArray:
    means = np.empty(len(centers))
    _kernels.measure_discs(image, np.ascontiguousarray(centers), radius_px, means)
    return means
