"""Estimate the virtual depth at which each lens type is in focus, from scene frames alone.

Where two lens types see the same texture equally sharp, its inverse virtual depth is the mean of
the types' inverse focal planes. This holds for any shape of the blur, because all micro apertures
have one size. So the depth at which the sharpness of two types is equal (a crossing) gives the sum
of their inverse focal planes. The overlap discs of a white image give their ratios
(docs/theory/virtual-depth.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError
from lifcal.imaging.frames import Frame
from lifcal.virtual import _kernels_refine
from lifcal.virtual.depth import DepthOptions, estimate_virtual_depth, find_depth_range, make_spline
from lifcal.virtual.engine import FocusEngine
from lifcal.virtual.optics import LensOptics

_SCALE = 0.25
"""Scale of the depth maps that sharpness is measured on; full maps would only take longer."""
_ROUNDS = 2
"""Depth maps of the first round lack the displacements by defocus; the second round has them."""
_CORE = 0.6
"""Fraction of the used radius within which sharpness is measured. There the pixels of all lens
types are equally bright, so equally noisy."""
_BIN = 0.02
"""Width of a bin of the logarithm of 1/u."""
_FEWEST_PIXELS = 200
"""Least number of pixels of a bin that is used."""
_LEAST_SIGMAS = 5.0
"""Least significance of a difference in sharpness for which lens types count as different."""
_LEAST_CONTRAST = 0.03
"""Least contrast (a - b) / (a + b) between the sharpness a and b of two lens types. Below it they
count as one type."""
_MOST_EXTRAPOLATION = 0.35
"""Largest relative distance of a crossing from the range of depths that were seen."""
_CROSSING_SIGMA = 0.012
_EXTRAPOLATION_SIGMA = 0.6
"""Relative uncertainty of a crossing within the depths that were seen, and its increase for each
unit of relative distance beyond them."""
_MIDDLE = (0.1, 0.9)
"""Quantiles of the depths between which depths count as well seen."""


@dataclass(frozen=True, eq=False)
class FocalPlanes:
    """Focal planes of the lens types and how they were found.

    Parameters
    ----------
    grid : MicroLensGrid
        The grid with `focal_planes` set, and with lens types if sharpness revealed them.
    planes, sigmas : (n_types,) float64
        Virtual depth `u` at which each type is in focus, and its standard deviation.
    crossings : dict
        For each pair of types, the virtual depth at which they are equally sharp and its standard
        deviation.
    findings : tuple of Finding
        Findings about the images.
    """

    grid: MicroLensGrid
    planes: FloatArray
    sigmas: FloatArray
    crossings: dict[tuple[int, int], tuple[float, float]]
    findings: tuple[Finding, ...] = ()


def estimate_focal_planes(
    frames: Iterable[Frame],
    grid: MicroLensGrid,
    vignetting: Float32Array | None = None,
    *,
    bayer: str | None = None,
) -> FocalPlanes:
    """Estimate the focal planes from textured frames whose depths reach over or near them.

    A grid of one type is also tried with the types that its layout allows: the types of some
    cameras look alike in a white image.

    Parameters
    ----------
    frames : iterable of Frame
        A few are enough.
    grid : MicroLensGrid
    vignetting, bayer
        As for `FocusEngine`.

    Raises
    ------
    EstimationError
        If there is one lens type only, too little texture, or depths far from all focal planes.
    """
    findings: list[Finding] = []
    blind = replace(grid, focal_planes=None)
    engine = FocusEngine(blind, vignetting, bayer=bayer)
    images = _choose_images(frames, engine)
    if grid.n_types == 1:
        typed = _suppose_types(blind)
        if typed is None or not _measure(images, typed, blind).differs():
            raise EstimationError(
                "all lenses are equally sharp at every depth: one lens type, whose focal plane "
                "cannot be told from sharpness",
                stage="focal planes",
            )
        blind = typed
        findings.append(
            Finding.of(
                "lens-types-by-sharpness",
                f"{typed.n_types} lens types were found by their sharpness",
                types=typed.n_types,
            )
        )
    known = blind
    for _ in range(_ROUNDS):
        crossings = _measure(images, blind, known).crossings()
        rhos, sigmas = _solve(crossings, blind)
        known = replace(blind, focal_planes=1.0 / rhos)
    sigmas = sigmas / rhos**2
    if blind.n_types != grid.n_types:
        known, order = _order_types(known)
        sigmas = sigmas[order]
    assert known.focal_planes is not None
    return FocalPlanes(
        known,
        np.array(known.focal_planes),
        sigmas,
        {pair: (1.0 / rho, sigma / rho**2) for pair, (rho, sigma) in crossings.items()},
        tuple(findings),
    )


def _choose_images(
    frames: Iterable[Frame], engine: FocusEngine
) -> list[tuple[Float32Array, tuple[float, float]]]:
    """Return the devignetted frames that have a clear depth, each with its range."""
    images = []
    for frame in frames:
        image = engine.devignette(frame)
        try:
            images.append((image, find_depth_range(image, engine.grid, optics=engine.optics)))
        except EstimationError:
            continue
    if not images:
        raise EstimationError("no frame has a clear virtual depth", stage="focal planes")
    return images


@dataclass(frozen=True, eq=False)
class _Line:
    """The contrast of two types as a linear function of 1/u, and the range of 1/u seen."""

    slope: float
    offset: float
    covariance: FloatArray
    seen: tuple[float, float]

    @property
    def span(self) -> float:
        return abs(self.slope * (self.seen[1] - self.seen[0]))

    def at(self, rho: float) -> tuple[float, float]:
        """Return the contrast at an inverse depth, and its sigma."""
        row = np.array([rho, 1.0])
        return self.slope * rho + self.offset, math.sqrt(float(row @ self.covariance @ row))

    def crossing(self) -> tuple[float, float]:
        """Return the inverse depth at which the contrast is zero, and its sigma."""
        rho = -self.offset / self.slope
        return rho, self.at(rho)[1] / abs(self.slope)


@dataclass(frozen=True, eq=False)
class _Sharpness:
    """Sums of squared gradients by lens type, for bins of inverse virtual depth.

    Only pixels that both types of a pair see are counted: `energy[pair]` is (n_bins, 2),
    `counts[pair]` is (n_bins,).
    """

    rhos: FloatArray
    energy: dict[tuple[int, int], FloatArray]
    counts: dict[tuple[int, int], FloatArray]

    def contrast(self, pair: tuple[int, int]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return rho, (a - b) / (a + b) and count for each bin with enough pixels."""
        enough = self.counts[pair] >= _FEWEST_PIXELS
        a, b = self.energy[pair][enough].T
        return self.rhos[enough], (a - b) / np.maximum(a + b, 1e-30), self.counts[pair][enough]

    def fit(self, pair: tuple[int, int]) -> _Line | None:
        """Fit a linear function of 1/u to the contrast of a pair; None if there are too few depths.

        The contrast is nearly linear around the crossing and bends far from it, so bins with a
        small contrast get more weight.
        """
        rho, contrast, count = self.contrast(pair)
        if len(rho) < 4:
            return None
        order = np.argsort(np.abs(rho))
        rho, contrast, count = rho[order], contrast[order], count[order]
        weight = np.sqrt(count) / (0.05 + np.abs(contrast))
        (slope, offset), covariance = np.polyfit(rho, contrast, 1, w=weight, cov=True)
        seen = np.interp(_MIDDLE, np.cumsum(count) / count.sum(), rho)
        return _Line(float(slope), float(offset), covariance, (float(seen[0]), float(seen[1])))

    def differs(self) -> bool:
        """Tell whether any two types differ significantly in sharpness at some depth."""
        lines = [line for line in map(self.fit, self.energy) if line is not None]
        return any(
            abs(value) > max(_LEAST_CONTRAST, _LEAST_SIGMAS * sigma)
            for line in lines
            for value, sigma in map(line.at, line.seen)
        )

    def crossings(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Return the inverse virtual depth at which the types of each pair are equally sharp.

        Each comes with its standard deviation. Pairs that hardly differ, or cross far from all
        depths that were seen, are left out.
        """
        found = {}
        for pair in self.energy:
            line = self.fit(pair)
            if line is None or line.span < _LEAST_CONTRAST:
                continue
            crossing, sigma = line.crossing()
            low, high = np.abs(line.seen)
            beyond = max(low / abs(crossing) - 1.0, abs(crossing) / high - 1.0, 0.0)
            if beyond < _MOST_EXTRAPOLATION:
                extra = abs(crossing) * (_CROSSING_SIGMA + _EXTRAPOLATION_SIGMA * beyond)
                found[pair] = (crossing, math.hypot(sigma, extra))
        if not found:
            raise EstimationError(
                "no two lens types are equally sharp at any depth of these frames: the depths are "
                "too few, or too far from the focal planes",
                stage="focal planes",
                evidence={"depths": [float(1.0 / rho) for rho in self.rhos[[0, -1]]]},
            )
        return found


def _measure(
    images: list[tuple[Float32Array, tuple[float, float]]],
    grid: MicroLensGrid,
    known: MicroLensGrid,
) -> _Sharpness:
    """Measure the sharpness of the types of `grid` at the depths found with the grid `known`."""
    optics = LensOptics.from_grid(grid)
    lenses = replace(optics, radius_px=_CORE * optics.radius_px).pack()
    known_optics = LensOptics.from_grid(known)
    pairs = list(itertools.combinations(range(grid.n_types), 2))
    rhos: list[FloatArray] = []
    energies: list[FloatArray] = []
    for image, depth_range in images:
        options = DepthOptions(_SCALE, depth_range)
        depth = estimate_virtual_depth(image, known, options, optics=known_optics)
        energy = np.empty((*depth.u.shape, grid.n_types))
        rho = np.asarray(1.0 / depth.u, np.float64)
        _kernels_refine.type_sharpness(
            make_spline(image), grid.index.table, lenses, rho, 1.0 / _SCALE, depth.noise**2, energy
        )
        rhos.append(rho.ravel())
        energies.append(energy.reshape(-1, grid.n_types))
    rho, energy = np.concatenate(rhos), np.concatenate(energies)
    seen = np.isfinite(rho)
    rho, energy = rho[seen], energy[seen]
    bins = np.round(np.log(np.abs(rho)) / _BIN).astype(np.int64)
    bins -= bins.min(initial=0)
    n_bins = int(bins.max(initial=0)) + 1
    total = np.maximum(np.bincount(bins, minlength=n_bins), 1)
    centers = np.bincount(bins, rho, n_bins) / total
    sums: dict[tuple[int, int], FloatArray] = {}
    counts: dict[tuple[int, int], FloatArray] = {}
    for pair in pairs:
        both = np.isfinite(energy[:, pair]).all(axis=1)
        counts[pair] = np.bincount(bins[both], minlength=n_bins).astype(np.float64)
        sums[pair] = np.stack(
            [np.bincount(bins[both], energy[both, kind], n_bins) for kind in pair], axis=1
        ).astype(np.float64)
    return _Sharpness(centers, sums, counts)


def _solve(
    crossings: dict[tuple[int, int], tuple[float, float]], grid: MicroLensGrid
) -> tuple[FloatArray, FloatArray]:
    """Return the inverse focal planes and their sigmas, from the means of pairs.

    Where the overlap discs give the ratios of the planes, only their common scale is estimated.
    """
    values, sigmas = np.array(list(crossings.values())).T
    means = np.zeros((len(crossings), grid.n_types))
    for row, pair in enumerate(crossings):
        means[row, list(pair)] = 0.5
    discs = grid.discs
    if discs is not None and len(set(discs.micro_px)) == grid.n_types:
        basis = np.array(discs.micro_px)[:, None]
    elif len(crossings) >= 3:
        basis = np.eye(grid.n_types)
    else:
        raise EstimationError(
            f"{len(crossings)} of the crossings of {grid.n_types} lens types were found, which do "
            "not tell their focal planes without the overlap discs of a white image",
            stage="focal planes",
        )
    design = means @ basis / sigmas[:, None]
    covariance = basis @ np.linalg.inv(design.T @ design) @ basis.T
    rhos: FloatArray = covariance @ (means / sigmas[:, None]).T @ (values / sigmas)
    return rhos, np.sqrt(np.diag(covariance))


def _suppose_types(grid: MicroLensGrid) -> MicroLensGrid | None:
    """Return the grid with the types that its layout allows: three if hexagonal, two if square."""
    if grid.lattice is None or grid.indices_qr is None:
        return None
    n_types, rule = (3, (1, 2, 0)) if grid.lattice.layout == "hexagonal" else (2, (1, 1, 0))
    a, b = grid.lattice.basis_px
    cosine = float(a @ b / (np.hypot(*a) * np.hypot(*b)))
    if abs(cosine - (0.5 if n_types == 3 else 0.0)) > 0.1:
        return None
    lattice = Lattice(grid.lattice.origin_px, grid.lattice.basis_px, n_types, rule)
    discs = grid.discs
    if discs is not None:
        discs = replace(discs, micro_px=discs.micro_px * n_types)
    return replace(
        grid,
        lattice=lattice,
        n_types=n_types,
        lens_types=lattice.types(grid.indices_qr),
        discs=discs,
    )


def _order_types(grid: MicroLensGrid) -> tuple[MicroLensGrid, IntArray]:
    """Number the types by ascending |focal plane|: type 0 is in focus at the least |u|."""
    assert grid.focal_planes is not None
    assert grid.lattice is not None
    assert grid.indices_qr is not None
    order = np.argsort(np.abs(grid.focal_planes))
    rank = np.argsort(order)
    # For two or three types every order can be written as a rule i q + j r + k mod n.
    n, (i, j, k) = grid.n_types, grid.lattice.type_rule
    for sign, offset in itertools.product((1, n - 1), range(n)):
        rule = (i * sign % n, j * sign % n, (k * sign + offset) % n)
        if all(rank[t] == (sign * t + offset) % n for t in range(n)):
            lattice = replace(grid.lattice, type_rule=rule)
            ordered = replace(
                grid,
                lattice=lattice,
                lens_types=lattice.types(grid.indices_qr),
                focal_planes=grid.focal_planes[order],
            )
            return ordered, order
    raise AssertionError("no rule orders the types")
