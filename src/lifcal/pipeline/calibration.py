"""From raw frames to a calibrated camera: focus, track, measure and adjust in turn, report."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lifcal import __version__
from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle import (
    Adjustment,
    AdjustOptions,
    CameraPositions,
    Distances,
    FocusTerm,
    Prior,
    adjust,
    cross_validate,
)
from lifcal.bundle.files import write_adjustment
from lifcal.camera import MicroLensGrid, PlenopticCamera, read_camera
from lifcal.diagnostics import Finding
from lifcal.errors import ConfigError, DataError, EstimationError, InputError
from lifcal.files import digest_files, hold_folder, read_json, write_json, write_text
from lifcal.imaging.files import encode_jpeg, read_image
from lifcal.imaging.preview import fit
from lifcal.listener import Listener
from lifcal.measure import (
    MeasureOptions,
    MeasureStatus,
    MicroImages,
    Patches,
    Tracks,
    choose_tracks,
    compute_shading_shifts,
    compute_tangents,
    compute_tilt_shifts,
    cut_patches,
    defocus_terms,
    find_micro_images,
    find_views,
    measure,
    predict,
    sample_map,
    slopes_of_planes,
    spread_windows,
)
from lifcal.pipeline.depth_bias import measure_depth_bias
from lifcal.pipeline.focusing import FocusRun, focus_frames
from lifcal.pipeline.rehearsal import compile_ahead
from lifcal.pipeline.starting import DepthMaps, start_geometry
from lifcal.pipeline.tracking import read_gray, track_frames
from lifcal.reconstruction import Observations, Reconstruction, write_observations
from lifcal.report import FrameEntry, build_statistics, write_report
from lifcal.scale import ScaleOptions, ScalePoints, ScaleViews, find_scale
from lifcal.sfm import ColmapEngine, SfmEngine, SfmModel, SfmOptions
from lifcal.virtual import DepthOptions
from lifcal.virtual.optics import LensOptics

if TYPE_CHECKING:
    from lifcal.imaging.frames import Frames

FILES = (
    "camera.json",
    "poses.txt",
    "points.ply",
    "cameras.ply",
    "observations.csv",
    "summary.json",
    "report.html",
)
_PIXEL_SIZES_UM = (0.5, 50.0)
_SATURATED = 0.998
_WINDOW_SHARE, _LEAST_WINDOW_PX, _MOST_WINDOW_PX = 0.46, 2.5, 4.5
"""Of the patch: of the used radius of micro images, but within these limits."""
_RIM_PX = 1.0
_SCALES = (0.6, 1.5)
"""Of a patch relative to its reference: beyond, the detail is not the same."""
_STEEPEST = 1.7
"""Tangent of the angle between a surface and the reference view: one sigma."""
_PLANE_TANGENT = 0.01
"""The same where the surface is a marker: what its corners leave of its plane."""
_PLANE_ERROR = 0.01
"""Of the focal planes, relative and common to all (docs/virtual-depth.md)."""
_SCALE_ERROR = 0.001
"""Of a print or a ruler, relative: what marker sides and picked distances have in common."""
_MAGNIFICATION_ERROR = 1.5e-4
"""Of micro images, between near and far: what the simulations show (docs/calibrate.md)."""
_LINEAR_FOCUS = (0.1, 0.1)
"""Strength of the linear focus term and its sigma, where no overlap discs are known."""
_SETTLED_SIGMAS = 0.3
_LATER_ROUNDS = 3
_FEWEST_VIEWS = 3
_LEAST_MEASURED = 0.5
"""Of the micro images of a track: with fewer, its texture is not what most of them show."""
_PICTURE_WIDTH = 700
_CENTER_SIGMA = 0.02
"""Standard deviation of c about the middle of the image, as a part of its width, before any image
is seen. Lenses are centred mechanically: in the published calibrations of five cameras and lenses
(Raytrix R5, R12, R25) each coordinate is 0.1 to 1.5 % of the width off the middle."""
_TANGENTIAL_SIGMA = 0.002
"""Standard deviation of the displacement by a tangential term at the left and right edge of the
image, as a part of half its width. Assembled lenses have some tenths of a per mille."""
_OPENINGS = (1.0, 30.0)
"""f-numbers of micro lenses that can be made, or are of use."""


@dataclass(frozen=True, eq=False)
class CalibrateOptions:
    """How to calibrate.

    Parameters
    ----------
    pixel_size_um : float
    focal_length_mm : float or None
        Nominal: a hint where the images leave F open, and a check of the result.
    scale : ScaleOptions
    sfm : SfmOptions
    points : int
        Scene points to measure.
    views : int
        In which each is measured at most.
    rounds : int
        Of measuring and adjusting at most.
    distortion, tilt : str
        As in `AdjustOptions`.
    loss : str
    priors : bool
        Whether to use what is known from how cameras are made: c is near the middle of the image,
        and tangential distortion is small. See `camera_priors`.
    timestamps : tuple of float or None
        Of all frames, for poses.txt and to find them in a known trajectory; None: their indices.
    """

    pixel_size_um: float
    focal_length_mm: float | None = None
    scale: ScaleOptions = field(default_factory=ScaleOptions)
    sfm: SfmOptions = field(default_factory=SfmOptions)
    points: int = 1000
    views: int = 24
    rounds: int = 3
    distortion: str = "brown"
    tilt: str = "auto"
    loss: str = "cauchy"
    priors: bool = True
    timestamps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        low, high = _PIXEL_SIZES_UM
        if not low <= self.pixel_size_um <= high:
            raise InputError(
                f"pixel size is {self.pixel_size_um} um, needs {low} to {high}: look it up in the "
                "sensor's data sheet"
            )
        if self.focal_length_mm is not None and not self.focal_length_mm > 0.0:
            raise InputError(f"focal length is {self.focal_length_mm} mm, needs a positive number")
        # raises a ConfigError that names what is wrong
        AdjustOptions(loss=self.loss, distortion=self.distortion, tilt=self.tilt)
        for name, value, least in (
            ("points", self.points, 50),
            ("views", self.views, 2),
            ("rounds", self.rounds, 1),
        ):
            if value < least:
                raise InputError(f"{name} is {value}, needs {least} or more")

    @property
    def pixel_size_mm(self) -> float:
        """Pixel size in mm."""
        return self.pixel_size_um / 1000.0

    def time_frames(self, frame_indices: IntArray) -> FloatArray:
        """Return the timestamps of frames."""
        if self.timestamps is None:
            return frame_indices.astype(np.float64)
        return np.asarray(self.timestamps, np.float64)[frame_indices]

    def as_dict(self) -> dict[str, Any]:
        """Return the options for JSON."""
        return json.loads(json.dumps(asdict(self), default=str))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibrated camera and where its files are.

    Parameters
    ----------
    camera : PlenopticCamera
    summary : mapping
        What summary.json holds; docs/reading-the-report.md explains every entry.
    folder : Path
    adjustment : Adjustment or None
        With residuals, poses and points; None if the folder was finished already.
    problems : tuple of str
        Frames that could not be used.
    """

    camera: PlenopticCamera
    summary: Mapping[str, Any]
    folder: Path
    adjustment: Adjustment | None = None
    problems: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """What to think of it, in one line."""
        return str(self.summary["verdict"]["text"])

    def __repr__(self) -> str:
        p = self.camera.parameters
        return (
            f"Calibration(f_L = {p.focal_length_mm:.4f} mm, b_L0 = {p.lens_to_array_mm:.4f} mm, "
            f"B = {p.array_to_sensor_mm:.5f} mm, c = ({p.principal_x_px:.2f}, "
            f"{p.principal_y_px:.2f}) px; {self.verdict})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td>{entry['value']:.7g}</td><td>{entry['sigma']:.2g}</td></tr>"
            for name, entry in self.summary["parameters"].items()
        )
        return (
            f"<p>{self.verdict}</p><table><tr><th></th><th>value</th><th>sigma</th></tr>"
            f"{rows}</table>"
        )


def calibrate_frames(
    frames: Frames,
    folder: Path,
    options: CalibrateOptions,
    sources: Mapping[str, Path | None],
    listener: Listener | None = None,
    sfm_engine: SfmEngine | None = None,
) -> Calibration:
    """Calibrate the camera that took the frames.

    Parameters
    ----------
    frames : Frames
    folder : Path
        Made if missing; an unfinished run with the same settings is continued.
    options : CalibrateOptions
    sources : mapping
        Paths (or None) of 'grid', 'white' and 'xml'.
    listener : Listener, optional
    sfm_engine : SfmEngine, optional
        What finds the first poses; COLMAP with `options.sfm` if it is not given.

    Raises
    ------
    DataError
        For files that cannot be used.
    EstimationError
        If the frames do not determine the camera; the message says why and what to do.
    """
    if options.timestamps is not None and len(options.timestamps) != len(frames):
        raise DataError(f"{len(options.timestamps)} timestamps for {len(frames)} frames")
    with hold_folder(folder):
        return _calibrate(
            frames,
            folder,
            options,
            sources,
            listener or Listener(),
            sfm_engine or ColmapEngine(options.sfm),
        )


def _calibrate(
    frames: Frames,
    folder: Path,
    options: CalibrateOptions,
    sources: Mapping[str, Path | None],
    listener: Listener,
    sfm: SfmEngine,
) -> Calibration:
    clock = _Clock()
    run = focus_frames(frames, folder, DepthOptions(), dict(sources), listener)
    if run.engine is None or not run.done:
        raise DataError(f"none of {len(frames)} frames can be used")
    clock.lap("grid, depth and focused images")
    key = _key(run, options, sfm)
    problems = tuple(str(problem) for _, problem in sorted(run.usable.problems.items()))
    finished = _read_finished(folder, key)
    if finished is not None:
        return replace(finished, problems=problems)
    focal_px = (
        None if options.focal_length_mm is None else options.focal_length_mm / options.pixel_size_mm
    )
    with compile_ahead(run.engine):
        model = track_frames(run, sfm, focal_px, listener)
        clock.lap("poses")
        bench = _Bench.build(run, model, options, listener)
        clock.lap("choosing points")
        bench.cut(listener)
        clock.lap("reading pixels")
        adjustment = bench.calibrate(listener)
        clock.lap("measuring and adjusting")
    names = [frames.names[i] for i in adjustment.problem.observations.view_ids]
    bias = measure_depth_bias(adjustment, DepthMaps(run, names))
    adjustment = replace(adjustment, camera=replace(adjustment.camera, depth_bias=bias))
    summary = _write_all(folder, run, bench, adjustment, key, clock)
    return Calibration(adjustment.camera, summary, folder, adjustment, problems)


class _Clock:
    """Time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


@dataclass(eq=False)
class _Bench:
    """What measuring and adjusting work on: views, points, micro images and their pixels."""

    run: FocusRun
    options: CalibrateOptions
    frame_indices: IntArray
    """Of each view."""
    geometry: Reconstruction
    tracks: Tracks
    images: MicroImages
    grid: MicroLensGrid
    optics: LensOptics
    measure_options: MeasureOptions
    distances: Distances | None
    positions: CameraPositions | None
    fixed: Mapping[str, float]
    """Parameters of the camera that are held, because they give the scale."""
    findings: list[Finding]
    found_px: FloatArray
    """Where points were measured before, or markers and picked points are; NaN: not known."""
    anchored: BoolArray
    """Which images show a marker or a picked point as it was found."""
    patches: Patches | None = None
    planes: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    """Slopes of the tracks that lie on markers; NaN for others."""
    slopes: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    array_to_sensor_px: float | None = None
    """B, as soon as it is known: not before the first adjustment, and not without a scale."""

    @classmethod
    def build(
        cls, run: FocusRun, model: SfmModel, options: CalibrateOptions, listener: Listener
    ) -> _Bench:
        """Bring the model to a plenoptic camera, and choose what is measured."""
        assert run.engine is not None
        grid, optics = run.engine.grid, run.engine.optics
        view_images = np.flatnonzero(model.registered)
        names = [run.done[i] for i in view_images]
        place = {name: index for index, name in enumerate(run.usable.frames.names)}
        frame_indices = np.array([place[name] for name in names], np.int64)
        depth_map = DepthMaps(run, names)
        findings = [*run.record.findings, *run.usable.findings, *model.findings]
        with listener.status("choosing points"):
            begin = start_geometry(model, run)
            geometry, tracked = begin.geometry, (begin.point_indices, begin.view_indices)
        scale = find_scale(
            options.scale.list_sources(),
            ScaleViews(
                geometry,
                tuple(run.usable.frames.names),
                frame_indices,
                options.time_frames(frame_indices),
                float(run.record.content["settings"]["scale"]),
                lambda view: read_gray(run.record.paths(names[view])["focused"]),
                lambda view, xy: float(sample_map(*depth_map(view), xy[None])[0]),
            ),
            listener,
        )
        extra = scale.points
        findings += scale.findings
        with listener.status("choosing points"):
            window = float(
                np.clip(_WINDOW_SHARE * optics.radius_px, _LEAST_WINDOW_PX, _MOST_WINDOW_PX)
            )
            tracks = choose_tracks(
                geometry,
                *tracked,
                depth_map,
                grid.image_size,
                window,
                options.points,
                None if extra is None else extra.points_world,
            )
            if len(tracks) < 20:
                raise EstimationError(
                    f"only {len(tracks)} of {len(geometry.points_world_mm)} scene points lie "
                    "apart, on smooth surfaces, with a known virtual depth (need 20): more "
                    "texture, or nearer things, would help",
                    stage="measure",
                )
            geometry = replace(geometry, points_world_mm=geometry.points_world_mm[tracks.points])
            tracks = replace(tracks, points=np.arange(len(tracks)))
        distances = None
        if extra is not None:
            distances = extra.distances(len(tracks))
            geometry = replace(
                geometry,
                points_world_mm=np.concatenate([geometry.points_world_mm, extra.points_world]),
            )
            tracks = Tracks(
                np.arange(len(geometry.points_world_mm)),
                np.concatenate([tracks.references, extra.references]),
            )
        measure_options = MeasureOptions(window_px=window)
        with listener.status("choosing micro images"):
            pairs = find_views(geometry, tracks, depth_map, grid.image_size, options.views)
            images = _choose_images(geometry, tracks, pairs, grid, optics, measure_options)
        found_px = np.full((len(images), 2), np.nan)
        anchored = np.zeros(len(images), np.bool_)
        planes = np.full((len(tracks), 2), np.nan)
        if extra is not None:
            first = len(tracks) - len(extra.points_world)
            anchored, found_px = _anchor(geometry, images, extra, first)
            tangents = compute_tangents(geometry, tracks.points[first:], extra.references)
            planes[first:] = slopes_of_planes(tangents, extra.normals_world)
        return cls(
            run,
            options,
            frame_indices,
            geometry,
            tracks,
            images,
            grid,
            optics,
            measure_options,
            distances,
            scale.positions,
            scale.fixed,
            findings,
            found_px,
            anchored,
            planes=planes,
            slopes=np.nan_to_num(planes),
        )

    def cut(self, listener: Listener) -> None:
        """Read the raw frames once more, and keep the pixels around the points."""
        engine = self.run.engine
        assert engine is not None
        side = self.measure_options.patch_side
        n = len(self.images)
        corners = np.zeros((n, 2), np.int64)
        values = np.full((n, side, side), np.nan, np.float32)
        with listener.steps("reading pixels", len(self.frame_indices)) as step:
            for view, index in enumerate(self.frame_indices.tolist()):
                here = np.flatnonzero(self.images.views == view)
                frame = self.run.usable[index]
                image = engine.devignette(frame)
                image[frame.gray >= _SATURATED] = np.nan
                patches = cut_patches(image, self.images.places_px[here], self.measure_options)
                corners[here], values[here] = patches.corners_px, patches.values
                step("")
        self.patches = Patches(corners, values)

    def calibrate(self, listener: Listener) -> Adjustment:
        """Measure and adjust until nothing changes."""
        found: Adjustment | None = None
        text = "measuring and adjusting (compiling, the first time only)"
        with listener.steps(text, self.options.rounds) as step:
            for _ in range(self.options.rounds):
                before = found
                if before is not None:
                    self._take(before)
                found = self._adjust(self._measure())
                # From here on, textures and places begin near where they end.
                self.measure_options = replace(self.measure_options, rounds=_LATER_ROUNDS)
                step("measuring and adjusting")
                if before is not None and _is_settled(before, found):
                    break
        assert found is not None
        self._check(found)
        with listener.status("cross-validating: solving halves of the recording"):
            return cross_validate(found, self._adjust_options())

    def _measure(self) -> Observations:
        assert self.patches is not None
        tracks = np.unique(self.images.tracks)
        planes = self.planes[tracks]
        tangents = np.where(np.isfinite(planes[:, 0]), _PLANE_TANGENT, _STEEPEST)
        measured = measure(
            spread_windows(self.images, self.geometry, self.grid, self.array_to_sensor_px),
            self.patches,
            self.grid,
            self._optics(),
            tangents * self._texture_px() / self.geometry.array.focal_px,
            self.measure_options,
            slopes=self.slopes[tracks],
            slope_means=np.nan_to_num(planes),
            found_px=self.found_px,
            anchored=self.anchored,
        )
        self.found_px = measured.places_px
        self.slopes[tracks] = measured.slopes
        good = measured.status == MeasureStatus.MEASURED
        self.anchored = self.anchored & good  # those that failed do not show where the point is
        good &= _is_consistent(self.images, good, len(self.tracks))
        self._check_scale(self.images.tracks[good])
        if not good.any():
            raise EstimationError(
                f"none of {len(self.tracks)} points could be measured in {_FEWEST_VIEWS} views",
                stage="measure",
            )
        images = self.images.select(good)
        shifts = compute_shading_shifts(images, self.geometry, self.grid, self.array_to_sensor_px)
        shifts += compute_tilt_shifts(images, self.geometry, self.grid)
        return Observations.from_arrays(
            self.frame_indices[images.views],
            images.tracks,
            self.grid.centers_raw_px[images.lenses],
            measured.points_raw_px[good] - shifts,
            covariances_px2=measured.covariances_px2[good],
            lens_types=self.grid.lens_types[images.lenses],
        )

    def _optics(self) -> LensOptics:
        """Return the tables of the micro lenses, each with its own focal plane behind a tilt."""
        geometry = self.geometry
        if geometry.array_tilt is None:
            return self.optics
        centers = geometry.distortion.undistort(self.grid.centers_raw_px, geometry.principal_px)
        return self.optics.behind_tilt(self.grid, geometry.tau(centers))

    def _check_scale(self, measured_tracks: IntArray) -> None:
        """Raise EstimationError if no known distance has both its ends measured."""
        if self.distances is None:
            return
        if self.distances.are_between(measured_tracks).any():
            return
        raise EstimationError(
            f"no {self.distances.source} could be measured in {_FEWEST_VIEWS} views: is what they "
            "lie on flat, textured, and visible in several frames? Pick other points",
            stage="measure",
        )

    def _texture_px(self) -> float:
        """Return how many px of the virtual image a px of the texture is, in the middle."""
        return float(np.median(1.0 / np.abs(self.images.rhos)))

    def _adjust(self, observations: Observations) -> Adjustment:
        geometry, options = self.geometry, self.options
        views = np.searchsorted(self.frame_indices, observations.view_ids)
        state = replace(
            geometry,
            rotations=geometry.rotations[views],
            translations_mm=geometry.translations_mm[views],
            points_world_mm=geometry.points_world_mm[observations.point_ids],
            tilt=np.zeros(0),  # adjusted anew each time, and left out again if it does not pay
        )
        return adjust(
            observations,
            state,
            options.pixel_size_mm,
            self.grid,
            self._adjust_options(),
            distances=self.distances,
            positions=self.positions,
        )

    def _adjust_options(self) -> AdjustOptions:
        term, strength = _focus_term(self.grid)
        options = self.options
        return AdjustOptions(
            loss=options.loss,
            distortion=options.distortion,
            tilt=options.tilt,
            fixed=dict(self.fixed),
            priors=camera_priors(self.grid.image_size, options.distortion)
            if options.priors
            else {},
            focus=term,
            focus_strength=strength,
            plane_error=_PLANE_ERROR,
            clustered=True,
            scale_error=0.0 if self.distances is None else _SCALE_ERROR,
            magnification_error=_MAGNIFICATION_ERROR,
        )

    def _take(self, found: Adjustment) -> None:
        """Predict anew from what was found."""
        state, observations = found.state, found.problem.observations
        if found.problem.scale_source is not None:
            camera = found.camera
            self.array_to_sensor_px = camera.parameters.array_to_sensor_mm / camera.pixel_size_mm
        views = np.searchsorted(self.frame_indices, observations.view_ids)
        kept = np.zeros(len(self.tracks), np.bool_)
        kept[observations.point_ids] = True
        seen = np.zeros(len(self.frame_indices), np.bool_)
        seen[views] = True
        rotations = self.geometry.rotations.copy()
        translations = self.geometry.translations_mm.copy()
        points = self.geometry.points_world_mm.copy()
        rotations[views] = state.rotations
        translations[views] = state.translations_mm
        points[observations.point_ids] = state.points_world_mm
        self.geometry = replace(
            self.geometry,
            array=state.array,
            distortion=state.distortion,
            rotations=rotations,
            translations_mm=translations,
            points_world_mm=points,
            tilt=state.tilt,
        )
        self._keep(kept[self.images.tracks] & seen[self.images.views])
        tangents = compute_tangents(self.geometry, self.tracks.points, self.tracks.references)
        images = self.images
        self.images = predict(
            self.geometry, self.grid, tangents, images.tracks, images.views, images.lenses
        )

    def _keep(self, keep: BoolArray) -> None:
        assert self.patches is not None
        if not keep.all():
            self.images = self.images.select(keep)
            self.patches = Patches(self.patches.corners_px[keep], self.patches.values[keep])
            self.found_px, self.anchored = self.found_px[keep], self.anchored[keep]

    def _check(self, found: Adjustment) -> None:
        pitch_mm = self.grid.pitch_px * self.options.pixel_size_mm
        opening = found.camera.parameters.array_to_sensor_mm / pitch_mm
        if found.problem.scale_source is not None and not _OPENINGS[0] < opening < _OPENINGS[1]:
            self.findings.append(
                Finding.of(
                    "micro-lens-opening",
                    f"B and the micro lenses do not fit: their f-number would be {opening:.2g}. Is "
                    f"the pixel size ({self.options.pixel_size_um:g} um) right, and the scale?",
                    f_number=opening,
                )
            )


# Choosing what is measured


def _choose_images(
    geometry: Reconstruction,
    tracks: Tracks,
    pairs: tuple[IntArray, IntArray],
    grid: MicroLensGrid,
    optics: LensOptics,
    options: MeasureOptions,
) -> MicroImages:
    """Return the micro images that show points sharp, not at the rim, and at a like scale."""
    most = optics.radius_px - _RIM_PX
    owners, lenses = find_micro_images(geometry, grid, *pairs, most)
    tangents = compute_tangents(geometry, tracks.points, tracks.references)
    images = predict(geometry, grid, tangents, pairs[0][owners], pairs[1][owners], lenses)
    _, blurs = defocus_terms(images, optics)
    scales = np.sqrt(np.abs(np.linalg.det(images.jacobians)))
    last = np.array(grid.image_size) - 1.0
    inside = ((images.places_px >= 0.0) & (images.places_px <= last)).all(axis=1)
    return images.select(
        (blurs < options.most_blur_px)
        & (scales > _SCALES[0])
        & (scales < _SCALES[1])
        & (images.offsets_px < most)
        & inside
    )


def _anchor(
    geometry: Reconstruction, images: MicroImages, points: ScalePoints, first: int
) -> tuple[BoolArray, FloatArray]:
    """Return which micro images show a point where it was found, and where they show it."""
    place = {
        (first + point, view): xy
        for point, view, xy in zip(
            points.seen_points.tolist(), points.seen_views.tolist(), points.seen_px, strict=True
        )
    }
    found = np.full((len(images), 2), np.nan)
    for i in np.flatnonzero(images.tracks >= first).tolist():
        xy = place.get((int(images.tracks[i]), int(images.views[i])))
        if xy is not None:
            found[i] = xy
    anchored = np.isfinite(found).all(axis=1)
    cam = geometry.cam_points(images.tracks[anchored], images.views[anchored])
    predicted, _ = geometry.virtual_points(cam)
    # What is off by a px in the virtual image is off by 1 / u in a micro image.
    off = (found[anchored] - predicted) * images.rhos[anchored, None]
    found[anchored] = images.places_px[anchored] + off
    return anchored, found


def _is_consistent(images: MicroImages, good: BoolArray, n_tracks: int) -> BoolArray:
    """Tell which images are of tracks that were measured in most of them and in enough views."""
    measured = np.bincount(images.tracks[good], minlength=n_tracks)
    tried = np.bincount(images.tracks, minlength=n_tracks)
    pairs = np.unique(np.stack([images.tracks[good], images.views[good]]), axis=1)
    views = np.bincount(pairs[0], minlength=n_tracks)
    fit = (views >= _FEWEST_VIEWS) & (measured >= _LEAST_MEASURED * tried)
    return np.asarray(fit[images.tracks])


def camera_priors(image_size: tuple[int, int], distortion: str) -> dict[str, Prior]:
    """Return what is known of a camera from how cameras are made, before any image is seen.

    The principal point is at the middle of the image within 2 % of its width, and a tangential
    term displaces the left and right edges by 0.2 % of half the width (one sigma each).

    Parameters
    ----------
    image_size : (int, int)
        Width and height, px.
    distortion : str
        As in `AdjustOptions`; only Brown's model has tangential terms.
    """
    width, height = image_size
    priors = {
        "c_x": Prior(0.5 * (width - 1), _CENTER_SIGMA * width),
        "c_y": Prior(0.5 * (height - 1), _CENTER_SIGMA * width),
    }
    if distortion in ("auto", "brown"):
        # A term p displaces a point at the radius r by up to 3 p r^2.
        sigma = _TANGENTIAL_SIGMA / (3.0 * 0.5 * width)
        priors |= {"p0": Prior(0.0, sigma), "p1": Prior(0.0, sigma)}
    return priors


def _focus_term(grid: MicroLensGrid) -> tuple[FocusTerm | None, float | Prior]:
    if grid.focal_planes is None:
        return None, 0.0
    if grid.discs is None:
        return FocusTerm.from_grid(grid, "linear"), Prior(*_LINEAR_FOCUS)
    return FocusTerm.from_grid(grid, "devignetted"), 1.0


def _is_settled(before: Adjustment, after: Adjustment) -> bool:
    """Tell whether no intrinsic moved by more than a part of its sigma."""
    sigmas = after.covariance.sigmas()
    names = after.problem.names
    if before.problem.names != names:
        return False
    moved = np.abs(after.state.as_vector() - before.state.as_vector())
    limits = np.array([sigmas.get(name, 0.0) for name in names])
    held = limits <= 0.0
    return bool((moved <= _SETTLED_SIGMAS * limits)[~held].all())


# Files


def _key(run: FocusRun, options: CalibrateOptions, sfm: SfmEngine) -> str:
    entries = run.record.content["frames"]
    content = {
        "version": __version__,
        "options": options.as_dict(),
        "sfm": dict(sfm.describe()),
        "scale": [dict(source.describe()) for source in options.scale.list_sources()],
        "settings": run.record.content["settings"],
        "frames": [(name, entries[name]["checksum"]) for name in run.done],
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_finished(folder: Path, key: str) -> Calibration | None:
    """Return the calibration in a folder if it was made from the same input."""
    if not all((folder / name).is_file() for name in FILES):
        return None
    try:
        summary = read_json(folder / "summary.json")
        if summary.get("provenance", {}).get("key") != key:
            return None
        if summary.get("files") != _digest_results(folder):
            return None
        return Calibration(read_camera(folder / "camera.json"), summary, folder)
    except (DataError, ConfigError, AttributeError):
        return None


def _digest_results(folder: Path) -> dict[str, str | None]:
    """Return what tells the files that a summary belongs to from others."""
    return digest_files({name: folder / name for name in FILES[: FILES.index("summary.json")]})


def _write_all(
    folder: Path,
    run: FocusRun,
    bench: _Bench,
    adjustment: Adjustment,
    key: str,
    clock: _Clock,
) -> dict[str, Any]:
    views = adjustment.problem.observations.view_ids
    registered = set(views.tolist())
    names = run.usable.frames.names
    times = bench.options.time_frames(np.arange(len(names)))
    entries = [
        FrameEntry(name, i, i in registered, float(times[i]), i not in run.usable.problems)
        for i, name in enumerate(names)
    ]
    middle = bench.frame_indices[len(bench.frame_indices) // 2]
    # The summary says that all is there: the old one goes first, the new one comes after the rest.
    for name in FILES[FILES.index("summary.json") :]:
        (folder / name).unlink(missing_ok=True)
    write_adjustment(folder, adjustment, times[views], summary=False)
    write_text(folder / "cameras.ply", _cameras_ply(adjustment))
    write_observations(folder / "observations.csv", adjustment.problem.observations)
    clock.lap("files")
    summary = build_statistics(
        adjustment,
        frames=entries,
        pictures=_pictures(run, names[int(middle)]),
        provenance={
            "lifcal": __version__,
            "key": key,
            "frames": len(names),
            "first frame": run.usable.frames.source(0),
            "grid": run.record.content["grid"].get("source"),
            "options": bench.options.as_dict(),
            "settings": run.record.content["settings"],
        },
        seconds=clock.seconds,
        nominal_focal_length_mm=bench.options.focal_length_mm,
        grid=run.record.content["grid"],
        findings=bench.findings,
    )
    summary["files"] = _digest_results(folder)
    summary["point_ids"] = adjustment.problem.observations.point_ids.tolist()
    write_json(folder / "summary.json", summary)
    write_report(summary, folder / "report.html")
    return summary


def _pictures(run: FocusRun, name: str) -> dict[str, str]:
    paths = run.record.paths(name)
    pictures = {}
    for key, path in (("focused", paths["focused"]), ("depth", paths["color"])):
        image = np.asarray(read_image(path))
        if image.dtype == np.uint16:
            image = (image // 257).astype(np.uint8)
        rows, cols = image.shape[:2]
        width = min(_PICTURE_WIDTH, cols)
        small = fit(np.asarray(image, np.uint8), width, max(round(rows * width / cols), 1))
        pictures[key] = base64.b64encode(encode_jpeg(small)).decode()
    return pictures


def _cameras_ply(adjustment: Adjustment) -> str:
    """Return the cameras as pyramids of lines, metres: apex at the main lens."""
    camera, state = adjustment.camera, adjustment.state
    width, height = camera.image_size
    places = state.positions_world_mm()
    spread = float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    size = 0.05 * max(spread, 1e-9)
    x, y = 0.5 * size * width / camera.array.focal_px, 0.5 * size * height / camera.array.focal_px
    shape = np.array([[0, 0, 0], [-x, -y, size], [x, -y, size], [x, y, size], [-x, y, size]])
    edges = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]])
    rows, lines = [], []
    for i, pose in enumerate(adjustment.cam_from_world):
        corners = pose.inverse().apply(shape) / 1000.0
        rows += [f"{a:.9f} {b:.9f} {c:.9f}" for a, b, c in corners.tolist()]
        lines += [f"{a} {b}" for a, b in (edges + 5 * i).tolist()]
    header = [
        "ply",
        "format ascii 1.0",
        "comment cameras, world frame, metres",
        f"element vertex {len(rows)}",
        "property double x",
        "property double y",
        "property double z",
        f"element edge {len(lines)}",
        "property int vertex1",
        "property int vertex2",
        "end_header",
    ]
    return "\n".join([*header, *rows, *lines]) + "\n"
