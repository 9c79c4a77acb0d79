"""Measurement of points in micro images, by comparison with one texture for each track."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray, read_only
from lifcal.camera import MicroLensGrid
from lifcal.errors import InputError
from lifcal.measure import _kernels
from lifcal.measure.prediction import MicroImages
from lifcal.virtual.optics import PIXEL_VARIANCE_PX2, LensOptics

_MARGIN_PX = 2.5
"""Distance by which a patch extends beyond the window. Positions are predicted again after each
adjustment, and the window must then still be inside the pixels that were cut out."""
_LEAST_WINDOW_PX = 2.5
"""Smallest radius of a window that is chosen by the micro-image radius. A circle of 2.5 px contains
20 pixels; fewer do not determine the texture."""
_SPACING_PX = 0.75
"""Distance between the coefficients of a texture. It is finer than the pixels, because many micro
images that see the texture at different fractions of a pixel share it."""


class MeasureStatus(enum.IntEnum):
    """Whether a micro image was measured, or why not."""

    MEASURED = _kernels.MEASURED
    TOO_FEW_PIXELS = _kernels.TOO_FEW_PIXELS
    NO_AGREEMENT = _kernels.NO_AGREEMENT
    RAN_AWAY = _kernels.RAN_AWAY


@dataclass(frozen=True)
class MeasureOptions:
    """Options for choosing scene points and measuring them in micro images.

    Parameters
    ----------
    points : int
        Number of scene points that are measured. Beyond 1000, errors that all points have in common
        dominate, and the sigmas hardly decrease (docs/theory/calibration.md).
    views : int
        Largest number of views in which a point is measured, evenly spread over those that see it.
        It bounds the time that long recordings take.
    window_px : float
        Half-width of the patch around a point, in px of a micro image. In small micro images, a
        calibration uses a smaller patch: see `window_share`. Larger patches extend across depth
        edges, smaller ones lose texture.
    window_share : float
        Half-width of the patch as a fraction of the usable micro-image radius, used if that is less
        than `window_px`. In small micro images, larger patches would lose pixels at the rim for
        most points.
    most_blur_px : float
        Largest radius of the blur of a micro image. Those with more blur are not used, because they
        show too little detail to locate a point.
    scale_limits : (float, float)
        Smallest and largest scale of a patch relative to its reference view. Beyond these limits
        the visible detail differs, and one texture does not describe both.
    rounds : int
        Number of rounds in which texture and positions are estimated alternately when a point is
        measured for the first time.
    most_shift_px : float
        Largest distance of a measured position from the predicted one. Farther away, the window
        shows something else.
    most_misfit : float
        A micro image is rejected if its variance about the texture is more than this many times the
        median of its track, because it shows something else.
    fewest_views : int
        Smallest number of views in which a point must be measured. With two views, there is nothing
        to check its position along the ray.
    systematic_px : float
        Standard deviation that is added to that of the pixel noise, for errors caused by blur,
        curved surfaces and the lens model (docs/theory/calibration.md). Set it higher for a camera
        with worse optics.
    blur_error : float
        Standard deviation, in px, that is added for defocus, for a blur radius of 1 px and a window
        of 1 px. It grows with the square of the blur, whose shape the measurement approximates by
        its variance, and falls with the window (docs/theory/calibration.md).
    magnification_error : float
        Relative error of the magnification of micro images between near and far points, as found in
        simulations (docs/theory/calibration.md). It increases the sigmas of a calibration.
    """

    points: int = 1000
    views: int = 24
    window_px: float = 4.5
    window_share: float = 0.46
    most_blur_px: float = 1.2
    scale_limits: tuple[float, float] = (0.6, 1.5)
    rounds: int = 5
    most_shift_px: float = 1.5
    most_misfit: float = 4.0
    fewest_views: int = 3
    systematic_px: float = 0.02
    blur_error: float = 0.3
    magnification_error: float = 1.5e-4

    def __post_init__(self) -> None:
        for name, least in (
            ("points", 50),
            ("views", 2),
            ("window_px", 2.0),
            ("rounds", 1),
            ("fewest_views", 2),
            ("systematic_px", 0.0),
            ("blur_error", 0.0),
            ("magnification_error", 0.0),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise InputError(f"{name} is {value}, needs {least:g} or more")
        for name in ("window_share", "most_blur_px", "most_shift_px", "most_misfit"):
            value = getattr(self, name)
            if not value > 0.0:
                raise InputError(f"{name} is {value}, needs a positive number")
        low, high = self.scale_limits
        if not 0.0 < low < 1.0 < high:
            raise InputError(
                f"scale_limits is {self.scale_limits}, needs a number below 1 and one above"
            )

    def choose_window(self, radius_px: float) -> float:
        """Return the half-width of patches in micro images of this usable radius, px."""
        share = self.window_share * radius_px
        return float(np.clip(share, _LEAST_WINDOW_PX, self.window_px))

    @property
    def patch_side(self) -> int:
        """Number of pixels along each side of the square that is cut out around a point."""
        return 2 * math.ceil(self.window_px + _MARGIN_PX) + 1


@dataclass(frozen=True, eq=False)
class Patches:
    """Raw pixels around points.

    Parameters
    ----------
    corners_px : (n, 2) int64
        Raw x, y of the first pixel of each patch.
    values : (n, side, side) float32
        Flat-fielded pixels; NaN where a pixel is outside the image, saturated or dark by
        vignetting.
    """

    corners_px: IntArray
    values: Float32Array


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured positions of points in micro images.

    Parameters
    ----------
    points_raw_px : (n, 2) float64
        Positions in flat-fielded images: they include the shift that defocus causes, but not that
        of the pixels' own width. NaN unless the status is MEASURED.
    covariances_px2 : (n, 2, 2) float64
    places_px : (n, 2) float64
        Positions at which a pinhole would see the points; NaN unless the status is MEASURED.
    status : (n,) uint8
        A `MeasureStatus` for each image; the other arrays are valid only where it is MEASURED.
    slopes : (n_tracks, 2) float64
        Slopes of the tracks' surfaces: relative change of z for each px of the texture.
    track_noises : (n_tracks,) float64
        Standard deviation of a pixel in the middle of a micro image about its track's texture, for
        the tracks of the images in ascending order; NaN where nothing was measured.
    """

    points_raw_px: FloatArray
    covariances_px2: FloatArray
    places_px: FloatArray
    status: npt.NDArray[np.uint8]
    slopes: FloatArray
    track_noises: FloatArray


def cut_patches(
    image: Float32Array, places_px: FloatArray, options: MeasureOptions | None = None
) -> Patches:
    """Cut squares of pixels around points out of a flat-fielded frame.

    Parameters
    ----------
    image : (height, width) float32
        NaN where a pixel cannot be used.
    places_px : (n, 2) float64
        Positions of the points. NaN, and positions outside the image, give a patch of NaN.
    options : MeasureOptions, optional
    """
    side = (options or MeasureOptions()).patch_side
    height, width = image.shape
    # Replace positions that are far away or NaN by one whose whole patch is outside the image.
    near = np.clip(np.nan_to_num(places_px, nan=-np.inf), -side, np.array([width, height]) + side)
    corners = np.rint(near).astype(np.int64) - side // 2
    cols = corners[:, 0, None] + np.arange(side)
    rows = corners[:, 1, None] + np.arange(side)
    values = image[np.clip(rows, 0, height - 1)[:, :, None], np.clip(cols, 0, width - 1)[:, None]]
    outside = ((rows < 0) | (rows >= height))[:, :, None] | ((cols < 0) | (cols >= width))[:, None]
    values[outside] = np.nan
    return Patches(corners, values)


def measure(
    images: MicroImages,
    patches: Patches,
    grid: MicroLensGrid,
    optics: LensOptics,
    slope_sigma: float | FloatArray,
    options: MeasureOptions | None = None,
    *,
    slopes: FloatArray | None = None,
    slope_means: FloatArray | None = None,
    found_px: FloatArray | None = None,
    anchored: BoolArray | None = None,
) -> Measured:
    """Measure points in micro images.

    Every track has one texture, which is fitted to all its images; every image has its own
    position, gain and offset. Pixels are used as they were recorded and not interpolated, so there
    is no pixel locking. The measured position is that of the texture's origin. The origin is the
    predicted point, up to one displacement along the surface that all images of a track share.

    Parameters
    ----------
    images : MicroImages
        The micro images, sorted by track.
    patches : Patches
        One patch for each image.
    grid : MicroLensGrid
    optics : LensOptics
    slope_sigma : float or (n_tracks,) float64
        Standard deviation of the prior of the slopes, whose mean is `slope_means`.
    options : MeasureOptions, optional
    slopes : (n_tracks, 2) float64, optional
        Start values of the slopes, for the tracks of the images in ascending order.
    slope_means : (n_tracks, 2) float64, optional
        Mean of the prior of the slopes; None stands for zero.
    found_px : (n, 2) float64, optional
        Positions that define the texture's origin: `Measured.places_px` of an earlier measurement
        of the same images (NaN where there was none), or positions known from elsewhere. With them,
        the origin stays the same even if an adjustment has moved the point.
    anchored : (n,) bool, optional
        Whether the `found_px` of an image is known to be the point itself. Only these images define
        the origin; in tracks without any such image, all do.
    """
    options = options or MeasureOptions()
    n = len(images)
    if len(patches.values) != n or (np.diff(images.tracks) < 0).any():
        raise InputError(f"{len(patches.values)} patches for {n} micro images sorted by track")
    tracks, counts = np.unique(images.tracks, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    types = optics.lens_types[images.lenses]
    bends, blurs = defocus_terms(images, optics)
    with np.errstate(over="ignore"):
        blur_variances = 0.25 * blurs**2  # variance of a disc along an axis
    centers = grid.centers_raw_px[images.lenses]
    slopes = np.zeros((len(tracks), 2)) if slopes is None else slopes.copy()
    means = np.zeros((len(tracks), 2)) if slope_means is None else slope_means
    starts = np.zeros((n, 2)) if found_px is None else found_px - images.places_px
    starts[~np.isfinite(starts).all(axis=1)] = 0.0
    found = np.zeros((n, _kernels.FOUND_COLUMNS))
    status = np.zeros(n, np.uint8)
    noises = np.empty(len(tracks))
    size = 2 * math.ceil((options.window_px + 1.5) / _SPACING_PX) + 4
    _kernels.measure_tracks(
        offsets,
        _kernels.Images(
            patches=patches.values,
            corners=patches.corners_px.astype(np.float64),
            centers=centers,
            places=images.places_px,
            starts=starts,
            anchored=np.zeros(n, np.bool_) if anchored is None else anchored,
            jacobians=images.jacobians,
            tilts=images.tilts,
            types=types,
            bends=bends,
            blurs=blur_variances,
        ),
        _kernels.OpticalTables(
            weights=optics.weights.astype(np.float64),
            shifts=optics.shifts_px.astype(np.float64),
            drifts=optics.drifts_px.astype(np.float64),
            radius=optics.radius_px,
        ),
        _kernels.SlopePrior(
            means, np.broadcast_to(np.asarray(slope_sigma, np.float64), len(tracks)).copy()
        ),
        _kernels.Settings(
            window=options.window_px,
            texture=_kernels.TextureGrid(_SPACING_PX, size),
            pixel=PIXEL_VARIANCE_PX2,
            rounds=options.rounds,
            most_shift=options.most_shift_px,
            most_misfit=options.most_misfit,
        ),
        slopes,
        found,
        status,
        noises,
    )
    noise = np.repeat(noises, counts)
    a, b, c = (found[:, k] for k in (_kernels.FOUND_XX, _kernels.FOUND_XY, _kernels.FOUND_YY))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = noise / (a * c - b * b)
        covariances = np.stack([c * factor, -b * factor, -b * factor, a * factor], axis=1)
    covariances = covariances.reshape(n, 2, 2)
    # Images that are blurred beyond the window are not measured.
    by_blur = options.blur_error * np.minimum(blurs, options.window_px) ** 2 / options.window_px
    covariances[:, [0, 1], [0, 1]] += options.systematic_px**2 + by_blur[:, None] ** 2
    bad = (status == MeasureStatus.MEASURED) & ~(
        np.isfinite(covariances).all(axis=(1, 2)) & (covariances[:, 0, 0] > 0.0)
    )
    status[bad] = MeasureStatus.TOO_FEW_PIXELS
    places = images.places_px + found[:, [_kernels.FOUND_X, _kernels.FOUND_Y]]
    places[status != MeasureStatus.MEASURED] = np.nan
    seen = np.empty((n, 2))
    _kernels.shift_points(
        places,
        centers,
        types,
        bends,
        optics.shifts_px.astype(np.float64),
        seen,
    )
    far = (status == MeasureStatus.MEASURED) & np.isnan(seen).any(axis=1)
    status[far] = MeasureStatus.RAN_AWAY
    places[far] = np.nan
    return Measured(
        read_only(seen),
        read_only(covariances),
        read_only(places),
        read_only(status),
        read_only(slopes),
        read_only(np.sqrt(noises)),
    )


def defocus_terms(images: MicroImages, optics: LensOptics) -> tuple[FloatArray, FloatArray]:
    """Return the factor of the tabulated shift, and the radius of the blur in px, (n,) each."""
    focal = optics.focal_rhos[optics.lens_types[images.lenses]]
    known = np.isfinite(focal)
    defocus = np.where(known, focal - images.rhos, 0.0)
    return defocus / np.where(known, focal, 1.0), optics.blur_px * np.abs(defocus)
