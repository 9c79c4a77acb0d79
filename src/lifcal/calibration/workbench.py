"""The workbench: what measuring and adjusting work on, and their steps.

A calibration adds views, starts from poses, chooses points, and then measures and adjusts in turn
(`batch.py`). A program of its own can put the steps in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle import (
    Adjustment,
    AdjustOptions,
    CameraPositions,
    Distances,
    JointPrior,
    VirtualStart,
    adjust,
)
from lifcal.bundle.cross_validation import name_world_split
from lifcal.calibration.joining import Finished
from lifcal.calibration.options import CalibrateOptions
from lifcal.calibration.priors import camera_priors, choose_focus_term
from lifcal.calibration.start import ViewStart, start_from_models
from lifcal.calibration.views import DepthMaps, View
from lifcal.camera import MicroLensGrid
from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.listener import Listener, choose_listener
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
from lifcal.reconstruction import Observations, Reconstruction
from lifcal.scale import ScaleKnowledge, ScalePoints, ScaleViews, find_scale
from lifcal.scale.picked import find_frame
from lifcal.sfm import SfmModel
from lifcal.virtual.optics import LensOptics

T = TypeVar("T")

_RIM_PX = 1.0
"""Points nearer to the rim of the used part of a micro image are not measured there: most of their
window would be cut off."""
_STEEPEST = 1.7
"""Prior of the slope of a surface, before it is measured: the tangent of its angle to the reference
view has mean 0 and this standard deviation, so one surface in three is steeper than 60 degrees."""
_PLANE_TANGENT = 0.01
"""Standard deviation of the same tangent where the surface is a marker, whose corners determine its
plane."""
_LATER_ROUNDS = 3
"""Rounds of texture and places in later measurements. They begin near where the first one ended, so
fewer are enough."""
_LEAST_MEASURED = 0.5
"""Share of a track's micro images that must be measured: with fewer, its texture is not what most
of them show."""
_FEWEST_POINTS = 20
"""Points that a calibration needs: with fewer, a few wrong ones could not be told from the rest."""
_OTHER_CAMERA_SIGMAS = 6.0
"""Difference between the camera of one scene and that of the others, in sigmas, from which they are
not one camera. Systematic errors of good recordings make up to 4."""
_OPENINGS = (1.0, 30.0)
"""f-numbers that micro lenses can have. Lenses below the first cannot be made, and those above the
second would be blurred by diffraction."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Micro images that show points, and the raw pixels around them.

    Parameters
    ----------
    images : MicroImages
        Which image shows which point of which view, and where it is predicted.
    found_px : (n, 2) float64
        Where points were measured before, or markers and picked points are; NaN: not known.
    anchored : (n,) bool
        Which images show a marker or a picked point as it was found.
    patches : Patches or None
        None until the pixels are read.
    """

    images: MicroImages
    found_px: FloatArray
    anchored: BoolArray
    patches: Patches | None = None

    def select(self, keep: BoolArray) -> Windows:
        """Return some of them."""
        if keep.all():
            return self
        patches = self.patches
        if patches is not None:
            patches = Patches(patches.corners_px[keep], patches.values[keep])
        return Windows(self.images.select(keep), self.found_px[keep], self.anchored[keep], patches)


@dataclass(frozen=True, eq=False)
class Points:
    """The scene points that are measured: `Workbench.reconstruction` holds where they are.

    Parameters
    ----------
    tracks : Tracks
        Point and reference view of each.
    planes : (n, 2) float64
        Slopes of those that lie on markers; NaN for others.
    slopes : (n, 2) float64
        Slopes of the surfaces, as they were measured last.
    """

    tracks: Tracks
    planes: FloatArray
    slopes: FloatArray


@dataclass(eq=False)
class Workbench:
    """Views, points, micro images and their pixels, and the steps that work on them.

    The steps in their usual order: `add_view` for each frame, `start`, `choose_points`, then in
    turn `measure`, `adjust` and `accept`, until nothing changes. `check` says what is odd. A step
    may be repeated: what it found and noticed before is replaced. `choose_points` always begins
    from what `start` found.

    Parameters
    ----------
    grid : MicroLensGrid
    optics : LensOptics
        Optics of the engine that focused the views.
    image_scale : float
        Size of the focused images relative to the raw.
    options : CalibrateOptions
    frame_names : tuple of str
        Names of all frames of the recordings, in order; picked points refer to them. Those of the
        views if it is empty.
    noticed : tuple of Finding
        What was noticed before the first step, when the grid was found or frames were focused.
    recording_names : tuple of str
        Names of the recordings, for messages; numbers if it is empty.
    """

    grid: MicroLensGrid
    optics: LensOptics
    image_scale: float
    options: CalibrateOptions
    frame_names: tuple[str, ...] = ()
    noticed: tuple[Finding, ...] = ()
    recording_names: tuple[str, ...] = ()
    views: list[View] = field(default_factory=list)
    """Those that have a pose, once `start` was called."""
    joint: JointPrior | None = None
    """What is known of the intrinsics from elsewhere, with their correlations."""
    array_to_sensor_px: float | None = None
    """B, as soon as it is known: not before the first adjustment, and not without a scale."""
    _finished: Finished | None = None
    _findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _begin: ViewStart | None = None
    _reconstruction: Reconstruction | None = None
    _scale: ScaleKnowledge = field(default_factory=ScaleKnowledge)
    _points: Points | None = None
    _windows: Windows | None = None
    _measure_options: MeasureOptions = field(default_factory=MeasureOptions)

    @property
    def reconstruction(self) -> Reconstruction:
        """Camera, poses of the views, and points, as they are known so far."""
        return _need(self._reconstruction, "start")

    @property
    def points(self) -> Points:
        """The points that are measured."""
        return _need(self._points, "choose_points")

    @property
    def windows(self) -> Windows:
        """The micro images that are measured."""
        return _need(self._windows, "choose_points")

    @property
    def findings(self) -> list[Finding]:
        """What was noticed before the first step and by each step, the last time it was taken."""
        return [*self.noticed, *(each for found in self._findings.values() for each in found)]

    @property
    def frame_indices(self) -> IntArray:
        """Number of each view's frame in its recording, (n_views,)."""
        return np.array([view.index for view in self.views], np.int64)

    @property
    def distances(self) -> Distances | None:
        """Known distances between points that are measured."""
        extra = self._scale.points
        if extra is None:
            return None
        return extra.distances(len(self.points.tracks) - len(extra.points_world))

    @property
    def positions(self) -> CameraPositions | None:
        """Known positions of the camera."""
        return self._scale.positions

    # Steps

    def add_view(self, view: View) -> None:
        """Add a frame that was focused.

        Raises
        ------
        InputError
            If its index is not larger than that of the view before.
        """
        if self.views and view.index <= self.views[-1].index:
            raise InputError(
                f"view {view.name} has the index {view.index}, needs more than "
                f"{self.views[-1].index}, that of the view before"
            )
        self.views.append(view)

    def add_finished(self, found: Adjustment) -> None:
        """Adjust the scenes of a finished calibration of the same camera together with the new.

        What was measured then is used again, beside what is measured now. It is as if all had been
        calibrated together, but that nothing of the finished calibration is measured anew, so its
        raws are not needed. Call it before `start`, whose start values are then those of the
        finished camera.

        Parameters
        ----------
        found : Adjustment
            In adjustments of this workbench, the numbers of its views follow those of all frames
            (`first_finished_view`), in their order.
        """
        if not np.isclose(found.problem.pixel_size_mm, self.options.pixel_size_mm, rtol=1e-6):
            raise InputError(
                f"the finished calibration has pixels of {1000.0 * found.problem.pixel_size_mm:g} "
                f"um, not of {self.options.pixel_size_um:g} um"
            )
        if found.camera.image_size != self.grid.image_size:
            raise InputError(
                "the finished calibration has images of {} x {} px, not of {} x {} px".format(
                    *found.camera.image_size, *self.grid.image_size
                )
            )
        self._finished = Finished.of(found)

    @property
    def first_finished_view(self) -> int:
        """Number of the first view of a finished calibration that was added."""
        last = max((view.index for view in self.views), default=-1)
        return max(len(self.frame_names), last + 1)

    def start(self, model: SfmModel | Sequence[SfmModel]) -> None:
        """Take poses and tracks from structure from motion; views without a pose are left out.

        Parameters
        ----------
        model : SfmModel, or sequence of SfmModel
            With one entry for each view that was added, in their order. Several models are of
            several scenes (`find_models`), and no view has a pose in two of them.

        Raises
        ------
        EstimationError
            If too few tracked points have a virtual depth.
        """
        models = [model] if isinstance(model, SfmModel) else list(model)
        for each in models:
            if len(each.cam_from_sfm) != len(self.views):
                raise InputError(
                    f"the model has {len(each.cam_from_sfm)} images, {len(self.views)} views were "
                    "added"
                )
        times_registered = np.sum([each.registered for each in models], axis=0)
        if not models or times_registered.max(initial=0) > 1:
            raise InputError("start needs models of different views, and at least one")
        camera = None if self._finished is None else self._finished.state
        begin = start_from_models(models, self.views, self.image_scale, camera)
        self.views = [self.views[i] for i in np.flatnonzero(times_registered).tolist()]
        self._begin, self._reconstruction = begin, begin.reconstruction
        self._findings["start"] = tuple(found for each in models for found in each.findings)

    def begin(
        self, reconstruction: Reconstruction, point_indices: IntArray, view_indices: IntArray
    ) -> None:
        """Begin from a camera, poses and points that are known, those of a map for example.

        It takes the place of `start`.

        Parameters
        ----------
        reconstruction : Reconstruction
            With one pose for each view that was added, in their order.
        point_indices, view_indices : (n_tracked,) int64
            Which point was found in which view, sorted by point and view.
        """
        if len(reconstruction.rotations) != len(self.views):
            raise InputError(
                f"the reconstruction has {len(reconstruction.rotations)} poses, "
                f"{len(self.views)} views were added"
            )
        unknown = VirtualStart(reconstruction, np.nan, np.nan, np.nan, np.nan)
        worlds = np.zeros(len(self.views), np.int64)
        self._begin = ViewStart(reconstruction, point_indices, view_indices, unknown, worlds)
        self._reconstruction = reconstruction

    def choose_points(self, listener: Listener | None = None) -> None:
        """Ask for the scale, and choose points and the micro images that show them.

        Raises
        ------
        DataError
            If markers or picked points are not there.
        EstimationError
            If too few points lie on smooth surfaces with a known virtual depth.
        """
        listener = choose_listener(listener)
        begin, options = _need(self._begin, "start"), self.options.measure
        self._reconstruction = state = begin.reconstruction
        self.array_to_sensor_px = None
        depth_map = DepthMaps(self.views, self.image_scale)
        self._scale, noticed = self._find_scale(begin.worlds, depth_map, listener)
        if self._finished is not None:
            self._scale = self._scale.unite(self._finished.known)
        extra = self._scale.points
        with listener.status("choosing points"):
            window = options.choose_window(self.optics.radius_px)
            tracks, more = self._choose_tracks(begin, depth_map, window)
            points, references = state.points_world_mm[tracks.points], tracks.references
            if extra is not None:
                points = np.concatenate([points, extra.points_world])
                references = np.concatenate([references, extra.references])
            state = replace(state, points_world_mm=points)
            tracks = Tracks(np.arange(len(points)), references)
        self._findings["choose_points"] = (*noticed, *more)
        options = replace(options, window_px=window)
        with listener.status("choosing micro images"):
            pairs = find_views(
                state, tracks, depth_map, self.grid.image_size, options.views, begin.worlds
            )
            images = _choose_images(state, tracks, pairs, self.grid, self.optics, options)
        found_px = np.full((len(images), 2), np.nan)
        anchored = np.zeros(len(images), np.bool_)
        planes = np.full((len(tracks), 2), np.nan)
        if extra is not None:
            first = len(tracks) - len(extra.points_world)
            anchored, found_px = _anchor(state, images, extra, first)
            tangents = compute_tangents(state, tracks.points[first:], extra.references)
            planes[first:] = slopes_of_planes(tangents, extra.normals_world)
        self._reconstruction = state
        self._measure_options = options
        self._points = Points(tracks, planes, np.nan_to_num(planes))
        self._windows = Windows(images, found_px, anchored)

    def read_pixels(self, listener: Listener | None = None) -> None:
        """Read the raw frames once more, and keep the pixels around the points."""
        listener = choose_listener(listener)
        images, side = self.windows.images, self._measure_options.patch_side
        corners = np.zeros((len(images), 2), np.int64)
        values = np.full((len(images), side, side), np.nan, np.float32)
        with listener.steps("reading pixels", len(self.views)) as step:
            for number, view in enumerate(self.views):
                here = np.flatnonzero(images.views == number)
                patches = cut_patches(
                    view.read_flat(), images.places_px[here], self._measure_options
                )
                corners[here], values[here] = patches.corners_px, patches.values
                step("")
        self._windows = replace(self.windows, patches=Patches(corners, values))

    def measure(self) -> Observations:
        """Measure every point in its micro images, near where it is predicted or was found.

        Raises
        ------
        EstimationError
            If no point could be measured in enough views, or nothing that gives the scale.
        """
        windows, points, state = self.windows, self.points, self.reconstruction
        tracks = np.unique(windows.images.tracks)
        planes = points.planes[tracks]
        tangents = np.where(np.isfinite(planes[:, 0]), _PLANE_TANGENT, _STEEPEST)
        # How many px of the virtual image a px of the texture is, in the middle.
        texture_px = float(np.median(1.0 / np.abs(windows.images.rhos)))
        optics = self._own_optics()
        shading = self.array_to_sensor_px, optics.pixel_px2
        measured = measure(
            spread_windows(windows.images, state, self.grid, *shading),
            _need(windows.patches, "read_pixels"),
            self.grid,
            optics,
            tangents * texture_px / state.array.focal_px,
            self._measure_options,
            slopes=points.slopes[tracks],
            slope_means=np.nan_to_num(planes),
            found_px=windows.found_px,
            anchored=windows.anchored,
        )
        # From here on, textures and places begin near where they end.
        self._measure_options = replace(self._measure_options, rounds=_LATER_ROUNDS)
        slopes = points.slopes.copy()
        slopes[tracks] = measured.slopes
        self._points = replace(points, slopes=slopes)
        good = measured.status == MeasureStatus.MEASURED
        # Those that failed do not show where the point is.
        self._windows = replace(
            windows, found_px=measured.places_px, anchored=windows.anchored & good
        )
        fewest = self.options.measure.fewest_views
        good &= _is_consistent(windows.images, good, len(points.tracks), fewest)
        self._check_scale(windows.images.tracks[good])
        if not good.any():
            raise EstimationError(
                f"none of {len(points.tracks)} points could be measured in {fewest} views",
                stage="measure",
            )
        images = windows.images.select(good)
        shifts = compute_shading_shifts(images, state, self.grid, *shading)
        shifts += compute_tilt_shifts(images, state, self.grid)
        return Observations.from_arrays(
            self.frame_indices[images.views],
            images.tracks,
            self.grid.centers_raw_px[images.lenses],
            measured.points_raw_px[good] - shifts,
            covariances_px2=measured.covariances_px2[good],
            lens_types=self.grid.lens_types[images.lenses],
        )

    def adjust(self, observations: Observations) -> Adjustment:
        """Adjust camera, poses and points to what was measured."""
        state = self.reconstruction
        views = np.searchsorted(self.frame_indices, observations.view_ids)
        start = replace(
            state,
            rotations=state.rotations[views],
            translations_mm=state.translations_mm[views],
            points_world_mm=state.points_world_mm[observations.point_ids],
            tilt=np.zeros(0),  # adjusted anew each time, and left out again if it does not pay
        )
        distances, positions = self.distances, self.positions
        if self._finished is not None:
            first_view, first_point = self.first_finished_view, len(self.points.tracks)
            observations = self._finished.join_observations(observations, first_view, first_point)
            start = self._finished.join_state(start)
            distances = self._finished.join_distances(distances, first_point)
            positions = self._finished.join_positions(positions, first_view)
        return adjust(
            observations,
            start,
            self.options.pixel_size_mm,
            self.grid,
            self.adjust_options,
            distances=distances,
            positions=positions,
            joint=self.joint,
        )

    def accept(self, found: Adjustment) -> None:
        """Go on from an adjustment: views and points that it left out go, others are predicted."""
        state, observations = found.state, found.problem.observations
        if found.problem.scale_source is not None:
            camera = found.camera
            self.array_to_sensor_px = camera.parameters.array_to_sensor_mm / camera.pixel_size_mm
        view_ids, point_ids = observations.view_ids, observations.point_ids
        if self._finished is not None:
            first_view, first_point = self.first_finished_view, len(self.points.tracks)
            self._finished = self._finished.follow(
                state,
                view_ids[view_ids >= first_view] - first_view,
                point_ids[point_ids >= first_point] - first_point,
            )
            view_ids = view_ids[view_ids < first_view]
            point_ids = point_ids[point_ids < first_point]
        views = np.searchsorted(self.frame_indices, view_ids)
        kept = np.zeros(len(self.points.tracks), np.bool_)
        kept[point_ids] = True
        seen = np.zeros(len(self.views), np.bool_)
        seen[views] = True
        before = self.reconstruction
        rotations = before.rotations.copy()
        translations = before.translations_mm.copy()
        points = before.points_world_mm.copy()
        rotations[views] = state.rotations[: len(view_ids)]
        translations[views] = state.translations_mm[: len(view_ids)]
        points[point_ids] = state.points_world_mm[: len(point_ids)]
        self._reconstruction = replace(
            before,
            array=state.array,
            distortion=state.distortion,
            rotations=rotations,
            translations_mm=translations,
            points_world_mm=points,
            tilt=state.tilt,
        )
        images = self.windows.images
        windows = self.windows.select(kept[images.tracks] & seen[images.views])
        tracks, images = self.points.tracks, windows.images
        tangents = compute_tangents(self.reconstruction, tracks.points, tracks.references)
        self._windows = replace(
            windows,
            images=predict(
                self.reconstruction,
                self.grid,
                tangents,
                images.tracks,
                images.views,
                images.lenses,
            ),
        )

    def check(self, found: Adjustment) -> None:
        """Notice if no micro lens can be what the adjustment says."""
        pitch_mm = self.grid.pitch_px * self.options.pixel_size_mm
        opening = found.camera.parameters.array_to_sensor_mm / pitch_mm
        self._findings["check"] = ()
        if found.problem.scale_source is not None and not _OPENINGS[0] < opening < _OPENINGS[1]:
            noticed = Finding.of(
                "micro-lens-opening",
                f"B and the micro lenses do not fit: their f-number would be {opening:.2g}. Is "
                f"the pixel size ({self.options.pixel_size_um:g} um) right, and the scale?",
                f_number=opening,
            )
            self._findings["check"] = (noticed,)

    def check_worlds(self, found: Adjustment) -> None:
        """Notice if a scene gives another camera than the others, after cross-validation."""
        self._findings["check_worlds"] = ()
        if found.cross_validation is None:
            return
        worlds = len(found.problem.worlds)
        splits = {split.name: split.in_sigmas() for split in found.cross_validation.splits}
        noticed = []
        for world in range(worlds):
            sigmas = splits.get(name_world_split(world), {})
            name = max(sigmas, key=lambda each: abs(sigmas[each]), default="")
            if name and abs(sigmas[name]) > _OTHER_CAMERA_SIGMAS:
                noticed.append(
                    Finding.of(
                        "recordings-disagree",
                        f"world {world + 1} and the others are not of one camera: their {name} "
                        f"differ by {abs(sigmas[name]):.1f} sigma. Was the lens focused anew, or "
                        "exchanged, between the recordings? Then calibrate them apart",
                        world=world + 1,
                        parameter=name,
                        sigmas=abs(sigmas[name]),
                    )
                )
        self._findings["check_worlds"] = tuple(noticed[:1])

    # What the steps need

    @property
    def adjust_options(self) -> AdjustOptions:
        """How the adjustment is done."""
        term, strength = choose_focus_term(self.grid)
        options, given = self.options, self.options.adjust
        general = camera_priors(self.grid.image_size, given.distortion) if options.priors else {}
        return replace(
            given,
            fixed={**given.fixed, **self._scale.fixed},
            priors={**general, **given.priors, **self._scale.priors},
            focus=term,
            focus_strength=strength,
            plane_error=options.plane_error,
            clustered=True,
            scale_error=options.length_error if self._has_distances else 0.0,
            magnification_error=options.measure.magnification_error,
        )

    @property
    def _has_distances(self) -> bool:
        """Whether distances are known, here or in a finished calibration that was added."""
        known = self._finished is not None and self._finished.problem.distances is not None
        return known or self._scale.points is not None

    def _find_scale(
        self, worlds: IntArray, depth_map: DepthMaps, listener: Listener
    ) -> tuple[ScaleKnowledge, tuple[Finding, ...]]:
        """Ask the sources of scale about every world; return what they know, and what was noticed.

        A source need not find anything in every world: the camera that all share carries the scale
        over.

        Raises
        ------
        DataError
            If sources were given and find nothing in any world.
        """
        n_worlds = int(worlds.max(initial=0)) + 1
        if n_worlds == 1:
            view = self._describe_views(depth_map)
            sources = self.options.scale_of(self.views[0].recording).list_sources()
            known = find_scale(sources, view, listener)
            return known, known.findings
        self._check_picked()
        known, errors = ScaleKnowledge(), []
        for world in range(n_worlds):
            members = np.flatnonzero(worlds == world)
            recording = self.views[int(members[0])].recording
            mine = {self.views[i].name for i in members.tolist()}
            scale = self.options.scale_of(recording)
            scale = scale.select_picked(self._name_frames(), mine)
            view = self._describe_views(depth_map, members)
            for source in scale.list_sources():
                try:
                    found = source.find(view, listener)
                except DataError as error:
                    errors.append((world, error))
                    continue
                label = f" ({self.name_recording(recording)})"
                known = known.unite(found.of_views(members, label))
        if errors and not known.is_metric:
            raise errors[0][1]
        noticed = tuple(
            Finding.of(
                "world-without-scale",
                f"{self._name_world(worlds, world)} has no scale of its own ({error}): it follows "
                "from the camera, which is the same in all worlds",
                world=world + 1,
            )
            for world, error in errors
        )
        return known, (*known.findings, *noticed)

    def _check_picked(self) -> None:
        """Raise DataError if points were picked in a frame that has no pose."""
        names = [view.name for view in self.views]
        scales = {id(scale): scale for scale in map(self.options.scale_of, self._recordings)}
        for scale in scales.values():
            for picked in scale.distances:
                find_frame(picked.frame, self._name_frames(), names)

    @property
    def _recordings(self) -> list[int]:
        """Recordings that have views, in order."""
        return sorted({view.recording for view in self.views})

    def _name_world(self, worlds: IntArray, world: int) -> str:
        """Return what messages call a world: its recording, and its first frame."""
        view = self.views[int(np.flatnonzero(worlds == world)[0])]
        return f"{self.name_recording(view.recording)} from frame {view.name} on"

    def name_recording(self, recording: int) -> str:
        """Return what messages call a recording."""
        if recording < len(self.recording_names):
            return self.recording_names[recording]
        return f"recording {recording + 1}"

    def _choose_tracks(
        self, begin: ViewStart, depth_map: DepthMaps, window: float
    ) -> tuple[Tracks, list[Finding]]:
        """Choose the points of every world; return them, and which worlds have too few.

        Raises
        ------
        EstimationError
            If all have too few.
        """
        state, extra = begin.reconstruction, self._scale.points
        n_worlds = int(begin.worlds.max(initial=0)) + 1
        chosen: list[Tracks] = []
        findings: list[Finding] = []
        for world in range(n_worlds):
            mine = begin.worlds[begin.view_indices] == world
            besides = None
            if extra is not None:
                besides = extra.points_world[begin.worlds[extra.references] == world]
            tracks = choose_tracks(
                state,
                begin.point_indices[mine],
                begin.view_indices[mine],
                depth_map,
                self.grid.image_size,
                window,
                self.options.measure.points,
                besides,
            )
            if len(tracks) >= _FEWEST_POINTS:
                chosen.append(tracks)
                continue
            tracked = len(np.unique(begin.point_indices[mine]))
            count = len(state.points_world_mm) if n_worlds == 1 else tracked
            error = EstimationError(
                f"only {len(tracks)} of {count} scene points lie apart, "
                f"on smooth surfaces, with a known virtual depth (need {_FEWEST_POINTS}): more "
                "texture, or nearer things, would help",
                stage="measure",
            )
            if world == n_worlds - 1 and not chosen:
                raise error
            text = f"{self._name_world(begin.worlds, world)} is left out: {error}"
            findings.append(Finding.of("world-left-out", text, world=world + 1))
        tracks = Tracks(
            np.concatenate([each.points for each in chosen]),
            np.concatenate([each.references for each in chosen]),
        )
        return tracks, findings

    def _name_frames(self) -> tuple[str, ...]:
        names = {view.index: view.name for view in self.views}
        return self.frame_names or tuple(names.get(i, "") for i in range(max(names) + 1))

    def _describe_views(self, depth_map: DepthMaps, members: IntArray | None = None) -> ScaleViews:
        """Return the views, or some of them, as sources of scale see them."""
        state = self.reconstruction
        numbers = np.arange(len(self.views)) if members is None else members
        if members is not None:
            state = state.with_scene(
                state.rotations[members], state.translations_mm[members], state.points_world_mm
            )
        views = [self.views[i] for i in numbers.tolist()]
        return ScaleViews(
            state,
            self._name_frames(),
            self.frame_indices[numbers],
            np.array([view.time for view in views]),
            self.image_scale,
            lambda number: views[number].read_focused(),
            lambda number, xy: float(sample_map(*depth_map(int(numbers[number])), xy[None])[0]),
        )

    def _own_optics(self) -> LensOptics:
        """Return the tables of the micro lenses, each with its own focal plane behind a tilt."""
        state = self.reconstruction
        if state.array_tilt is None:
            return self.optics
        centers = state.distortion.undistort(self.grid.centers_raw_px, state.principal_px)
        return self.optics.behind_tilt(self.grid, state.tau(centers))

    def _check_scale(self, measured_tracks: IntArray) -> None:
        """Raise EstimationError if no known distance has both its ends measured."""
        distances = self.distances
        if distances is None or distances.are_between(measured_tracks).any():
            return
        raise EstimationError(
            f"no {distances.source} could be measured in {self.options.measure.fewest_views} "
            "views: is what they lie on flat, textured, and visible in several frames? Pick other "
            "points",
            stage="measure",
        )


def _need(value: T | None, step: str) -> T:
    """Return what a step made; raise InputError if it was not called."""
    if value is None:
        raise InputError(f"call `{step}` of the workbench before")
    return value


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
        & (scales > options.scale_limits[0])
        & (scales < options.scale_limits[1])
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


def _is_consistent(
    images: MicroImages, good: BoolArray, n_tracks: int, fewest_views: int
) -> BoolArray:
    """Tell which images are of tracks that were measured in most of them and in enough views."""
    measured = np.bincount(images.tracks[good], minlength=n_tracks)
    tried = np.bincount(images.tracks, minlength=n_tracks)
    pairs = np.unique(np.stack([images.tracks[good], images.views[good]]), axis=1)
    views = np.bincount(pairs[0], minlength=n_tracks)
    fit = (views >= fewest_views) & (measured >= _LEAST_MEASURED * tried)
    return np.asarray(fit[images.tracks])
