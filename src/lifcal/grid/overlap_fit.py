"""Lens types and overlap discs from the fall-off of brightness inside the micro images.

The brightness at distance `m` from a micro-image center is the area that two discs share at that
distance: the main aperture's image (the same for all lenses) and the micro aperture's (one for
each lens type). See docs/theory/grid.md.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera.apertures import OverlapDiscs, compute_disc_overlap
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.diagnostics import Finding
from lifcal.grid import _kernels
from lifcal.grid.lattice_search import make_cells, measure_brightness

_REACH = 0.75
"""Radius up to which profiles of brightness are measured, in pitches. It includes parts of the
neighbors, whose light is fitted too."""
_FIT_REACH = 0.62
"""Radius up to which profiles are fitted, in pitches. Hexagonal cells reach to 0.58; farther out,
most light comes from the neighbors."""
_N_COARSE = 6
"""Number of rings, from the center to the border, in which the brightness of micro images is
compared to find the lens types."""
_LEAST_DIFFERENCE = 0.01
"""Smallest difference between lens types in the brightness of a ring, relative to the mean."""
_LEAST_SIGMAS = 8.0
"""Number of standard deviations by which lens types must differ to be more than chance."""
_MATCH_FLOOR = 0.003
"""Error of the brightness in a ring that the disc model has in any case; it is added to the
noise."""
_MATCH_CLEAR = 50.0
"""The best order of the types is clear if the sum of squared residuals, in standard deviations, of
every other order is larger than four times that of the best order plus this number."""
_FILL_RINGS = ((0.0, 0.25), (0.35, 0.5))
"""Inner and outer radius, in pitches, of the two areas whose brightness is compared: the middle of
micro images, and a ring near their borders."""
_N_ANGLES = 48
"""Number of directions over which the brightness of a ring is averaged."""
_GOOD_RMS = 0.01
"""Root mean square residual of a fitted profile, relative to its maximum, below which no other
start value is tried."""
_WORST_RMS = 0.04
"""Root mean square residual of a fitted profile, relative to its maximum, above which two discs do
not describe the fall-off."""
_WORST_SIGMA = 0.15
"""Largest relative standard deviation of a disc's radius that is accepted, for a white image."""
_WORST_SIGMA_SCENE = 0.06
"""Largest relative standard deviation of a disc's radius that is accepted, for frames of a scene.
It is stricter, because the standard deviation does not include errors that the content of the scene
causes."""
_APERTURE = 0.45
"""Radius of a micro aperture, in pitches, with which the direction of light at the rim of shaded
micro images is computed. Lenses that touch have 0.5."""
_MOST_OBLIQUE = 1.0
"""Largest fall-off q by oblique light, for distances in pitches. At 1, the array is one pitch away
from the sensor, and light reaches the border of a micro image at 27 degrees."""
BAYER_BLUR_PX2 = 0.413 * 0.5 + 0.587 * 0.25
"""Variance, along an axis, of the blur that bilinear interpolation of a color mosaic adds to the
luminance. On average it is 0.5 px^2 for red and blue and 0.25 px^2 for green."""


@dataclass(frozen=True, eq=False)
class Profiles:
    """Brightness of each micro image in rings about its center, relative to its surroundings.

    Parameters
    ----------
    step_px : float
    totals, counts, radii : (n_lenses, n_rings) float64
        Sum of the pixels' values, number of pixels, sum of their distances.
    usable : (n_lenses,) bool
    """

    step_px: float
    totals: FloatArray
    counts: FloatArray
    radii: FloatArray
    usable: npt.NDArray[np.bool_]

    def mean(self, chosen: npt.NDArray[np.bool_]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return radius, brightness and number of pixels for each ring, over the lenses chosen."""
        chosen = chosen & self.usable
        count = self.counts[chosen].sum(axis=0)
        safe = np.maximum(count, 1.0)
        return self.radii[chosen].sum(axis=0) / safe, self.totals[chosen].sum(axis=0) / safe, count

    def edge_radius_px(self, level: float, limit_px: float) -> float:
        """Return the radius at which the mean falls to `level` times its value in the middle.

        The result is at most `limit_px`.
        """
        radius, value, count = self.mean(self.usable)
        known = count > 0
        radius, value = radius[known], value[known]
        if len(radius) < 3:
            return limit_px
        top = float(value[radius <= max(0.25 * limit_px, radius[1])].mean())
        below = np.flatnonzero((value < level * top) & (radius <= limit_px))
        if not below.size or below[0] == 0:
            return limit_px
        i = int(below[0])
        share = (value[i - 1] - level * top) / (value[i - 1] - value[i])
        return float(max(1.0, min(limit_px, radius[i - 1] + share * (radius[i] - radius[i - 1]))))


def measure_profiles(
    image: Float32Array, grid: MicroLensGrid, used: npt.NDArray[np.bool_]
) -> Profiles:
    """Measure the rings of all micro images."""
    pitch = grid.pitch_px
    step = float(np.clip(pitch / 48.0, 0.25, 1.0))
    n_rings = math.ceil(_REACH * pitch / step)
    n = len(grid)
    totals, counts, radii = (np.empty((n, n_rings)) for _ in range(3))
    _kernels.measure_rings(image, grid.centers_raw_px, step, totals, counts, radii)
    assert grid.lattice is not None
    assert grid.indices_qr is not None
    cells = make_cells(grid.indices_qr, grid.centers_raw_px)
    _, level = measure_brightness(image, cells, 0.6 * pitch)
    width, height = grid.image_size
    reach = n_rings * step
    whole = (
        (grid.centers_raw_px >= reach)
        & (grid.centers_raw_px <= np.array([width, height]) - 1 - reach)
    ).all(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        usable = used & whole & (level > 0.0)
        totals = totals / np.where(level > 0.0, level, np.nan)[:, None]
    return Profiles(step, totals, counts, radii, usable)


def measure_fill(image: Float32Array, grid: MicroLensGrid) -> float:
    """Return the brightness of micro images near their borders relative to their middles.

    The value depends on the aperture, because the main aperture's image fills the micro images more
    or less. The content of a scene changes it by a few per cent. It is NaN if there is no complete
    micro image, or if the grid is a list of centers.
    """
    if grid.lattice is None:
        return math.nan
    profiles = measure_profiles(image, grid, np.ones(len(grid), np.bool_))
    radius, value, count = profiles.mean(profiles.usable)
    radius = radius / grid.pitch_px
    middle, border = ((count > 0) & (low <= radius) & (radius < high) for low, high in _FILL_RINGS)
    if not (middle.any() and border.any()):
        return math.nan
    return float(value[border].mean() / max(float(value[middle].mean()), 1e-9))


@dataclass(frozen=True, eq=False)
class FoundTypes:
    """A lattice with its lens types, and findings about them."""

    lattice: Lattice
    findings: tuple[Finding, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)


def find_types(
    profiles: Profiles,
    lattice: Lattice,
    indices_qr: IntArray,
    used: npt.NDArray[np.bool_],
    n_types: int | None = None,
) -> FoundTypes:
    """Find the lens types by comparing the brightness profiles of sub-lattices.

    On a hexagonal lattice, three types with the rule (1, 2, 0) are tried; on a square one, two
    types in a checkerboard, and three types along either diagonal.
    """
    if n_types == 1:
        return FoundTypes(replace(lattice, n_types=1, type_rule=(0, 0, 0)))
    hexagonal = lattice.layout == "hexagonal"
    candidates = [(3, (1, 2, 0))] if hexagonal else [(2, (1, 1, 0)), (3, (1, 1, 0)), (3, (1, 2, 0))]
    if n_types is not None:
        candidates = [item for item in candidates if item[0] == n_types] or candidates[:0]
    rings = _coarse_rings(profiles, lattice.pitch_px)
    chosen = used & profiles.usable
    best: tuple[float, float, Lattice] | None = None
    for number, rule in candidates:
        trial = replace(lattice, n_types=number, type_rule=rule)
        types = trial.types(indices_qr)
        sigmas, difference = _separation(rings, types, chosen, number)
        if best is None or sigmas > best[0]:
            best = (sigmas, difference, trial)
    if best is None:
        return FoundTypes(
            replace(lattice, n_types=1, type_rule=(0, 0, 0)),
            (
                Finding.of(
                    "lens-types-misfit",
                    f"{n_types} lens types are not possible on a {lattice.layout} grid: all lenses "
                    "are taken to be of one type",
                    types=n_types,
                    layout=lattice.layout,
                ),
            ),
        )
    sigmas, difference, trial = best
    evidence = {"sigmas": sigmas, "difference": difference}
    if n_types is None and not (sigmas > _LEAST_SIGMAS and difference > _LEAST_DIFFERENCE):
        return FoundTypes(replace(lattice, n_types=1, type_rule=(0, 0, 0)), (), evidence)
    return FoundTypes(trial, (), evidence)


def _coarse_rings(profiles: Profiles, pitch_px: float) -> FloatArray:
    """Return the mean brightness in a few rings up to half the pitch, (n_lenses, 6).

    The values are relative to the lens' own mean: lens types differ in the shape of the fall-off,
    while dirt changes the brightness as a whole.
    """
    radius = (np.arange(profiles.totals.shape[1]) + 0.5) * profiles.step_px
    ring = np.minimum((radius / (0.5 * pitch_px) * _N_COARSE).astype(int), _N_COARSE)
    rings = np.empty((len(profiles.totals), _N_COARSE))
    for i in range(_N_COARSE):
        count = profiles.counts[:, ring == i].sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            rings[:, i] = profiles.totals[:, ring == i].sum(axis=1) / count
    with np.errstate(invalid="ignore", divide="ignore"):
        rings /= rings.mean(axis=1, keepdims=True)
    return rings


def _compare_rings(
    rings: FloatArray, types: IntArray, chosen: npt.NDArray[np.bool_], number: int
) -> tuple[FloatArray, FloatArray] | None:
    """Return the median of each ring for each type, and its standard error.

    The result is None if there are too few lenses.
    """
    chosen = chosen & np.isfinite(rings).all(axis=1)
    groups = [rings[chosen & (types == t)] for t in range(number)]
    if min(len(group) for group in groups) < 5:
        return None
    medians = np.array([np.median(group, axis=0) for group in groups])
    # Standard error of a median.
    errors = np.array(
        [
            1.2533
            * 1.4826
            * np.median(np.abs(group - np.median(group, axis=0)), axis=0)
            / math.sqrt(len(group))
            for group in groups
        ]
    )
    return medians, np.maximum(errors, 1e-5)


def _separation(
    rings: FloatArray, types: IntArray, chosen: npt.NDArray[np.bool_], number: int
) -> tuple[float, float]:
    """Return the largest difference between types, in standard errors and as a value."""
    compared = _compare_rings(rings, types, chosen, number)
    if compared is None:
        return 0.0, 0.0
    medians, errors = compared
    sigmas, difference = 0.0, 0.0
    for a, b in itertools.combinations(range(number), 2):
        delta = np.abs(medians[a] - medians[b])
        ratio = delta / np.hypot(errors[a], errors[b])
        ring = int(np.argmax(np.where(delta > _LEAST_DIFFERENCE, ratio, 0.0)))
        if delta[ring] > _LEAST_DIFFERENCE and ratio[ring] > sigmas:
            sigmas, difference = float(ratio[ring]), float(delta[ring])
    return sigmas, difference


def match_types(image: Float32Array, grid: MicroLensGrid) -> tuple[int, ...] | None:
    """Return, for each lens type of the grid, the type whose overlap discs its lenses resemble.

    The result is (0, 1, 2) if the types agree. It is None if the image does not show the types:
    they are alike, there are too few lenses, or the grid is a list or has no discs.
    """
    n = grid.n_types
    if n == 1 or grid.lattice is None or grid.discs is None:
        return None
    profiles = measure_profiles(image, grid, np.ones(len(grid), np.bool_))
    rings = _coarse_rings(profiles, grid.pitch_px)
    compared = _compare_rings(rings, grid.lens_types, profiles.usable, n)
    if compared is None:
        return None
    seen, errors = compared
    radius, _, count = profiles.mean(profiles.usable)
    expected = np.concatenate(
        [
            _coarse_rings(
                Profiles(
                    profiles.step_px,
                    compute_blurred_overlap(grid.discs.main_px, micro, radius)[None] * count,
                    count[None],
                    (radius * count)[None],
                    np.ones(1, np.bool_),
                ),
                grid.pitch_px,
            )
            for micro in grid.discs.micro_px
        ]
    )
    # Subtract the mean over the types: a deviation that all types have in common is vignetting that
    # the discs do not describe.
    seen, expected = seen - seen.mean(axis=0), expected - expected.mean(axis=0)
    variance = errors**2 + _MATCH_FLOOR**2
    misfit = {
        order: float(np.sum((seen - expected[list(order)]) ** 2 / variance))
        for order in itertools.permutations(range(n))
    }
    best, second = sorted(misfit, key=misfit.__getitem__)[:2]
    return best if misfit[second] > 4.0 * misfit[best] + _MATCH_CLEAR else None


@dataclass(frozen=True)
class FittedDiscs:
    """Overlap discs, or None if the fall-off does not determine them, with findings."""

    discs: OverlapDiscs | None
    findings: tuple[Finding, ...] = ()
    rms: float = math.nan
    relative_sigma: float = math.nan


def fit_discs(
    profiles: Profiles,
    lattice: Lattice,
    types: IntArray,
    used: npt.NDArray[np.bool_],
    *,
    from_scene: bool = False,
    blur_px2: float = 0.0,
    shaded: bool = False,
) -> FittedDiscs:
    """Fit the radii of the two discs to the mean profile of each lens type.

    The model includes the light of the neighbors and the averaging over the area of a pixel;
    `blur_px2` is the variance of additional blur along an axis. If the light is `shaded`, micro
    images also become darker outward because their rim receives light more obliquely. The factor is
    `(1 + q d^2)^-2`, where d is the distance of the pixel from the middle of the used part of the
    micro aperture, which moves outward along with the pixel. The number q is fitted too: without
    it, the discs would have to explain this fall-off. With one lens type the image does not show
    which disc is which, and the larger one is called the main disc.
    """
    from scipy.optimize import least_squares

    pitch, n_types = lattice.pitch_px, lattice.n_types
    rows = []
    for t in range(n_types):
        radius, value, count = profiles.mean(used & (types == t))
        keep = (count > 0) & (radius <= _FIT_REACH * pitch)
        if keep.sum() < 6:
            text = "too few whole micro images for the overlap discs"
            return FittedDiscs(None, (Finding.of("discs-missing", text),))
        rows.append((radius[keep], value[keep], np.sqrt(count[keep])))
    scale = max(float(value.max()) for _, value, _ in rows)
    rows = [(radius, value / scale, weight) for radius, value, weight in rows]
    neighbors = _neighbors(lattice, 1.3 * pitch)
    geometry = [
        _ring_distances(radius, neighbors, lattice, t) for t, (radius, _, _) in enumerate(rows)
    ]
    table_radius = np.linspace(0.0, 2.1 * pitch, 600)

    def model(parameters: FloatArray) -> list[FloatArray]:
        main, micro = parameters[0] * pitch, parameters[1 : 1 + n_types] * pitch
        gains, background = parameters[1 + n_types : 1 + 2 * n_types], parameters[1 + 2 * n_types]
        curves = []
        for t in range(n_types):
            curve = compute_blurred_overlap(main, micro[t], table_radius, blur_px2)
            if shaded:
                _, centroid = compute_disc_overlap(micro[t], main, table_radius)
                away = table_radius / pitch - _APERTURE * np.nan_to_num(centroid) / micro[t]
                curve = curve * (1.0 + parameters[-1] * away**2) ** -2
            curves.append(gains[t] * curve)
        found = []
        for own, others in geometry:
            total = np.zeros(len(own[1])) + background
            total += np.interp(own[1], table_radius, curves[own[0]])
            for kind, distances in others:
                light = np.interp(distances.ravel(), table_radius, curves[kind])
                total += light.reshape(distances.shape).mean(axis=1)
            found.append(total)
        return found

    def residuals(parameters: FloatArray) -> FloatArray:
        return np.concatenate(
            [
                (got - value) * weight / np.sqrt(np.mean(weight**2))
                for got, (_, value, weight) in zip(model(parameters), rows, strict=True)
            ]
        )

    best = None
    for main, micro in ((0.4, 0.15), (0.3, 0.1), (0.48, 0.2), (0.2, 0.3), (0.07, 0.15)):
        start = np.array([main, *[micro] * n_types, *[1.0] * n_types, 0.0, *[0.1] * shaded])
        low = np.array([0.03, *[0.005] * n_types, *[0.0] * n_types, -0.5, *[0.0] * shaded])
        high = np.array([1.0, *[0.7] * n_types, *[10.0] * n_types, 0.9, *[_MOST_OBLIQUE] * shaded])
        trial = least_squares(residuals, start, bounds=(low, high), x_scale=0.1)
        if best is None or trial.cost < best.cost * (1.0 - 1e-3):
            best = trial
        if np.sqrt(np.mean(best.fun**2)) < _GOOD_RMS:
            break
    assert best is not None
    rms = float(np.sqrt(np.mean(best.fun**2)))
    # The uncertainty of the radii assumes that the errors of ten neighboring rings are equal.
    variance = 10.0 * rms**2 * np.diag(np.linalg.pinv(best.jac.T @ best.jac))
    relative = np.sqrt(variance[: 1 + n_types]) / best.x[: 1 + n_types]
    main = float(best.x[0]) * pitch
    radii = [float(radius) * pitch for radius in best.x[1 : 1 + n_types]]
    findings = []
    if n_types == 1 and radii[0] > main:
        main, radii = radii[0], [main]
    at_bound = min(radii) < 0.006 * pitch or main < 0.031 * pitch or main > 0.999 * pitch
    worst = float(relative.max())
    limit = _WORST_SIGMA_SCENE if from_scene else _WORST_SIGMA
    if at_bound or rms > _WORST_RMS or not worst <= limit:
        return FittedDiscs(
            None,
            (
                Finding.of(
                    "discs-missing",
                    "no overlap discs: the fall-off inside the micro images is not that of two "
                    f"discs, or does not determine their radii (rms {rms:.3f}, radii to "
                    f"{100 * worst:.0f} %)",
                    rms=rms,
                    relative_sigma=worst,
                ),
            ),
            rms,
        )
    if from_scene:
        findings.append(
            Finding.of(
                "discs-from-frames",
                "the overlap discs are from scene frames: a white image is better for them",
            )
        )
    if worst > 0.03:
        findings.append(
            Finding.of(
                "discs-uncertain",
                f"the radii of the overlap discs are known to about {100 * worst:.0f} % only",
                relative_sigma=worst,
            )
        )
    return FittedDiscs(OverlapDiscs(main, tuple(radii)), tuple(findings), rms, worst)


def _neighbors(lattice: Lattice, reach_px: float) -> IntArray:
    """Return (q, r) of the lenses around lens (0, 0)."""
    steps = np.array([(q, r) for q in range(-3, 4) for r in range(-3, 4) if (q, r) != (0, 0)])
    distance = np.hypot(*(steps @ lattice.basis_px).T)
    found: IntArray = steps[distance < reach_px]
    return found


def _ring_distances(
    radius: FloatArray, neighbors: IntArray, lattice: Lattice, own: int
) -> tuple[tuple[int, FloatArray], list[tuple[int, FloatArray]]]:
    """Return the distances of the points of a ring about a lens from it and from its neighbors."""
    angles = (np.arange(_N_ANGLES) + 0.5) * (2.0 * math.pi / _N_ANGLES)
    points = radius[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    i, j, _ = lattice.type_rule
    others = []
    for q, r in neighbors:
        kind = int((own + i * q + j * r) % lattice.n_types)
        place = np.array([q, r]) @ lattice.basis_px
        others.append((kind, np.hypot(points[:, :, 0] - place[0], points[:, :, 1] - place[1])))
    return (own, radius), others


def compute_blurred_overlap(
    main: float, micro: float, radius: FloatArray, blur_px2: float = 0.0
) -> FloatArray:
    """Return the shared area of two discs at each distance, 1 in the middle, averaged over a pixel.

    The pixel is represented by eight points on a circle with the same second moments; `blur_px2` is
    the variance of additional blur along an axis.
    """
    angles = (np.arange(4) + 0.5) * (math.pi / 4.0)  # the other four points mirror these
    reach = math.sqrt(2.0 * (1.0 / 12.0 + blur_px2))
    x = radius[:, None] + reach * np.cos(angles)
    y = reach * np.sin(angles)
    area, _ = compute_disc_overlap(main, micro, np.hypot(x, y))
    blurred: FloatArray = area.mean(axis=1) / (math.pi * min(main, micro) ** 2)
    return blurred
