"""A calibration that grows with every frame, knows how sure it is, and notices changes.

Every frame is answered at once: its pose comes from the map by plenoptic PnP. Frames that say
something new about the intrinsics become keyframes. They are measured in micro images and adjusted
in the background, by the steps of the workbench. What a background adjustment found is taken in a
fixed number of frames after it was begun, so a run can be repeated.
"""

from __future__ import annotations

import enum
import math
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray, read_only
from lifcal.bundle import Adjustment, JointPrior
from lifcal.calibration.drift import (
    CHANGES,
    ESTIMATED_ANEW,
    Drift,
    DriftWatch,
    compute_moves,
    estimate_pulls,
    follow_change,
)
from lifcal.calibration.knowing import (
    DEFAULT_TARGETS,
    Advice,
    Target,
    Worth,
    is_met,
    parse_targets,
)
from lifcal.calibration.live_map import Keyframe, LiveMap, MapMatch
from lifcal.calibration.looks import Images, Look, focus_frame, look_at
from lifcal.calibration.options import CalibrateOptions
from lifcal.calibration.window import EARLIER, Solution, WindowWork, prior_of, solve_window
from lifcal.camera import (
    ARRAY_PARAMETERS,
    PHYSICAL_PARAMETERS,
    TILT_PARAMETERS,
    BrownDistortion,
    PinholeArray,
    PlenopticCamera,
)
from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.imaging.features import match_features
from lifcal.imaging.frames import Frame, find_full_scale, make_frame
from lifcal.imaging.markers import Marker
from lifcal.listener import Listener, choose_listener
from lifcal.reconstruction import Reconstruction
from lifcal.sfm.rigidity import PairMatches, scan_focal_length
from lifcal.virtual import FocusEngine

_START_DEPTH = 1000.0
"""Median depth of the scene before its scale is known. Any number would do; this one keeps lengths
near those in millimetres."""
_FEWEST_START, _MOST_WAITING = 4, 10
"""Frames that have moved against each other from which F and alpha are looked for without any hint,
and frames that are kept while they are not found."""
_SURE_START = 0.08
"""Relative standard deviation of F from rigidity with which a start is tried; the adjustment then
makes it a hundred times smaller."""
_FEWEST_KEYFRAMES = 4
"""Keyframes with which the first adjustment is begun: a point must be measured in three views."""
_RANGE_MARGIN = 0.12
"""Part by which the range of virtual depths of the first frame is widened: the camera will move
nearer and farther."""
_LEAST_U = 1.7
"""Virtual depth below which hardly any point is seen by two lenses."""
_MANY_MATCHES = 12
"""Matches by descriptors alone that chance makes: a frame with fewer shows another scene."""
_MOST_SATURATED = 0.2
"""Share of saturated pixels from which a frame is not used: what is left would be measured at the
rims of what is saturated."""
_DOUBTFUL = 0.5
"""Share of matches that must agree with a pose. If fewer do, but as many agree by their places
alone, then virtual depths are wrong: the camera may have changed."""
_CELLS = 8
"""Cells along each side of the image that are covered or not."""
_WIDE = 0.03
"""Standard deviation, relative to its value (to the image's width for c), of what has changed, when
it is estimated anew."""
_ROUNDS = 1
"""Times that a window is measured and adjusted. The start values come from the window before, so
another round would change little."""
_FIRST_ROUNDS = 2
"""The same for the first window, whose start values are rough."""
_REMEMBERED = 64
"""Checksums of the last frames, by which a duplicate is known."""


class FrameStatus(enum.StrEnum):
    """What became of a frame."""

    USED = "used"
    """It became a keyframe."""
    NOTHING_NEW = "nothing new"
    """Its pose is known, but it adds no information about the intrinsics."""
    WAITING = "waiting"
    """It is kept until camera and map can be initialized."""
    BLURRED = "blurred"
    """It is blurred, or shows no depth. It changes nothing."""
    SATURATED = "saturated"
    """Too many of its pixels are saturated. It changes nothing."""
    DARK = "dark"
    """It is black. It changes nothing."""
    LOST = "lost"
    """It shows the scene, but its pose could not be found. It changes nothing."""
    OTHER_SCENE = "other scene"
    """It shows nothing of the map. It changes nothing."""
    DUPLICATE = "duplicate"
    """It has the same pixels as an earlier frame. It changes nothing."""
    UNUSABLE = "unusable"
    """Its size or bit depth is not that of the others. It changes nothing."""
    OUT_OF_ORDER = "out of order"
    """Its timestamp is not after that of the frame before. It changes nothing."""

    @property
    def counts(self) -> bool:
        """Whether such a frame becomes part of the state."""
        return self in (FrameStatus.USED, FrameStatus.NOTHING_NEW, FrameStatus.WAITING)


@dataclass(frozen=True)
class OnlineOptions:
    """Options of an online calibration.

    Parameters
    ----------
    window : int
        Largest number of keyframes that are adjusted together, which limits time and memory. When
        there are so many, the older half is removed, and its information about the intrinsics is
        kept as a prior.
    points : int
        Number of scene points that are measured in a window.
    features : int
        Largest number of features that are detected in a frame.
    landmarks : int
        Largest number of features in the map. Those that have not been seen for the longest time
        are removed first.
    lag : int
        Number of frames after which the result of a background adjustment is used. The run waits
        for the result if necessary.
    least_gain : float
        A frame becomes a keyframe if it increases half of the log determinant of the information
        about F, c, alpha and beta by at least this. The 25th of equally good frames adds 0.1.
    least_motion : float
        A frame is not used as a keyframe if its features have moved by less than this fraction of
        the image width relative to some keyframe. It would see the same textures at the same
        positions, and its errors would be the same.
    fewest_inliers : int
        Smallest number of matches that must agree with a pose.
    least_sharpness : float
        A frame counts as blurred if the certainty of its virtual depths is less than this fraction
        of that in the keyframes. A blur of 0.7 raw pixels reduces the certainty to a quarter.
    targets : str
        Accuracy to be reached, for example 'F=0.05%,B=0.5%,c=1px'. A target is met when 2.5 sigmas
        are below it.
    watch : bool
        Whether every frame is tested for a change of the camera.
    background : bool
        Whether adjustments run in a background thread. Otherwise, each runs when its result is due;
        the results are the same.
    """

    window: int = 20
    points: int = 400
    features: int = 1500
    landmarks: int = 6000
    lag: int = 3
    least_gain: float = 0.1
    least_motion: float = 0.03
    fewest_inliers: int = 30
    least_sharpness: float = 0.35
    targets: str = DEFAULT_TARGETS
    watch: bool = True
    background: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("window", 8),
            ("points", 50),
            ("features", 100),
            ("landmarks", 500),
            ("lag", 1),
            ("fewest_inliers", 6),
        ):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)}, needs {least} or more")
        for name in ("least_gain", "least_motion", "least_sharpness"):
            if not getattr(self, name) >= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}, needs 0 or a positive number")
        parse_targets(self.targets)


@dataclass(frozen=True, eq=False)
class Update:
    """The answer to a frame: what became of it, and what is known by now.

    Parameters
    ----------
    status : FrameStatus
    name : str
        Name of the frame.
    text : str
        One sentence about the frame, for people.
    cam_from_world : RigidTransform or None
        Pose of the frame; None if it has none.
    values, sigmas : mapping of str to float
        Parameters in both forms (F, c_x, c_y, alpha, beta and f_L, b_L0, B) and their standard
        deviations; empty before the first adjustment. Without a scale, beta, f_L, b_L0 and B are
        left out.
    changes : mapping of str to float
        By how much the parameters changed with this frame, in sigmas.
    held : tuple of str
        Parameters that the frames do not determine yet, and which general knowledge holds.
    coverage : (8, 8) bool
        Cells of the image in which points were measured.
    advice : Advice or None
        Which motion would help most.
    done : bool
        Whether all targets are met; once said, it holds until the camera changes.
    n_keyframes : int
        Keyframes that were used so far.
    findings : tuple of Finding
        What was noticed with this frame.
    seconds : float
        Time until the answer.
    """

    status: FrameStatus
    name: str
    text: str
    cam_from_world: RigidTransform | None
    values: Mapping[str, float]
    sigmas: Mapping[str, float]
    changes: Mapping[str, float]
    held: tuple[str, ...]
    coverage: BoolArray
    advice: Advice | None
    done: bool
    n_keyframes: int
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(eq=False)
class Candidate:
    """A frame that waits for a map."""

    index: int
    name: str
    time: float
    look: Look
    images: Images


@dataclass(eq=False)
class Pending:
    """An adjustment that was begun, and the frame after which it is taken in."""

    due: int
    keyframes: tuple[Keyframe, ...]
    map: LiveMap
    rough: bool
    closes: int


@dataclass(frozen=True, eq=False)
class Answer:
    """What an adjustment found, and what further frames would be worth."""

    solution: Solution
    worth: Worth | None
    advice: Advice | None


@dataclass(eq=False)
class OnlineState:
    """All that an online calibration knows; two runs with equal states go on alike.

    Parameters
    ----------
    clock : int
        Frames that became part of the state.
    """

    clock: int = 0
    last_time: float = -math.inf
    checksums: list[int] = field(default_factory=list)
    depth_range: tuple[float, float] | None = None
    full_scale: int | None = None
    """Stored value of white, of the frames so far."""
    bits: int | None = None
    waiting: list[Candidate] = field(default_factory=list)
    map: LiveMap | None = None
    last_pose: RigidTransform | None = None
    prior: JointPrior | None = None
    solution: Solution | None = None
    solved_until: int = -1
    """Index of the last keyframe that is part of an adjustment which was begun."""
    pending: Pending | None = None
    watch: DriftWatch = field(default_factory=DriftWatch)
    n_keyframes: int = 0
    done: bool = False
    values: dict[str, float] = field(default_factory=dict)
    sigmas: dict[str, float] = field(default_factory=dict)
    path: list[tuple[float, RigidTransform]] = field(default_factory=list)
    world_from_found: RigidTransform = field(default_factory=RigidTransform.identity)
    """Where the frame of the last adjustment lies in the map's world."""


class OnlineCalibrator:
    """Calibrates a camera from frames that come in one after the other.

    Parameters
    ----------
    engine : FocusEngine
        Makes virtual depth and focused images. Its depth range is found in the first frame if it
        has none.
    options : CalibrateOptions
        Options of the stages, as of a batch calibration. `measure.points` holds for `finish`.
    online : OnlineOptions, optional
    camera : PlenopticCamera, optional
        An earlier calibration of this camera: its covariance is the prior, and no scale is needed.
    bayer : str, optional
        Color mosaic of the raws.
    listener : Listener, optional

    Raises
    ------
    InputError
        If `camera` has no covariance, no scale, or was calibrated with another pixel size.
    """

    def __init__(
        self,
        engine: FocusEngine,
        options: CalibrateOptions,
        online: OnlineOptions | None = None,
        *,
        camera: PlenopticCamera | None = None,
        bayer: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.engine, self.options = engine, options
        self.online = online or OnlineOptions()
        self.targets: tuple[Target, ...] = parse_targets(self.online.targets)
        self._bayer = bayer
        self._listener = choose_listener(listener)
        self._executor = ThreadPoolExecutor(1, "lifcal-online") if self.online.background else None
        self._future: Future[Answer] | None = None
        self._markers: dict[int, list[Marker]] = {}
        self._worth: Worth | None = None
        self._advice: Advice | None = None
        self._noticed: list[Finding] = []
        self._earlier = camera
        self.last_focused: npt.NDArray[np.uint8] | None = None
        """Focused image of the last frame, for people; None before the first."""
        self.state = OnlineState(depth_range=engine.options.depth_range)
        if camera is not None:
            self.state.prior = _prior_of_camera(camera, options)

    # What is known

    @property
    def camera(self) -> PlenopticCamera | None:
        """The camera as it is known by now; None before the first adjustment."""
        solution = self.state.solution
        return None if solution is None else solution.adjustment.camera

    @property
    def map(self) -> LiveMap | None:
        """Keyframes and landmarks; None before the start."""
        return self.state.map

    @property
    def path(self) -> tuple[tuple[float, RigidTransform], ...]:
        """Timestamp and `cam_from_world` of the frames that were tracked."""
        return tuple(self.state.path)

    # Frames

    def add_frame(
        self,
        raw: npt.NDArray[np.generic] | Frame,
        timestamp: float | None = None,
        name: str | None = None,
    ) -> Update:
        """Take in a frame, and answer what became of it.

        Parameters
        ----------
        raw : (height, width) or (height, width, 3) uint8 or uint16, or Frame
        timestamp : float, optional
            Must grow from frame to frame. Without, frames are counted.
        name : str, optional
        """
        begin = time.perf_counter()
        self._noticed = []
        state = self.state
        if timestamp is None:
            timestamp = max(state.last_time, -1.0) + 1.0
        name = name or f"frame{state.clock}"
        before = dict(state.values)
        status, text, pose = self._take(raw, float(timestamp), name)
        if status.counts:
            self._move_on()
        else:
            self.engine.set_depth_range(state.depth_range)  # it may be that of the refused frame
        changes = {
            key: (value - before[key]) / state.sigmas[key]
            for key, value in state.values.items()
            if key in before and state.sigmas.get(key, 0.0) > 0.0
        }
        solution = state.solution
        return Update(
            status,
            name,
            text,
            pose,
            MappingProxyType(dict(state.values)),
            MappingProxyType(dict(state.sigmas)),
            MappingProxyType(changes),
            () if solution is None else solution.held,
            self.measure_coverage(),
            self._advice,
            state.done,
            state.n_keyframes,
            tuple(self._noticed),
            time.perf_counter() - begin,
        )

    def _take(
        self, raw: npt.NDArray[np.generic] | Frame, timestamp: float, name: str
    ) -> tuple[FrameStatus, str, RigidTransform | None]:
        """Look at a frame and find its pose; nothing changes unless the status counts."""
        state, online = self.state, self.online
        if not timestamp > state.last_time:
            return FrameStatus.OUT_OF_ORDER, "It is older than the frame before.", None
        pixels = raw.gray if isinstance(raw, Frame) else np.asarray(raw)
        checksum = zlib.crc32(np.ascontiguousarray(pixels).data)
        if checksum in state.checksums:
            return FrameStatus.DUPLICATE, "The same pixels came before.", None
        wrong = self._check_form(pixels, raw.bits if isinstance(raw, Frame) else None)
        if wrong:
            return FrameStatus.UNUSABLE, wrong, None
        full = state.full_scale
        try:
            if isinstance(raw, Frame):
                frame = raw
            else:
                bits = 8 * pixels.dtype.itemsize
                full = max(full or 0, find_full_scale(int(pixels.max(initial=0)), bits))
                frame = make_frame(pixels, name, name, self._bayer, full)
        except DataError:
            top = float(np.iinfo(pixels.dtype).max) if pixels.dtype.kind == "u" else math.inf
            if float(pixels.mean()) > 0.1 * top:
                return FrameStatus.SATURATED, "Most of it is saturated.", None
            return FrameStatus.DARK, "It is black.", None
        if frame.saturated > _MOST_SATURATED:
            share = round(100.0 * frame.saturated)
            return FrameStatus.SATURATED, f"{share} % of its pixels are saturated.", None
        try:
            images = self._focus(frame)
        except EstimationError:
            return FrameStatus.BLURRED, "It shows no depth.", None
        self.last_focused = images.focused
        look = look_at(images, self.engine.options.scale, online.features)
        reference = self._reference_sharpness()
        if look.sharpness < online.least_sharpness * reference:
            return FrameStatus.BLURRED, "It is less sharp than the others.", None
        candidate = Candidate(state.clock, name, timestamp, look, images)
        answer = self._wait(candidate) if state.map is None else self._track(candidate)
        if answer[0].counts:
            state.last_time = timestamp
            state.checksums = [*state.checksums[1 - _REMEMBERED :], checksum]
            state.depth_range = self.engine.options.depth_range
            state.full_scale, state.bits = full, frame.bits
            state.clock += 1
        return answer

    def _check_form(self, pixels: npt.NDArray[np.generic], bits: int | None) -> str:
        """Return what is wrong with the size or the type of a frame; empty if nothing is."""
        width, height = self.engine.grid.image_size
        if pixels.ndim not in (2, 3) or pixels.shape[:2] != (height, width):
            return (
                f"It has {' x '.join(map(str, pixels.shape[1::-1]))} pixels, not {width} x "
                f"{height}."
            )
        if bits is None and pixels.dtype not in (np.uint8, np.uint16):
            return f"Its pixels are {pixels.dtype}, needs 8 or 16 bit whole numbers."
        bits = bits or 8 * pixels.dtype.itemsize
        if self.state.bits is not None and bits != self.state.bits:
            return f"It has {bits} bits, the frames before {self.state.bits}."
        return ""

    def _focus(self, frame: Frame) -> Images:
        engine = self.engine
        if engine.options.depth_range is None:
            low, high = engine.set_range([frame])
            if low > 0.0:
                low, high = max(low * (1.0 - _RANGE_MARGIN), _LEAST_U), high * (1.0 + _RANGE_MARGIN)
            else:
                low = low * (1.0 + _RANGE_MARGIN)
                high = min(high * (1.0 - _RANGE_MARGIN), -_LEAST_U)
            engine.set_depth_range((low, high))
        return focus_frame(engine, frame)

    def _reference_sharpness(self) -> float:
        """Return the usual sharpness of frames; 0 before there are any."""
        live = self.state.map
        looks = (
            [frame.look for frame in live.keyframes]
            if live is not None and live.keyframes
            else [candidate.look for candidate in self.state.waiting]
        )
        return float(np.median([look.sharpness for look in looks])) if looks else 0.0

    # Start

    def _wait(self, candidate: Candidate) -> tuple[FrameStatus, str, RigidTransform | None]:
        """Start the map, or keep the frame until it can be started."""
        state = self.state
        if self._earlier is not None:
            state.map = LiveMap(_intrinsics_of(self._earlier))
            self._add_keyframe(candidate, None)
            return FrameStatus.USED, "The map begins with it.", RigidTransform.identity()
        if state.waiting:
            moved = _measure_motion(state.waiting[-1].look, candidate.look)
            width = self.engine.grid.image_size[0]
            if moved is None and len(state.waiting) == 1:
                state.waiting = [candidate]
                return FrameStatus.WAITING, "The start begins anew with it.", None
            if moved is None:
                return (
                    FrameStatus.OTHER_SCENE,
                    "It shows nothing of the frames before.",
                    None,
                )
            if moved < self.online.least_motion * width:
                return FrameStatus.NOTHING_NEW, "The camera has hardly moved.", None
        state.waiting.append(candidate)
        if len(state.waiting) < _FEWEST_START:
            text = (
                f"The start needs {_FEWEST_START} frames that moved; it has {len(state.waiting)}."
            )
            return FrameStatus.WAITING, text, None
        pose = self._start()
        if pose is not None:
            return FrameStatus.USED, "The map begins with it and the frames before.", pose
        if len(state.waiting) >= _MOST_WAITING:
            state.waiting = state.waiting[1:]
        return (
            FrameStatus.WAITING,
            "The focal length cannot be told yet: move nearer and farther, and turn the camera.",
            None,
        )

    def _start(self) -> RigidTransform | None:
        """Find F and alpha by rigidity, and the map from there; return the last pose."""
        waiting = self.state.waiting
        size = self.engine.grid.image_size
        pairs = [
            _match_pair(i, waiting[i].look, j, waiting[j].look)
            for i in range(len(waiting))
            for j in range(i + 1, len(waiting))
        ]
        try:
            scan = scan_focal_length(pairs, size)
        except EstimationError:
            return None
        best = scan.hypotheses[0]
        if len(scan.hypotheses) > 1 or not best.sigma_log_focal < _SURE_START:
            return None
        middle = 0.5 * (np.array(size) - 1.0)
        first = waiting[0].look
        u = float(np.median(first.u[first.known]))
        beta = _START_DEPTH * (u - best.alpha)
        array = PinholeArray(best.focal_px, float(middle[0]), float(middle[1]), best.alpha, beta)
        live = LiveMap(_empty(array))
        live.add(0, waiting[0].name, waiting[0].time, first, waiting[0].images, None)
        live.keyframes[0].index = waiting[0].index
        for each in waiting[1:]:
            found = live.match(each.look, live.keyframes[-1].cam_from_world)
            if found.n_inliers >= self.online.fewest_inliers:
                live.add(each.index, each.name, each.time, each.look, each.images, found)
                live.locate_landmarks()
        if len(live.keyframes) < _FEWEST_KEYFRAMES:
            return None
        state = self.state
        keyframes = tuple(replace(frame) for frame in live.keyframes)
        pending = Pending(state.clock, keyframes, replace(live, keyframes=[*keyframes]), True, 0)
        try:
            answer = self._answer(self._make_work(pending), self._listener)
        except EstimationError:
            return None
        state.map, state.waiting = live, []
        state.n_keyframes = len(live.keyframes)
        state.solved_until = live.keyframes[-1].index
        self._accept(answer, pending)
        return state.last_pose

    # Tracking

    def _track(self, candidate: Candidate) -> tuple[FrameStatus, str, RigidTransform | None]:
        state, online = self.state, self.online
        live = state.map
        assert live is not None
        found = live.match(candidate.look, state.last_pose)
        if found.n_inliers < _DOUBTFUL * len(found.features) and self._watches:
            loose = live.match_places(candidate.look, found, state.last_pose)
            most = max(online.fewest_inliers, _DOUBTFUL * len(found.features))
            if loose.fit is not None and loose.n_inliers >= most:
                state.last_pose = loose.fit.cam_from_world
                text = "Its virtual depths do not fit the camera."
                if self._has_drifted(candidate, loose):
                    text = "The camera has changed."
                return FrameStatus.NOTHING_NEW, text, state.last_pose
        if found.fit is None or found.n_inliers < online.fewest_inliers:
            if len(found.features) < max(_MANY_MATCHES, online.fewest_inliers // 2):
                return FrameStatus.OTHER_SCENE, "It shows nothing of the map.", None
            return (
                FrameStatus.LOST,
                f"Only {found.n_inliers} matches agree with a pose: go back to a place that was "
                "seen.",
                None,
            )
        pose = found.fit.cam_from_world
        state.last_pose = pose
        state.path.append((candidate.time, pose))
        if self._has_drifted(candidate, found):
            return FrameStatus.NOTHING_NEW, "The camera has changed.", pose
        if state.watch.suspects:
            return FrameStatus.NOTHING_NEW, "The camera may have changed: waiting for more.", pose
        nearest = self._measure_nearest(live, found)
        if nearest < online.least_motion * self.engine.grid.image_size[0]:
            return FrameStatus.NOTHING_NEW, "It is seen from a known place.", pose
        if self._worth is not None:
            gain = self._worth.measure_gain(self._to_solution(pose))
            if gain < online.least_gain:
                return FrameStatus.NOTHING_NEW, "It would add too little that is new.", pose
        self._add_keyframe(candidate, found)
        return FrameStatus.USED, f"{found.n_inliers} matches with the map.", pose

    @property
    def _watches(self) -> bool:
        """Whether a change of the camera would be noticed."""
        return self.online.watch and self.state.solution is not None

    def _measure_nearest(self, live: LiveMap, found: MapMatch) -> float:
        """Return how far the matches have moved against the keyframe where they moved least, px."""
        assert found.fit is not None
        points = live.points_world[found.landmarks[found.fit.inliers]]
        here, _ = live.camera.virtual_points(found.fit.cam_from_world.apply(points))
        nearest = math.inf
        for frame in live.keyframes:
            there, _ = live.camera.virtual_points(frame.cam_from_world.apply(points))
            moved = np.linalg.norm(here - there, axis=1)
            if np.isfinite(moved).mean() > 0.5:
                nearest = min(nearest, float(np.nanmedian(moved)))
        return nearest

    def _add_keyframe(self, candidate: Candidate, found: MapMatch | None) -> None:
        state = self.state
        live = state.map
        assert live is not None
        each = candidate
        frame = live.add(each.index, each.name, each.time, each.look, each.images, found)
        live.locate_landmarks()
        live.drop_landmarks(self.online.landmarks)
        state.last_pose = frame.cam_from_world
        state.n_keyframes += 1

    # Adjustments

    def _move_on(self) -> None:
        """Take in an adjustment that is due, and begin the next one."""
        state = self.state
        if state.pending is not None and state.clock >= state.pending.due:
            self._take_in()
        live = state.map
        if live is None or state.pending is not None or len(live.keyframes) < _FEWEST_KEYFRAMES:
            return
        if live.keyframes[-1].index > state.solved_until:
            self._begin()

    def _begin(self) -> None:
        """Begin to measure and adjust the window."""
        state = self.state
        live = state.map
        assert live is not None
        keyframes = tuple(replace(frame) for frame in live.keyframes)
        closes = len(keyframes) // 2 if len(keyframes) >= self.online.window else 0
        snapshot = replace(live, keyframes=[*keyframes], last_seen=live.last_seen.copy())
        due = state.clock + self.online.lag
        state.pending = Pending(due, keyframes, snapshot, False, closes)
        state.solved_until = keyframes[-1].index
        self._submit()

    def _submit(self) -> None:
        assert self.state.pending is not None
        if self._executor is not None:
            work = self._make_work(self.state.pending)
            self._future = self._executor.submit(self._answer, work, Listener())

    def _make_work(self, pending: Pending, rounds: int | None = None) -> WindowWork:
        options = self.options
        if rounds is None:
            rounds = _FIRST_ROUNDS if pending.rough else _ROUNDS
            options = replace(options, measure=replace(options.measure, points=self.online.points))
        return WindowWork(
            self.engine.grid,
            self.engine.optics,
            self.engine.options.scale,
            options,
            pending.keyframes,
            pending.map.as_model(pending.keyframes) if pending.rough else pending.map,
            self.state.prior,
            pending.closes,
            rounds,
            self._markers,
        )

    def _take_in(self) -> None:
        state = self.state
        pending = state.pending
        assert pending is not None
        state.pending = None
        future, self._future = self._future, None
        try:
            if future is None:
                answer = self._answer(self._make_work(pending), Listener())
            else:
                answer = future.result()
        except EstimationError as error:
            self._notice(
                "online-not-determined",
                f"the frames do not determine the camera yet: {error}",
                stage=error.stage or "",
            )
            if pending.closes:
                self._leave(pending.keyframes[: pending.closes])
            return
        self._accept(answer, pending)

    def _answer(self, work: WindowWork, listener: Listener) -> Answer:
        """Adjust a window, and tell what further frames would be worth; in any thread."""
        solution = solve_window(work, listener)
        return Answer(solution, *self._assess(solution.adjustment))

    def _assess(self, found: Adjustment) -> tuple[Worth | None, Advice | None]:
        """Return what tells the worth of further frames, and the advice from the last view."""
        engine = self.engine
        depth_range = engine.options.depth_range
        assert depth_range is not None
        try:
            worth = Worth(
                found,
                engine.grid,
                engine.optics.radius_px,
                depth_range,
                self.options.scale.length_error,
                self.options.measure.magnification_error,
            )
            last = found.cam_from_world[-1]
            return worth, worth.advise(last, _list_values(found), self.targets)
        except (EstimationError, InputError):
            return None, None

    def _accept(self, answer: Answer, pending: Pending) -> None:
        """Go on from an adjustment: camera, poses of its keyframes, landmarks."""
        solution = answer.solution
        state, found = self.state, solution.adjustment
        live = state.map
        assert live is not None
        state.solution = solution
        indices = found.problem.observations.view_ids
        # Where points do not connect all keyframes, only the largest part has one frame.
        of_views = found.problem.worlds.of_views
        main = of_views == np.bincount(of_views).argmax()
        poses = {
            index: pose
            for index, pose, good in zip(
                indices.tolist(), found.cam_from_world, main.tolist(), strict=True
            )
            if good
        }
        world_from_found, factor = _find_frame(live.keyframes, poses)
        live.camera = replace(
            found.state,
            rotations=np.zeros((0, 3, 3)),
            translations_mm=np.zeros((0, 3)),
            points_world_mm=np.zeros((0, 3)),
            focus=np.zeros(0),
        )
        found_from_world = world_from_found.inverse()
        adjusted: list[Keyframe] = []
        others: list[Keyframe] = []
        for frame in live.keyframes:
            if frame.index in poses:
                frame.cam_from_world = _straighten(poses[frame.index] @ found_from_world)
                adjusted.append(frame)
            else:
                others.append(frame)
        live.points_world = live.points_world * factor
        live.keyframes = adjusted
        live.locate_landmarks()
        kept = [frame for frame in others if live.relocate(frame)]
        # A view that the adjustment left out fits none of the others.
        given = {frame.index for frame in pending.keyframes} - set(indices[~main].tolist())
        kept = [frame for frame in kept if frame.index not in given]
        live.keyframes = sorted([*adjusted, *kept], key=lambda frame: frame.index)
        live.locate_landmarks()
        if factor != 1.0:
            state.path = [(at, _scale(pose, factor)) for at, pose in state.path]
        if live.keyframes:
            state.last_pose = live.keyframes[-1].cam_from_world
        if pending.closes:
            if solution.prior is not None:
                state.prior = solution.prior
            self._leave(pending.keyframes[: pending.closes])
        state.world_from_found = world_from_found
        self._tell(found, answer)

    def _leave(self, keyframes: tuple[Keyframe, ...]) -> None:
        """Let keyframes leave the window."""
        live = self.state.map
        assert live is not None
        gone = {frame.index for frame in keyframes}
        live.drop_keyframes([frame.index not in gone for frame in live.keyframes])
        for index in gone:
            self._markers.pop(index, None)

    def _tell(self, found: Adjustment, answer: Answer) -> None:
        """Note what is known by now, and what would help."""
        state = self.state
        sigmas = found.covariance.sigmas()
        state.values = _list_values(found)
        state.sigmas = {name: sigmas[name] for name in state.values}
        if not state.done and is_met(state.values, state.sigmas, self.targets):
            state.done = True
            self._notice("online-done", "all targets are met", targets=self.online.targets)
        self._worth, self._advice = answer.worth, None if state.done else answer.advice
        self._compare_prior(found)

    def _to_solution(self, cam_from_world: RigidTransform) -> RigidTransform:
        """Return a pose in the frame of the last adjustment."""
        return cam_from_world @ self.state.world_from_found

    # Changes of the camera

    def _has_drifted(self, candidate: Candidate, found: MapMatch) -> bool:
        """Test whether the camera has changed; begin anew with what has changed if so."""
        state = self.state
        live, fit = state.map, found.fit
        assert live is not None
        assert fit is not None
        if not self._watches:
            return False
        look, good = candidate.look, fit.inliers
        features, landmarks = found.features[good], found.landmarks[good]
        pulls = estimate_pulls(
            live.camera,
            self.options.pixel_size_mm,
            fit.cam_from_world,
            live.points_world[landmarks],
            look.points_virt_px[features],
            look.u[features],
            look.sigma_u[features],
            live.noise,
        )
        self.last_pulls = pulls
        drift = state.watch.add(pulls, self._sizes())
        if drift is None:
            return False
        self._begin_anew(drift)
        return True

    def _sizes(self) -> dict[str, float]:
        live = self.state.map
        assert live is not None
        physical = live.camera.array.to_physical(self.options.pixel_size_mm)
        width = float(self.engine.grid.image_size[0])
        return {
            "b_L0": physical.lens_to_array_mm,
            "B": physical.array_to_sensor_mm,
            "c_x": width,
            "c_y": width,
        }

    def _begin_anew(self, drift: Drift) -> None:
        """Estimate what has changed anew, with the rest as prior; the map of the scene stays."""
        state = self.state
        live, solution = state.map, state.solution
        assert live is not None
        assert solution is not None
        relative = drift.change / self._sizes()[drift.parameter]
        anew = ESTIMATED_ANEW[drift.parameter]
        self._notice(
            "camera-changed",
            f"{CHANGES[drift.parameter]}: {drift.parameter} changed by about "
            f"{100.0 * relative:+.2f} % {drift.frames} frames ago. {' and '.join(anew)} "
            f"{'are' if len(anew) > 1 else 'is'} estimated anew",
            parameter=drift.parameter,
            change=drift.change,
            frames=drift.frames,
        )
        self._forget_pending()
        pixel = self.options.pixel_size_mm
        wide = {name: _WIDE * abs(self._sizes()[name]) for name in anew}
        moves = compute_moves(live.camera.array, pixel, wide)
        prior = prior_of(solution.adjustment, EARLIER)
        live.camera = follow_change(live.camera, pixel, drift)
        if prior is not None:
            places = {name: i for i, name in enumerate(ARRAY_PARAMETERS)}
            own = np.zeros((len(prior.names), len(moves)))
            for row, name in enumerate(prior.names):
                if name in places:
                    own[row] = moves[:, places[name]]
            values = dict(
                zip(ARRAY_PARAMETERS, live.camera.array.as_vector().tolist(), strict=True)
            )
            mean = np.array(
                [values.get(name, old) for name, old in zip(prior.names, prior.mean, strict=True)]
            )
            prior = JointPrior(prior.names, mean, prior.covariance + own @ own.T, EARLIER)
        state.prior = prior
        self._leave(tuple(live.keyframes))
        state.watch.forget()
        state.done = False
        state.solution = None
        state.solved_until = state.clock
        self._worth, self._advice = None, None
        array = live.camera.array.as_vector().tolist()
        physical = live.camera.array.to_physical(pixel).as_vector().tolist()
        both = {
            **dict(zip(ARRAY_PARAMETERS, array, strict=True)),
            **dict(zip(PHYSICAL_PARAMETERS, physical, strict=True)),
        }
        state.values = {name: both[name] for name in state.values}
        moved = np.linalg.norm(moves, axis=0).tolist()
        wider = {**dict(zip(ARRAY_PARAMETERS, moved, strict=True)), **wide}
        state.sigmas = {
            name: float(np.hypot(state.sigmas[name], wider.get(name, 0.0))) for name in state.values
        }

    def _compare_prior(self, found: Adjustment) -> None:
        """Say if the first frames contradict the earlier calibration."""
        state = self.state
        prior = state.prior
        if self._earlier is None or prior is None or prior.source != EARLIER:
            return
        values = dict(zip(found.problem.names, found.state.as_vector().tolist(), strict=True))
        off = np.array([values[name] for name in prior.names]) - prior.mean
        far = float(np.sum((prior.whitening @ off) ** 2)) / len(off)
        if far > 9.0:
            self._notice(
                "prior-contradicted",
                "the frames contradict the earlier calibration by "
                f"{math.sqrt(far):.1f} of its sigmas: the camera has changed since",
                sigmas=math.sqrt(far),
            )

    def _notice(self, code: str, text: str, **evidence: Any) -> None:
        finding = Finding.of(code, text, **evidence)
        self._noticed.append(finding)
        self._listener.finding(finding)

    # The end

    def measure_coverage(self) -> BoolArray:
        """Return the cells of the image in which points were measured, (8, 8)."""
        covered = np.zeros((_CELLS, _CELLS), np.bool_)
        solution = self.state.solution
        if solution is not None:
            problem = solution.adjustment.problem
            places = problem.observations.points_raw_px[problem.active_mask]
            cells = np.floor(places / np.array(self.engine.grid.image_size) * _CELLS)
            columns, rows = np.clip(cells, 0, _CELLS - 1).astype(np.int64).T
            covered[rows, columns] = True
        return read_only(covered)

    def finish(self) -> Adjustment:
        """Measure and adjust the keyframes of the window as a batch calibration does.

        Raises
        ------
        EstimationError
            If no camera is known yet.
        """
        state = self.state
        self._forget_pending()
        live = state.map
        if live is None or len(live.keyframes) < _FEWEST_KEYFRAMES:
            count = 0 if live is None else len(live.keyframes)
            raise EstimationError(
                f"only {count} keyframes are there (need {_FEWEST_KEYFRAMES}): no camera is known "
                "yet",
                stage="online",
            )
        keyframes = tuple(replace(frame) for frame in live.keyframes)
        pending = Pending(state.clock, keyframes, replace(live, keyframes=[*keyframes]), False, 0)
        return solve_window(self._make_work(pending, rounds=0), self._listener).adjustment

    def close(self) -> None:
        """End the background thread; what it is doing is not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _forget_pending(self) -> None:
        self.state.pending = None
        future, self._future = self._future, None
        if future is not None and not future.cancel():
            future.exception()  # waits until the thread is free

    def save(self, folder: str | Path) -> None:
        """Write the state to a folder; `load` goes on from there."""
        from lifcal.calibration.online_files import write_state

        write_state(Path(folder), self.state)

    def load(self, folder: str | Path) -> None:
        """Go on from a state that `save` wrote, with the same engine and options.

        Raises
        ------
        DataError
            If there is none, or it is damaged.
        """
        from lifcal.calibration.online_files import read_state

        state = read_state(Path(folder), self.engine.grid)
        self.state = state
        self.engine.set_depth_range(state.depth_range)
        self._markers.clear()
        self._worth, self._advice = None, None
        if state.solution is not None and state.map is not None:
            self._worth, advice = self._assess(state.solution.adjustment)
            self._advice = None if state.done else advice
        if state.pending is not None:
            self._submit()


# Small helpers


def _list_values(found: Adjustment) -> dict[str, float]:
    """Return the parameters in both forms; without a scale, those that need none."""
    array = dict(zip(ARRAY_PARAMETERS, found.state.array.as_vector().tolist(), strict=True))
    physical = found.camera.parameters.as_vector().tolist()
    values = {**array, **dict(zip(PHYSICAL_PARAMETERS, physical, strict=True))}
    if found.problem.scale_source is None:
        for name in ("beta", "f_L", "b_L0", "B"):
            del values[name]
    return values


def _empty(array: PinholeArray) -> Reconstruction:
    return Reconstruction(
        array, BrownDistortion(), np.zeros((0, 3, 3)), np.zeros((0, 3)), np.zeros((0, 3))
    )


def _intrinsics_of(camera: PlenopticCamera) -> Reconstruction:
    tilt = (
        np.zeros(0)
        if camera.tilt is None
        else np.array([camera.tilt.x_per_px, camera.tilt.y_per_px])
    )
    return replace(_empty(camera.array), distortion=camera.distortion, tilt=tilt)


def _prior_of_camera(camera: PlenopticCamera, options: CalibrateOptions) -> JointPrior:
    """Return what an earlier calibration says; its distortion only if the model is the same."""
    pixel_size_mm = options.pixel_size_mm
    if camera.covariance is None:
        raise InputError("the earlier camera holds no covariance: calibrate it with lifcal")
    if camera.scale_source is None:
        raise InputError("the earlier camera was calibrated without a scale: its B is not in mm")
    if not np.isclose(camera.pixel_size_mm, pixel_size_mm, rtol=1e-6):
        raise InputError(
            f"the earlier camera was calibrated with pixels of {1000.0 * camera.pixel_size_mm:g} "
            f"um, not {1000.0 * pixel_size_mm:g} um"
        )
    model = "brown" if options.adjust.distortion == "auto" else options.adjust.distortion
    names = camera.parameter_names
    known = names if camera.distortion.name == model else ARRAY_PARAMETERS
    values = np.concatenate([camera.array.as_vector(), camera.distortion.parameters])
    places = [
        i
        for i, name in enumerate(names)
        if camera.covariance[i, i] > 0.0 and name in known and name not in TILT_PARAMETERS
    ]
    return JointPrior(
        tuple(names[i] for i in places),
        values[places],
        camera.covariance[np.ix_(places, places)],
        EARLIER,
    )


def _match_pair(first: int, look: Look, second: int, other: Look) -> PairMatches:
    i, j = match_features(look.descriptors, other.descriptors)

    def points(each: Look, chosen: IntArray) -> FloatArray:
        return np.column_stack([each.points_virt_px[chosen], each.u[chosen]])

    return PairMatches(
        first, second, points(look, i), points(other, j), look.sigma_u[i], other.sigma_u[j]
    )


def _measure_motion(look: Look, other: Look) -> float | None:
    """Return the median motion of matches in px; None if there are hardly any."""
    pair = _match_pair(0, look, 1, other)
    return float(np.median(pair.moved_px)) if len(pair.moved_px) > _MANY_MATCHES else None


def _scale(pose: RigidTransform, factor: float) -> RigidTransform:
    return RigidTransform(pose.rotation, factor * pose.translation_mm)


def _find_frame(
    keyframes: list[Keyframe], poses: Mapping[int, RigidTransform]
) -> tuple[RigidTransform, float]:
    """Return where the frame of an adjustment lies in the map's world, and the change of scale.

    The first keyframe of the adjustment stays where it is.
    """
    both = [frame for frame in keyframes if frame.index in poses]
    if not both:
        return RigidTransform.identity(), 1.0
    old = np.array([frame.cam_from_world.inverse().translation_mm for frame in both])
    new = np.array([poses[frame.index].inverse().translation_mm for frame in both])
    before = np.linalg.norm(old - old[0], axis=1)
    after = np.linalg.norm(new - new[0], axis=1)
    good = before > 1e-6 * max(float(before.max()), 1e-12)
    good[0] = False
    factor = float(np.median(after[good] / before[good])) if good.any() else 1.0
    first = both[0]
    placed = _scale(first.cam_from_world, factor)
    return _straighten(placed.inverse() @ poses[first.index]), factor


def _straighten(pose: RigidTransform) -> RigidTransform:
    """Return the pose with a rotation that is one to the last digit.

    Each adjustment places its frame by poses of the one before: rounding would grow from one to the
    next.
    """
    return RigidTransform.from_quaternion(pose.quaternion_xyzw(), pose.translation_mm)
