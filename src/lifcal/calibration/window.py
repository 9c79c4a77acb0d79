"""One adjustment of an online calibration: the keyframes of the window, by the workbench's steps.

The window is bounded. When it is full, the older half of its keyframes leaves it: what they say
about the intrinsics, whatever their poses and points are, is kept as a normal distribution and is
the prior of all later windows (the Schur complement of the normal matrix on the intrinsics).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lifcal.arrays import read_only
from lifcal.bundle import Adjustment, AdjustOptions, JointPrior, Prior, adjust, cross_validate
from lifcal.calibration.batch import calibrate_bench
from lifcal.calibration.live_map import Keyframe, LiveMap
from lifcal.calibration.options import CalibrateOptions
from lifcal.calibration.workbench import Workbench
from lifcal.camera import TILT_PARAMETERS, MicroLensGrid
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.imaging.markers import Marker, detect_markers
from lifcal.listener import Listener
from lifcal.reconstruction import Observations
from lifcal.scale import Markers, ScaleKnowledge, ScaleOptions, ScaleSource, ScaleViews
from lifcal.scale.markers import place_markers
from lifcal.sfm import SfmModel
from lifcal.virtual.optics import LensOptics

_RADIAL_POWERS = {"k1": 5, "k2": 7}
"""Brown's higher radial terms, and the power of the radius with which each displaces a point."""
_RADIAL_SIGMA = 0.002
"""Standard deviation of the displacement by each of these terms at the left and right edge of the
image, as a part of half its width. Few views do not tell the terms from c and from each other, and
the estimate would run away. Lenses of plenoptic cameras have some tenths of a per mille."""
_BY_PRIOR = 0.7
"""A term is held, rather than estimated, if its sigma is more than this part of its prior's."""
_MEASURED_ONCE = 1.5
"""Factor on the sigmas of windows, whose points are measured once and not until nothing changes. In
two runs of a small camera with imperfect optics, a quarter of the errors was beyond two sigmas
without it; the result of `finish` does not need it."""
_NEVER_KEPT = (*TILT_PARAMETERS, "g")
"""Intrinsics that are not part of the prior: each window estimates the tilt anew, if it pays, with
a prior of its own, and the strength of the focus term is held or has its own prior too."""


@dataclass(frozen=True, eq=False)
class WindowWork:
    """What a window's adjustment begins with: nothing of it changes while frames come in.

    Parameters
    ----------
    grid, optics, image_scale
        As for `Workbench`.
    options : CalibrateOptions
    keyframes : tuple of Keyframe
    start : SfmModel or LiveMap
        Poses and tracks to start from: rough ones, whose camera is only from rigidity, or a map
        whose camera is known.
    prior : JointPrior or None
        What left the window, or an earlier calibration.
    closes : int
        So many of the first keyframes are to leave the window afterwards.
    rounds : int
        How often is measured and adjusted; 0: until it is settled, and cross-validated, as a batch
        calibration.
    seen_markers : mapping of int to list of Marker
        Those that were found before, by frame; others are added.
    """

    grid: MicroLensGrid
    optics: LensOptics
    image_scale: float
    options: CalibrateOptions
    keyframes: tuple[Keyframe, ...]
    start: SfmModel | LiveMap
    prior: JointPrior | None
    closes: int
    rounds: int
    seen_markers: MutableMapping[int, list[Marker]]


@dataclass(frozen=True, eq=False)
class Solution:
    """What a window's adjustment found.

    Parameters
    ----------
    adjustment : Adjustment
    prior : JointPrior or None
        What the keyframes that leave say, with the prior before; None if none leave.
    held : tuple of str
        Intrinsics that the window does not determine yet: their priors hold them.
    """

    adjustment: Adjustment
    prior: JointPrior | None
    held: tuple[str, ...]


def solve_window(work: WindowWork, listener: Listener | None = None) -> Solution:
    """Measure the points of a window's keyframes, and adjust camera, poses and points.

    Raises
    ------
    EstimationError
        If the window does not determine the camera.
    """
    try:
        return _solve(work, listener or Listener())
    except (EstimationError, InputError) as error:
        known = bool(work.options.scale.list_sources())
        if isinstance(error, EstimationError) and (error.stage != "measure" or not known):
            raise
        if not known:
            raise EstimationError(str(error), stage="adjust") from error
        # The scale could not be measured in this window: it is known from before, or not yet.
        loose = replace(work.options, scale=ScaleOptions())
        return _solve(replace(work, options=loose), listener or Listener())


def _solve(work: WindowWork, listener: Listener) -> Solution:
    options = work.options
    if work.rounds:
        options = _add_priors(options, work.grid.image_size[0])
    options = replace(options, scale=_make_patient(options.scale, work.seen_markers))
    bench = Workbench(work.grid, work.optics, work.image_scale, options)
    for keyframe in work.keyframes:
        bench.add_view(keyframe.as_view())
    if isinstance(work.start, LiveMap):
        points, views, _ = work.start.list_sightings(work.keyframes)
        bench.begin(work.start.as_reconstruction(work.keyframes), points, views)
    else:
        bench.start(work.start)
    bench.choose_points(listener)
    metric = bench.distances is not None or bench.positions is not None
    bench.joint = _select_prior(work.prior, options.adjust, scaled=metric)
    if isinstance(work.start, LiveMap) and (metric or _has_beta(bench.joint)):
        physical = bench.reconstruction.array.to_physical(options.pixel_size_mm)
        bench.array_to_sensor_px = physical.array_to_sensor_mm / options.pixel_size_mm
    if work.rounds == 0:
        found = calibrate_bench(bench, listener)
    else:
        bench.read_pixels(listener)
        observations = bench.measure()
        found = bench.adjust(observations)
        for _ in range(work.rounds - 1):
            bench.accept(found)
            found = bench.adjust(bench.measure())
        found = _widen(cross_validate(found, bench.adjust_options), _MEASURED_ONCE)
    sigmas, priors = found.covariance.sigmas(), bench.adjust_options.priors
    held = tuple(
        name
        for name, known in priors.items()
        if name in sigmas and sigmas[name] > _BY_PRIOR * _MEASURED_ONCE * known.sigma
    )
    stages = tuple(replace(stage, seconds=0.0) for stage in found.summary.stages)
    found = replace(found, summary=replace(found.summary, stages=stages))
    prior = None
    if work.closes:
        prior = _close(bench, found, work.keyframes[: work.closes], metric)
    return Solution(found, prior, held)


def _widen(found: Adjustment, factor: float) -> Adjustment:
    """Return the adjustment with all sigmas of the intrinsics larger by a factor."""
    covariance = found.covariance
    wider = replace(
        covariance,
        array=read_only(covariance.array * factor**2),
        physical=read_only(covariance.physical * factor**2),
    )
    n = found.problem.n_camera
    camera = replace(found.camera, covariance=wider.array[:n, :n])
    return replace(found, covariance=wider, camera=camera)


def _add_priors(options: CalibrateOptions, width: int) -> CalibrateOptions:
    """Return the options with weak priors on what a few views do not determine."""
    given = options.adjust
    if given.distortion not in ("brown", "auto"):
        return options
    half = 0.5 * width
    weak = {
        name: Prior(0.0, _RADIAL_SIGMA * half / half**power)
        for name, power in _RADIAL_POWERS.items()
        if name not in given.fixed
    }
    adjusted = replace(given, distortion="brown", priors={**weak, **given.priors})
    return replace(options, adjust=adjusted)


def _has_beta(prior: JointPrior | None) -> bool:
    return prior is not None and "beta" in prior.names


def _select_prior(
    prior: JointPrior | None, options: AdjustOptions, *, scaled: bool
) -> JointPrior | None:
    """Return what of the prior the window may use.

    Markers that are seen in several windows are one knowledge of the scale: where the window has
    it, the scale of the prior, which may rest on the same markers, is left out.
    """
    if prior is None:
        return None
    names = [name for name in prior.names if name not in options.fixed]
    if scaled and prior.source != EARLIER:
        names = [name for name in names if name != "beta"]
    return prior.select(names)


EARLIER = "earlier calibration"
"""Name of a prior that comes from a camera file: its scale does not rest on what is seen now."""
_BEFORE = "frames before"
"""Name of a prior that comes from keyframes that have left the window."""


def prior_of(found: Adjustment, source: str) -> JointPrior | None:
    """Return what an adjustment says about the intrinsics; None if it says nothing."""
    names, covariance = found.covariance.names, found.covariance.array
    places = [
        i
        for i, name in enumerate(names)
        if covariance[i, i] > 0.0
        and name not in _NEVER_KEPT
        and not name.startswith("inverse_plane")
    ]
    if not places:
        return None
    values = dict(zip(found.problem.names, found.state.as_vector().tolist(), strict=True))
    return JointPrior(
        tuple(names[i] for i in places),
        np.array([values[names[i]] for i in places]),
        covariance[np.ix_(places, places)],
        source,
    )


def _close(
    bench: Workbench, found: Adjustment, leaving: Sequence[Keyframe], metric: bool
) -> JointPrior | None:
    """Return what the keyframes that leave say about the intrinsics, with the prior before.

    Errors that all windows have in common (focal planes, scale, magnification) are not part of it:
    they are added to each result once.
    """
    problem = found.problem
    observations, state = problem.observations, found.state
    indices = [keyframe.index for keyframe in leaving]
    chosen = np.isin(observations.view_ids[observations.view_indices], indices)
    chosen &= problem.active_mask
    some = Observations.from_arrays(
        observations.view_ids[observations.view_indices[chosen]],
        observations.point_ids[observations.point_indices[chosen]],
        observations.centers_raw_px[chosen],
        observations.points_raw_px[chosen],
        covariances_px2=observations.covariances_px2[chosen],
        lens_types=observations.lens_types[chosen],
    )
    views = np.searchsorted(observations.view_ids, some.view_ids)
    points = np.searchsorted(observations.point_ids, some.point_ids)
    start = replace(
        state,
        rotations=state.rotations[views],
        translations_mm=state.translations_mm[views],
        points_world_mm=state.points_world_mm[points],
        tilt=np.zeros(0),
        focus=np.zeros(0),
    )
    options = replace(
        bench.adjust_options, plane_error=0.0, scale_error=0.0, magnification_error=0.0
    )
    distances = bench.distances if metric else None
    if distances is not None and not distances.are_between(some.point_ids).any():
        distances = None
    positions = bench.positions
    if positions is not None and np.isin(positions.view_ids, some.view_ids).sum() < 2:
        positions = None
    closed = adjust(
        some,
        start,
        bench.options.pixel_size_mm,
        bench.grid,
        options,
        distances=distances,
        positions=positions,
        joint=bench.joint,
    )
    source = EARLIER if bench.joint is not None and bench.joint.source == EARLIER else _BEFORE
    prior = prior_of(closed, source)
    validation = found.cross_validation
    if prior is None or validation is None:
        return prior
    # Parts of the window disagree by more than noise: those that leave do so too.
    wide = np.array([validation.factors.get(name, 1.0) for name in prior.names])
    return replace(prior, covariance=prior.covariance * wide[:, None] * wide)


# Sources of scale that may have nothing to say yet


@dataclass(frozen=True, eq=False)
class _Patient:
    """A source of scale that may not find what it needs in the first frames."""

    source: ScaleSource

    def describe(self) -> Mapping[str, Any]:
        return self.source.describe()

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        try:
            return self.source.find(views, listener)
        except (DataError, EstimationError):
            return ScaleKnowledge()


@dataclass(frozen=True, eq=False)
class _KnownMarkers:
    """Markers, each frame of which is looked at once only."""

    known: Markers
    seen: MutableMapping[int, list[Marker]]

    def describe(self) -> Mapping[str, Any]:
        return self.known.describe()

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        del listener
        found = {}
        for number, index in enumerate(views.frame_indices.tolist()):
            if index not in self.seen:
                self.seen[index] = detect_markers(views.read_focused(number), self.known.dictionary)
            if self.seen[index]:
                found[number] = self.seen[index]
        if not found:
            return ScaleKnowledge()
        points, findings = place_markers(views.reconstruction, found, views.image_scale, self.known)
        return ScaleKnowledge(points, findings=tuple(findings))


def _make_patient(scale: ScaleOptions, seen: MutableMapping[int, list[Marker]]) -> ScaleOptions:
    """Return the same sources; none of them fails if it finds nothing."""
    sources: list[ScaleSource] = []
    for source in scale.list_sources():
        if isinstance(source, Markers):
            sources.append(_Patient(_KnownMarkers(source, seen)))
        else:
            sources.append(_Patient(source))
    return ScaleOptions(length_error=scale.length_error, others=tuple(sources))
