"""The content of summary.json: every number that the report shows, in plain JSON types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from lifcal import __version__
from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import Adjustment
from lifcal.bundle.files import summary_to_dict
from lifcal.camera import PARAMETERS, unit_of
from lifcal.diagnostics import Finding
from lifcal.files import make_plain
from lifcal.report.expectation import PixelNoise, describe_expectation
from lifcal.report.verdict import assess

IMAGE_BINS = 12
"""Rows and columns of bins over the image."""

_HISTOGRAM_BINS = 24
_RADIUS_BINS = 8
_DEPTH_BINS = 8
_ANGLE_BINS = 18
_MAX_VIEW_BINS = 30
_NORMALIZED_EDGES = np.linspace(-5.0, 5.0, 41)

_MAX_POINTS = 4000
_MAX_CAMERAS = 1000
_MAX_FRAMES = 5000

_CAMERA_PRIORS = ("c_x", "c_y", "p0", "p1")
"""Priors that come from how cameras are made, not from the user."""

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class FrameEntry:
    """A frame that went into a calibration.

    Parameters
    ----------
    name : str
    index : int
        The id of its view in the observations.
    registered : bool
        Whether it has a pose.
    time : float
        Its timestamp in poses.txt.
    usable : bool
        Whether it could be read, and its depth be found.
    """

    name: str
    index: int
    registered: bool
    time: float
    usable: bool = True


def build_statistics(
    adjustment: Adjustment,
    *,
    frames: Sequence[FrameEntry],
    pictures: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    seconds: Mapping[str, float] | None = None,
    nominal_focal_length_mm: float | None = None,
    grid: Mapping[str, Any] | None = None,
    findings: Sequence[Finding] = (),
    noise: PixelNoise | None = None,
) -> dict[str, Any]:
    """Return the content of summary.json.

    It consists of the summary of an adjustment (`lifcal.bundle.files.summary_to_dict`) and the
    statistics that the report shows.
    The size is bounded: points, cameras and frames beyond a limit are thinned evenly, and bins are
    fixed. NaN becomes null. Every key is explained in docs/how-to/reading-the-report.md.

    Parameters
    ----------
    adjustment : Adjustment
    frames : sequence of FrameEntry
        All frames that were given, registered or not.
    pictures : mapping of str to str, optional
        'focused' and 'depth': PNG or JPEG, in base64.
    provenance : mapping, optional
        Files, settings and versions that made this calibration: numbers, text, lists and mappings.
    seconds : mapping of str to float, optional
        Time of each stage, in order.
    nominal_focal_length_mm : float, optional
        Focal length engraved on the lens. f_L is proportional to the pixel size, so a difference
        tells
        of a wrong one.
    grid : mapping, optional
        What is known of the grid (`grid` of focus.json): its source, pitch, bend, and how well the
        raws fit it.
    findings : sequence of Finding
        Findings of the stages before the adjustment.
    noise : PixelNoise, optional
        Noise of the virtual depth of single pixels; without it, the report says only what the
        calibration adds to the error of depth.
    """
    content = summary_to_dict(adjustment)
    names = {frame.index: frame.name for frame in frames}
    rows = _Rows.of(adjustment)
    by_view = list(content["outliers"]["by_view"].items())
    content["outliers"]["by_view"] = dict(_thin(by_view, _MAX_CAMERAS))
    content["distances"] = _thin(content["distances"], _MAX_CAMERAS)
    content |= {
        "format": "lifcal-calibration",
        "format_version": "1.0",
        "lifcal_version": __version__,
        "image_size_px": list(adjustment.camera.image_size),
        "pixel_size_um": 1000.0 * adjustment.camera.pixel_size_mm,
        "nominal_focal_length_mm": nominal_focal_length_mm,
        "grid": None if grid is None else dict(grid),
        "n_frames": len(frames),
        "n_registered": sum(frame.registered for frame in frames),
        "n_usable": sum(frame.usable for frame in frames),
        "frames": [
            {
                "name": frame.name,
                "index": frame.index,
                "registered": frame.registered,
                "time": frame.time,
                "usable": frame.usable,
            }
            for frame in _thin(frames, _MAX_FRAMES)
        ],
        "units": list_units(adjustment),
        "expected": describe_expectation(adjustment.camera, rows.depth_cam_mm, noise),
        "rig": _describe_rig(adjustment, names),
        "coverage": _measure_coverage(adjustment, rows),
        "residuals": _measure_residuals(adjustment, rows, names),
        "typical_depths": _measure_typical_depths(adjustment, rows),
        "assumptions": _list_assumptions(adjustment),
        "pictures": dict(pictures or {}),
        "provenance": dict(provenance or {}),
        "seconds": dict(seconds or {}),
    }
    content["findings"], content["verdict"] = assess(
        content, [*findings, *adjustment.summary.findings]
    )
    plain: dict[str, Any] = make_plain(content)
    return plain


# Rows: what the bins are made of


@dataclass(frozen=True, eq=False)
class _Rows:
    """The observations used, with their depths.

    Parameters
    ----------
    views, points, lens_types : (n,) int64
    xy_raw_px : (n, 2) float64
        As measured.
    offsets_px : (n, 2) float64
        Predicted offsets from the micro-image center: measured ones hold the noise, which
        would look like a scale.
    residuals_px : (n, 2) float64
        Seen minus measured.
    depth_cam_mm, virtual_depth : (n,) float64
    """

    views: IntArray
    points: IntArray
    lens_types: IntArray
    xy_raw_px: FloatArray
    offsets_px: FloatArray
    residuals_px: FloatArray
    depth_cam_mm: FloatArray
    virtual_depth: FloatArray

    @classmethod
    def of(cls, adjustment: Adjustment) -> _Rows:
        observations, state = adjustment.problem.observations, adjustment.state
        used = adjustment.problem.active_mask & np.isfinite(adjustment.residuals_px).all(axis=1)
        views, points = observations.view_indices[used], observations.point_indices[used]
        depth = (
            np.einsum("nj,nj->n", state.rotations[views, 2], state.points_world_mm[points])
            + state.translations_mm[views, 2]
        )
        residuals = adjustment.residuals_px[used]
        measured = observations.points_raw_px[used]
        return cls(
            views,
            points,
            observations.lens_types[used],
            measured,
            measured + residuals - observations.centers_raw_px[used],
            residuals,
            depth,
            state.array.alpha + state.array.beta_mm / depth,
        )


# The rig


def list_units(adjustment: Adjustment) -> dict[str, str]:
    """Return the unit of each parameter; 'no scale' where it has no metric meaning."""
    metric = adjustment.summary.scale_source is not None
    units = {name: unit_of(name, metric=metric) for name in PARAMETERS if name != "g"}
    distortion = adjustment.state.distortion
    units |= dict(zip(distortion.parameter_names(), distortion.units, strict=True))
    return units | {name: "" for name in adjustment.problem.names if name not in units}


def _describe_rig(adjustment: Adjustment, names: Mapping[int, str]) -> dict[str, Any]:
    view_ids = adjustment.problem.observations.view_ids.tolist()
    # Worlds have frames of their own, which one picture cannot show: it is that of the first.
    worlds = adjustment.problem.worlds
    views = np.flatnonzero(worlds.of_views == 0).tolist()
    chosen = _thin(views, _MAX_CAMERAS)
    poses = adjustment.cam_from_world
    width, height = adjustment.camera.image_size
    focal = adjustment.camera.array.focal_px
    points = adjustment.state.points_world_mm[worlds.of_points == 0]
    cameras = []
    for i in chosen:
        pose = poses[i].inverse()
        matrix = np.column_stack([pose.rotation, pose.translation_mm])
        cameras.append(
            {
                "name": names.get(view_ids[i], str(view_ids[i])),
                "index": view_ids[i],
                "world_from_cam": _rounded(matrix),
            }
        )
    return {
        "unit": "mm" if adjustment.summary.scale_source is not None else "arbitrary units",
        "half_view": [0.5 * width / focal, 0.5 * height / focal],
        "cameras": cameras,
        "points": _rounded(points[_thin(range(len(points)), _MAX_POINTS)]),
    }


# Is the data enough?


def _measure_coverage(adjustment: Adjustment, rows: _Rows) -> dict[str, Any]:
    index = _image_bins(adjustment, rows)
    counts = np.bincount(index, minlength=IMAGE_BINS**2).reshape(IMAGE_BINS, IMAGE_BINS)
    views = len(adjustment.state.rotations)
    pairs = np.column_stack(np.divmod(np.unique(rows.points * views + rows.views), views))
    n_views = np.bincount(pairs[:, 0], minlength=len(adjustment.state.points_world_mm))
    angles = _largest_angles_deg(adjustment, pairs)
    top = 5.0 * math.ceil(max(float(angles.max(initial=0.0)), 1.0) / 5.0)
    return {
        "image": {"counts": counts.tolist(), "empty_share": float(np.mean(counts == 0))},
        "virtual_depth": _histogram(rows.virtual_depth),
        "depth": _histogram(rows.depth_cam_mm),
        "views_per_point": _count_views(n_views[n_views > 0]),
        "angle_deg": {
            **_histogram(angles, np.linspace(0.0, top, _ANGLE_BINS + 1)),
            "median": _quantile(angles, 0.5),
            "largest": _quantile(angles, 1.0),
        },
    }


def _image_bins(adjustment: Adjustment, rows: _Rows) -> IntArray:
    """Return the bin over the image of each row, (n,)."""
    size = np.array(adjustment.camera.image_size)
    place = np.floor((rows.xy_raw_px + 0.5) / size * IMAGE_BINS).astype(np.int64)
    column, row = np.clip(place, 0, IMAGE_BINS - 1).T
    index: IntArray = row * IMAGE_BINS + column
    return index


def _histogram(values: FloatArray, edges: FloatArray | None = None) -> dict[str, Any]:
    """Return a histogram. Without edges, bins cover the middle 99 %, and the end bins hold the
    rest.
    """
    if edges is None:
        low, high = np.quantile(values, [0.005, 0.995]) if len(values) else (0.0, 1.0)
        high = high if high > low else low + max(abs(low), 1.0) * 1e-3
        edges = np.linspace(low, high, _HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return {"edges": _rounded(edges), "counts": counts.tolist()}


def _count_views(n_views: IntArray) -> dict[str, Any]:
    """Count points by number of views; bins are whole numbers wide."""
    most = int(n_views.max(initial=1))
    width = math.ceil(most / _MAX_VIEW_BINS)
    edges = np.arange(0.5, most + width + 0.5, width)
    return {**_histogram(n_views.astype(np.float64), edges), "median": _quantile(n_views, 0.5)}


def _largest_angles_deg(adjustment: Adjustment, pairs: IntArray) -> FloatArray:
    """Return the largest angle between two views of each point seen twice, (at most 4000,)."""
    state = adjustment.state
    rays = state.positions_world_mm()[pairs[:, 1]] - state.points_world_mm[pairs[:, 0]]
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    first = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    spans = list(pairwise([*first.tolist(), len(pairs)]))
    cosines = [
        float((rays[low:high] @ rays[low:high].T).min())
        for low, high in _thin(spans, _MAX_POINTS)
        if high - low > 1
    ]
    return np.asarray(np.rad2deg(np.arccos(np.clip(cosines, -1.0, 1.0))))


_TYPICAL = (0.1, 0.5, 0.9)
"""Quantiles of the distances of the scene that stand for those at which the camera is used."""


def _measure_typical_depths(adjustment: Adjustment, rows: _Rows) -> list[dict[str, float]]:
    """Return distances of the scene and what the camera's uncertainty makes of a depth there.

    The standard deviation of `z = beta / (u - alpha)` at a given u follows from the covariance of
    alpha and beta. It is the same in every frame, and a pixel's own noise comes on top of it.
    Nothing is returned without a scale.
    """
    if adjustment.summary.scale_source is None or not len(rows.depth_cam_mm):
        return []
    places = [adjustment.covariance.names.index(name) for name in ("alpha", "beta")]
    covariance = adjustment.covariance.array[np.ix_(places, places)]
    found = []
    for quantile, depth in zip(
        _TYPICAL, np.quantile(rows.depth_cam_mm, _TYPICAL).tolist(), strict=True
    ):
        moves = np.array([depth, 1.0]) / adjustment.state.array.beta_mm  # relative, of z
        sigma = math.sqrt(max(float(moves @ covariance @ moves), 0.0))
        found.append({"quantile": quantile, "depth_mm": depth, "sigma_percent": 100.0 * sigma})
    return found


# Does the model fit?


def _measure_residuals(
    adjustment: Adjustment, rows: _Rows, names: Mapping[int, str]
) -> dict[str, Any]:
    bins = _summarize(rows, _image_bins(adjustment, rows), IMAGE_BINS**2)
    shape = (IMAGE_BINS, IMAGE_BINS)
    keys = ("n", "mean_dx_px", "mean_dy_px", "rms_px")
    image = {key: _rounded(np.reshape(bins[key], shape)) for key in keys}
    image["n"] = bins["n"].reshape(shape).tolist()
    radius = np.hypot(rows.offsets_px[:, 0], rows.offsets_px[:, 1])
    limit = max(adjustment.camera.grid.radius_px, 1e-9)
    radius_edges = np.linspace(0.0, limit, _RADIUS_BINS + 1)
    depth_edges = np.quantile(rows.depth_cam_mm, np.linspace(0.0, 1.0, _DEPTH_BINS + 1))
    return {
        "image": image,
        "by_radius": _by_edges(rows, radius, radius_edges),
        "by_depth": _by_edges(rows, rows.depth_cam_mm, depth_edges),
        "by_view": _by_view(adjustment, rows, names),
        "by_lens_type": _by_type(adjustment, rows),
        "by_lens_type_and_depth": _by_type_and_depth(adjustment),
        "distribution": _measure_distribution(adjustment),
    }


def _summarize(rows: _Rows, index: IntArray, n_bins: int) -> dict[str, npt.NDArray[Any]]:
    """Return figures of the residuals in each bin; NaN where there are none.

    `radial` is the mean of the residual outward from the micro-image center, `scale_percent` the
    magnification by which measured images exceed the model's.
    """
    n = np.bincount(index, minlength=n_bins)

    def total(values: FloatArray) -> FloatArray:
        return np.bincount(index, values, minlength=n_bins).astype(np.float64)

    dx, dy = rows.residuals_px.T
    x, y = rows.offsets_px.T
    product, power = dx * x + dy * y, x**2 + y**2
    radius = np.sqrt(power)
    outward = np.divide(product, radius, out=np.zeros_like(radius), where=radius > 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rms = np.sqrt(total(dx**2 + dy**2) / (2.0 * n))
        return {
            "n": n,
            "rms_px": rms,
            "mean_dx_px": total(dx) / n,
            "mean_dy_px": total(dy) / n,
            "sigma_mean_px": rms / np.sqrt(n),
            "mean_radial_px": total(outward) / n,
            "scale_percent": -100.0 * total(product) / total(power),
            "sigma_scale_percent": 100.0 * rms / np.sqrt(total(power)),
        }


def _records(
    figures: Mapping[str, npt.NDArray[Any]], head: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one mapping for each bin."""
    columns = {
        key: values.tolist() if key == "n" else _rounded(values) for key, values in figures.items()
    }
    n_bins = len(columns["n"])
    return [
        {**head(i), **{key: column[i] for key, column in columns.items()}} for i in range(n_bins)
    ]


def _by_edges(rows: _Rows, values: FloatArray, edges: FloatArray) -> list[dict[str, Any]]:
    """Return figures in bins of `values`; the last bin holds what is beyond it."""
    n_bins = len(edges) - 1
    index = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, n_bins - 1)
    figures = _summarize(rows, index, n_bins)
    limits = _rounded(edges)
    return _records(figures, lambda i: {"low": limits[i], "high": limits[i + 1]})


def _by_view(adjustment: Adjustment, rows: _Rows, names: Mapping[int, str]) -> list[dict[str, Any]]:
    view_ids = adjustment.problem.observations.view_ids.tolist()
    rejected = adjustment.summary.outliers.by_view
    figures = _summarize(rows, rows.views, len(view_ids))

    def head(i: int) -> dict[str, Any]:
        view = view_ids[i]
        count = rejected.get(view, (0, 0))[0]
        return {"name": names.get(view, str(view)), "index": view, "n_rejected": count}

    return _thin(_records(figures, head), _MAX_CAMERAS)


def _by_type(adjustment: Adjustment, rows: _Rows) -> list[dict[str, Any]]:
    rejected = adjustment.summary.outliers.by_type
    figures = _summarize(rows, rows.lens_types, len(rejected))
    return _records(figures, lambda i: {"lens_type": i, "n_rejected": rejected[i][0]})


def _by_type_and_depth(adjustment: Adjustment) -> list[dict[str, Any]]:
    """Return the summary's residual scales with the metric depths of their bins."""
    array = adjustment.state.array

    def depth(u: float) -> float | None:
        return array.beta_mm / (u - array.alpha) if u > array.alpha else None

    return [
        {
            "lens_type": entry.lens_type,
            "u_low": entry.u_low,
            "u_high": entry.u_high,
            "z_near": depth(entry.u_high),
            "z_far": depth(entry.u_low),
            "n": entry.n,
            "percent": entry.percent,
            "sigma_percent": entry.sigma_percent,
        }
        for entry in adjustment.summary.residual_scale
    ]


def _measure_distribution(adjustment: Adjustment) -> dict[str, Any]:
    """Return the residuals of all observations in their sigmas against the normal distribution."""
    values = _whiten(adjustment).ravel()
    values = values[np.isfinite(values)]
    edges = _NORMALIZED_EDGES
    counts, _ = np.histogram(values, edges)
    expected = len(values) * np.diff(ndtr(edges))
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "expected": _rounded(expected),
        "n_beyond": int(len(values) - counts.sum()),
        "share_beyond_3": float(np.mean(np.abs(values) > 3.0)),
        "expected_beyond_3": float(2.0 * ndtr(-3.0)),
    }


def _whiten(adjustment: Adjustment) -> FloatArray:
    """Return residuals in standard deviations, uncorrelated, (n_obs, 2)."""
    covariances = adjustment.problem.observations.covariances_px2
    x, y = adjustment.residuals_px.T
    # Cholesky of each 2 x 2 covariance, and its inverse applied
    first = np.sqrt(covariances[:, 0, 0])
    lower = covariances[:, 0, 1] / first
    second = np.sqrt(covariances[:, 1, 1] - lower**2)
    whitened = x / first
    return np.column_stack([whitened, (y - lower * whitened) / second]) / adjustment.summary.noise


# What is assumed


def _list_assumptions(adjustment: Adjustment) -> list[dict[str, str]]:
    problem, state = adjustment.problem, adjustment.state
    source = adjustment.summary.scale_source
    if source is None:
        scale = (
            "No scale was given. F, c, alpha and the distortion do not need one. Lengths in the "
            "scene, beta, B, b_L0 and f_L have no metric meaning; only b_L0 + B = F s is known."
        )
    else:
        scale = (
            f"Millimetres come from: {source}. An error of 1 % there is an error of 1 % in every "
            "depth, in beta and in B, and hardly any in the rest."
        )
    pupil = (
        "The model puts the exit pupil in the thin lens. If it is elsewhere, f_L and b_L0 move "
        "together and B hardly; F, alpha, beta, c and every metric depth do not depend on it."
    )
    if problem.focus is None:
        focus = (
            "Off: every micro image is a pinhole image at every depth. Out of focus it is not "
            "quite, and B takes the error. Residuals by lens type and depth show how much."
        )
    else:
        index = problem.names.index("g")
        how = "estimated with a prior" if bool(problem.free[index]) else "given"
        planes = "estimated here" if problem.focus.plane_sigma > 0.0 else "those of the grid, held"
        focus = (
            f"On ({problem.focus.shape}), strength {state.focus_strength:.3g}, {how}; focal "
            f"planes: {planes}. A magnification common to all lens types cannot be told from alpha "
            "and beta: the focal planes decide about it."
        )
    terms = state.distortion.parameter_names()
    free = dict(zip(problem.step_names, problem.free.tolist(), strict=True))
    estimated = [name for name in terms if free.get(name)]
    if not terms:
        distortion = "None: no term lowered the cost by more than chance would, or it was off."
    else:
        distortion = (
            f"Model {state.distortion.name} on raw coordinates about c; estimated: "
            f"{', '.join(estimated) or 'none'}. Terms that are not named are held."
        )
    pixel = (
        f"{1000.0 * problem.pixel_size_mm:g} um, as given: images cannot tell it. f_L and b_L0 are "
        "in proportion to it, B to its square; F, alpha, beta, c and every metric depth do not "
        "depend on it."
    )
    entries = [("scale", scale), ("pixel size", pixel), ("exit pupil", pupil)]
    entries.append(("focus-vignetting term", focus))
    priors = {name: prior for name, prior in problem.priors.items() if name in _CAMERA_PRIORS}
    if priors:
        said = ", ".join(
            f"{name} = {prior.value:g} +- {prior.sigma:.2g}" for name, prior in priors.items()
        )
        entries.append(
            (
                "what is known of any camera",
                f"Before any image was seen: {said}. Good recordings say far more than this; "
                "--no-priors does without.",
            )
        )
    entries += [
        ("distortion", distortion),
        (
            "noise",
            "Errors of different points are independent. Calibrating from raws also counts what "
            "the observations of one point have in common; adjusting given observations does not. "
            "What else they share makes the true uncertainty larger than sigma.",
        ),
    ]
    return [{"what": what, "text": text} for what, text in entries]


# Plain types


def _thin(items: Sequence[_Item], limit: int) -> list[_Item]:
    """Return all items, or `limit` of them, evenly chosen, the first and last among them."""
    if len(items) <= limit:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, limit).round().astype(int).tolist()]


def _quantile(values: npt.NDArray[Any], share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def _rounded(values: FloatArray) -> list[Any]:
    """Return six digits of each number: more would only lengthen the file."""
    array = np.asarray(values, np.float64)
    flat = [float(f"{value:.6g}") for value in array.ravel().tolist()]
    rounded: list[Any] = np.reshape(flat, array.shape).tolist()
    return rounded
