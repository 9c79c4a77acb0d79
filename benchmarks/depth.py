"""Metric depth against the truth of simulated recordings: accuracy, flatness, edges, cost.

Recordings have full optics, noise and Brown distortion, 8 bit. Depth is made with the camera that
`lifcal calibrate` found on *another* recording, and with the true camera beside it. As the
calibrations of `benchmarks.calibrate`, both are kept in LIFCAL_BENCHMARK_DATA if that is set. What
counts as textured is as in `benchmarks.virtual`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from benchmarks.calibrate import Case
from benchmarks.figures import Figure
from benchmarks.grid import REAL_DATA
from benchmarks.straight_lines import Chart, LineShape, make_chart, measure_lines
from benchmarks.virtual_truth import raw_noise
from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray, spread_choice
from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    Distortion,
    NoDistortion,
    PhysicalParameters,
    PinholeIntrinsics,
    PlenopticCamera,
    read_camera,
)
from lifcal.files import read_json
from lifcal.grid.fit import fit_grid_to_white
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.imaging.frames import Frame, make_frame, open_frames
from lifcal.metric import DepthEngine, MetricFrame, MetricOptions, Rectification
from lifcal.metric.depth import compute_metric_depth, filter_depth
from lifcal.simulate import (
    Optics,
    PackedScene,
    PinholeView,
    Renderer,
    Scene,
    SimulatedFrame,
    Simulation,
    SimulationOptions,
    write_sequence,
)
from lifcal.simulate.cameras import CAMERAS
from lifcal.simulate.sensor import expose
from lifcal.virtual import (
    DepthOptions,
    FocusEngine,
    Workspace,
    estimate_focal_planes,
    estimate_virtual_depth,
)
from lifcal.virtual.focused import make_focused_image
from lifcal.virtual.sharpening import SharpeningFilters

CAMERA = "r5-16mm"
CALIBRATED_ON = Case(CAMERA, "desk", 2, "markers")
RECORDINGS = (("desk", 1), ("desk", 3), ("room", 1))
FRAMES = (2, 12, 24)
N_FRAMES = 36
DEPTHS_M = {0.5: 0.6, 1.0: 1.0, 2.5: 2.5}
"""Metres, and the largest median error there, in per cent."""
STRONG = BrownDistortion(-4e-8)
"""20 px at the corners of the focused image and more."""
_BIN = 0.15
_BORDER_PX = 24
_FEWEST = 5000
_SEQUENCE = 300
_JUMP = 0.1
_REACH_PX = 8
_BESIDE_PX = 4.0
_GROSS = 0.05
_EDGE_LIMITS = {"off": 12.0, "spread": 1.3, "growth": 1.0}
INDEPENDENT = REAL_DATA / "independent" / "tilted"


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        found = calibrate_other(data)
        recordings = [Recording(scene, seed) for scene, seed in RECORDINGS]
        return [
            *accuracy(recordings, found),
            *lens_types(recordings[0], found),
            *noise_free_types(),
            *flatness(found),
            *straight_lines(found),
            *alignment(recordings[0], found),
            *depth_edges(recordings),
            *speed(recordings[0], found),
            *sequence(data),
        ]


def calibrate_other(data: Path) -> PlenopticCamera:
    """Return the camera that `lifcal calibrate` finds on a recording that is not used here."""
    case = CALIBRATED_ON
    out = data / f"{case.name}-calibration"
    if not (out / "camera.json").exists():
        recording = data / case.recording
        options = SimulationOptions(
            camera=case.camera, scene=case.scene, frames=N_FRAMES, seed=case.seed
        )
        simulation = Simulation(options)
        write_sequence(recording, simulation)
        markers = read_json(recording / "truth" / "markers.json")["markers"]
        words = ["calibrate", str(recording / "raw"), "-o", str(out)]
        words += ["--white", str(recording / "white.png")]
        words += ["--pixel-size-um", str(simulation.optics.camera.pixel_size_mm * 1000.0)]
        words += ["--marker-size-mm", str(markers[0]["side_mm"])]
        subprocess.run(
            [sys.executable, "-m", "lifcal", *words], check=True, stdout=subprocess.DEVNULL
        )
    return read_camera(out / "camera.json")


class Recording:
    """Some frames of a scene, with their truth; with another distortion or scene if given."""

    def __init__(
        self,
        name: str,
        seed: int,
        frames: Sequence[int] = FRAMES,
        distortion: Distortion | None = None,
        scene: Scene | None = None,
    ) -> None:
        self.name = f"{name}-{seed}"
        self.simulation = Simulation(
            SimulationOptions(camera=CAMERA, scene=name, frames=N_FRAMES, seed=seed)
        )
        self.camera = self.simulation.optics.camera
        self.frames: list[SimulatedFrame]
        if distortion is None and scene is None:
            self.vignetting = vignetting_from_white(self.simulation.render_white())
            self.frames = [self.simulation.render_frame(index) for index in frames]
        else:
            design = CAMERAS[CAMERA]
            optics = replace(design, distortion=distortion or design.distortion).build()
            self.camera = optics.camera
            self.vignetting = vignetting_from_white(Renderer(optics, 64).render_white(0))
            packed = PackedScene(scene or self.simulation.scene)
            self.frames = [self._render(optics, packed, index) for index in frames]

    def _render(self, optics: Optics, scene: PackedScene, index: int) -> SimulatedFrame:
        simulation = self.simulation
        renderer = Renderer(optics, 16)
        pose = simulation.trajectory.world_from_cam[index]
        light = renderer.render_raw(scene, pose.inverse(), index)
        light /= optics.apertures.compute_illumination(0.0, optics.focal_planes_v).max()
        raw = expose(light, simulation.options.sensor, np.random.default_rng(index))
        view = renderer.render_pinhole(scene, pose.inverse(), simulation.options.pinhole_scale)
        return SimulatedFrame(raw, view, pose)

    def engine(self, camera: PlenopticCamera, options: MetricOptions | None = None) -> DepthEngine:
        """Return an engine that searches the depths of these frames."""
        engine = DepthEngine(camera, self.vignetting, options)
        if engine.depth_range is None:
            engine.set_range([make_frame(f.raw, "frame", "frame") for f in self.frames])
        return engine


# Errors of depth


@dataclass(frozen=True, eq=False)
class Errors:
    """Of the textured pixels of some frames.

    Parameters
    ----------
    relative, normalized : (n,) float64
        (z - true) / true, and the same over sigma.
    depth_mm : (n,) float64
        True.
    lens_types : (n,) int64
        Of the nearest lens, which sees most of a pixel.
    coverage : float
        Share of the textured pixels where depth is known.
    """

    relative: FloatArray
    normalized: FloatArray
    depth_mm: FloatArray
    lens_types: IntArray
    coverage: float

    def near(self, metres: float) -> Errors:
        """Return those within 15 % of a depth."""
        return self._choose(np.abs(self.depth_mm / (1000.0 * metres) - 1.0) < _BIN)

    def of_type(self, kind: int) -> Errors:
        """Return those nearest to lenses of one type."""
        return self._choose(self.lens_types == kind)

    def _choose(self, here: BoolArray) -> Errors:
        return Errors(
            self.relative[here],
            self.normalized[here],
            self.depth_mm[here],
            self.lens_types[here],
            self.coverage,
        )

    @property
    def median(self) -> float:
        """Median of the error's size, in per cent."""
        return 100.0 * float(np.median(np.abs(self.relative)))

    @property
    def bias(self) -> float:
        """Median error, in per cent."""
        return 100.0 * float(np.median(self.relative))

    @property
    def spread(self) -> float:
        """Robust spread of the normalized errors."""
        middle = np.median(self.normalized)
        return 1.4826 * float(np.median(np.abs(self.normalized - middle)))


def look_up(view: PinholeView, k: PinholeIntrinsics, values: Float32Array) -> FloatArray:
    """Return values of a true view at the pixels of an image, from the nearest pixel."""
    rows, cols = np.mgrid[: k.height, : k.width]
    x = (cols - k.cx) / k.fx * view.focal_px + view.principal_point_px[0]
    y = (rows - k.cy) / k.fy * view.focal_px + view.principal_point_px[1]
    height, width = values.shape
    i = np.clip(np.rint(y).astype(np.int64), 0, height - 1)
    j = np.clip(np.rint(x).astype(np.int64), 0, width - 1)
    found: FloatArray = values[i, j].astype(np.float64)
    found[(np.abs(x - j) > 1.0) | (np.abs(y - i) > 1.0)] = np.nan
    return found


def find_texture(view: PinholeView) -> Float32Array:
    """Return the gradient of the true brightness, rms over 13 x 13 pixels, white being 255."""
    dy, dx = np.gradient(255.0 * view.luminance)
    mean = cv2.blur(np.asarray(dx * dx + dy * dy, np.float32), (13, 13))
    return np.asarray(np.sqrt(np.maximum(mean, 0.0)), np.float32)


def find_nearest_types(camera: PlenopticCamera, k: PinholeIntrinsics) -> IntArray:
    """Return the type of the lens nearest to each pixel of an undistorted image."""
    rectification = Rectification.from_camera(camera)
    grid = camera.grid if rectification is None else rectification.grid
    rows, cols = np.mgrid[: k.height, : k.width]
    cx, cy = camera.principal_point_px
    zoom = camera.array.focal_px / k.fx
    points = np.stack([(cols - k.cx) * zoom + cx, (rows - k.cy) * zoom + cy], axis=-1)
    nearest = grid.index.nearest(points.reshape(-1, 2))
    return np.asarray(grid.lens_types[nearest].reshape(rows.shape))


def compare(
    found: MetricFrame, frame: SimulatedFrame, camera: PlenopticCamera, least_gradient: float
) -> Errors:
    """Compare a frame with its truth where there is texture, away from the border."""
    k = found.intrinsics
    true = look_up(frame.view, k, frame.view.depth_mm)
    textured = look_up(frame.view, k, find_texture(frame.view)) >= least_gradient
    inside = np.zeros(true.shape, np.bool_)
    inside[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX] = True
    textured &= inside & np.isfinite(true)
    both = textured & found.known
    error = found.depth_mm[both] - true[both]
    return Errors(
        error / true[both],
        error / found.sigma_mm[both],
        true[both],
        find_nearest_types(camera, k)[both],
        float(both.sum() / max(textured.sum(), 1)),
    )


def join(parts: Sequence[Errors]) -> Errors:
    """Return the errors of several frames as one."""
    return Errors(
        np.concatenate([part.relative for part in parts]),
        np.concatenate([part.normalized for part in parts]),
        np.concatenate([part.depth_mm for part in parts]),
        np.concatenate([part.lens_types for part in parts]),
        float(np.mean([part.coverage for part in parts])),
    )


def measure(recording: Recording, camera: PlenopticCamera) -> Errors:
    """Run all frames of a recording."""
    engine = recording.engine(camera)
    noise = raw_noise(recording.simulation.options.sensor)
    return join(
        [compare(engine.run(frame.raw), frame, camera, noise) for frame in recording.frames]
    )


def accuracy(recordings: Sequence[Recording], found: PlenopticCamera) -> list[Figure]:
    figures: list[Figure] = []
    for name, camera in (("calibrated", found), ("true", None)):
        parts = [measure(recording, camera or recording.camera) for recording in recordings]
        for recording, part in zip(recordings, parts, strict=True):
            _print_errors(f"{recording.name}, {name} camera", part)
        errors = join(parts)
        for metres, limit in DEPTHS_M.items():
            here = errors.near(metres)
            what = f"{name} camera, {metres:g} m"
            figures += [
                Figure(f"{what}, median |dz| / z", here.median, "%", "lower", limit),
                Figure(f"{what}, bias", abs(here.bias), "%", "lower", limit / 3.0),
                Figure(
                    f"{what}, bias nearest to lenses of one type, worst type",
                    max(abs(here.of_type(kind).bias) for kind in range(found.grid.n_types)),
                    "%",
                    "lower",
                    limit / 3.0,
                ),
            ]
        spreads = [part.spread for part in parts]
        figures += [
            Figure(f"{name} camera, error over sigma, least", min(spreads), "1", "higher", 0.8),
            Figure(f"{name} camera, error over sigma, most", max(spreads), "1", "lower", 1.25),
        ]
    return figures


def _print_errors(name: str, errors: Errors) -> None:
    print(f"{name}: known {errors.coverage:.1%}, error over sigma {errors.spread:.2f}")
    for metres in (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5, 3.0, 3.5):
        here = errors.near(metres)
        if len(here.relative) >= _FEWEST:
            print(
                f"  {metres:g} m: median {here.median:.2f} %, bias {here.bias:+.2f} %, "
                f"error over sigma {here.spread:.2f}"
            )


def lens_types(recording: Recording, found: PlenopticCamera) -> list[Figure]:
    """Return the bias of depth measured with lenses of one type only, at 0.5 and 1 m."""
    figures = []
    noise = raw_noise(recording.simulation.options.sensor)
    depth_range = recording.engine(found).depth_range
    for kind in range(found.grid.n_types):
        engine = recording.engine(
            only_type(found, kind), MetricOptions(range_mm=(250.0, 2000.0), most_sigma=0.3)
        )
        assert depth_range is not None
        engine.restore_range(depth_range)
        errors = join(
            [compare(engine.run(frame.raw), frame, found, noise) for frame in recording.frames[:2]]
        )
        _print_errors(f"lens type {kind} alone", errors)
        figures += [
            Figure(
                f"lens type {kind} alone, {metres:g} m, bias",
                abs(errors.near(metres).bias),
                "%",
                "lower",
                DEPTHS_M[metres] / 3.0,
            )
            for metres in (0.5, 1.0)
        ]
    return figures


def noise_free_types() -> list[Figure]:
    """Return the error of virtual depth with lenses of one type only, on walls without noise."""
    wall = Recording("wall", 1, ())
    simulation, camera = wall.simulation, replace(wall.camera, distortion=NoDistortion())
    optics = replace(simulation.optics, camera=camera)
    renderer, scene = Renderer(optics, 64), PackedScene(simulation.scene)
    exact = replace(simulation.options.sensor, bits=16, full_well_e=0.0, read_noise_e=0.0)
    rng = np.random.default_rng(0)
    white = renderer.render_white(0)
    vignetting = vignetting_from_white(expose(white / white.max(), exact, rng))
    kinds = [*range(camera.grid.n_types), None]
    errors: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    for index in (12, 24):
        pose = simulation.trajectory.world_from_cam[index].inverse()
        light = renderer.render_raw(scene, pose, index)
        light /= optics.apertures.compute_illumination(0.0, optics.focal_planes_v).max()
        raw = expose(light, exact, rng)
        view = renderer.render_pinhole(scene, pose, simulation.options.pinhole_scale)
        for kind in kinds:
            used = camera if kind is None else only_type(camera, kind)
            engine = DepthEngine(used, vignetting, MetricOptions(most_sigma=0.3))
            engine.restore_range((2.5, 3.4))
            found = engine.run(raw)
            u = camera.virtual_depth_from_depth(found.depth_mm)
            true = look_up(view, found.intrinsics, view.depth_mm)
            error = u / camera.virtual_depth_from_depth(true) - 1.0
            inside = error[2 * _BORDER_PX : -2 * _BORDER_PX, 2 * _BORDER_PX : -2 * _BORDER_PX]
            errors[kind].append(100.0 * float(np.nanmedian(inside)))
    for kind in kinds:
        name = "all types" if kind is None else f"lens type {kind} alone"
        print(f"wall without noise, {name}, error of u: {np.round(errors[kind], 3)} %")
    return [
        Figure(
            "wall without noise, one lens type alone, error of u, worst",
            max(abs(error) for kind in kinds if kind is not None for error in errors[kind]),
            "%",
            "lower",
            0.1,
        )
    ]


def only_type(camera: PlenopticCamera, kind: int) -> PlenopticCamera:
    """Return a camera with the lenses of one type."""
    grid = camera.grid
    mine = grid.lens_types == kind
    assert grid.discs is not None
    assert grid.focal_planes is not None
    alone = replace(
        grid,
        centers_raw_px=grid.centers_raw_px[mine],
        lens_types=np.zeros(int(mine.sum()), np.int64),
        n_types=1,
        focal_planes=grid.focal_planes[kind : kind + 1],
        discs=replace(grid.discs, micro_px=grid.discs.micro_px[kind : kind + 1]),
        lattice=None,
        indices_qr=None,
    )
    return replace(camera, grid=alone)


# A flat wall


def flatness(found: PlenopticCamera) -> list[Figure]:
    wall = Recording("wall", 1, (0, 6, 12, 18, 24, 30))
    figures = []
    for name, camera in (("calibrated", found), ("true", wall.camera)):
        engine = wall.engine(camera)
        rms, bowls, smooth = [], [], []
        for frame in wall.frames:
            shape = measure_plane(engine.run(frame.raw))
            rms.append(shape.rms)
            bowls.append(shape.bowl)
            smooth.append(shape.smooth_rms)
            print(
                f"wall, {name} camera, at {shape.distance_mm:.0f} mm: rms {shape.rms:.2f} %, "
                f"of 64 px means {shape.smooth_rms:.2f} %, bowl {shape.bowl:+.3f} +- "
                f"{shape.bowl_sigma:.3f} %"
            )
        what = f"flat wall, {name} camera"
        figures += [
            Figure(f"{what}, rms from the best plane", max(rms), "%", "lower", 0.5),
            Figure(f"{what}, means of 64 px, rms from it", max(smooth), "%", "lower", 0.5),
            Figure(
                f"{what}, radial trend, middle to corner, largest",
                max(map(abs, bowls)),
                "%",
                "lower",
                0.2,
            ),
            Figure(f"{what}, radial trend, mean", abs(float(np.mean(bowls))), "%", "lower", 0.2),
        ]
    return figures


@dataclass(frozen=True)
class PlaneShape:
    """How a surface departs from its best plane, in per cent of the distance.

    Parameters
    ----------
    distance_mm : float
        Median.
    rms : float
        Of single pixels, those beyond five sigma left out.
    smooth_rms : float
        Of means over 64 x 64 pixels.
    bowl, bowl_sigma : float
        Change from the middle to the corner of the image, of a parabola in the distance from the
        principal point; and its standard deviation, if squares of 64 x 64 pixels err each as one.
    """

    distance_mm: float
    rms: float
    smooth_rms: float
    bowl: float
    bowl_sigma: float


def measure_plane(found: MetricFrame) -> PlaneShape:
    """Fit a plane to a depth map, weighted by sigma: 1 / z is linear in the image."""
    k = found.intrinsics
    known = found.known.copy()
    known[:_BORDER_PX] = known[-_BORDER_PX:] = False
    known[:, :_BORDER_PX] = known[:, -_BORDER_PX:] = False
    rows, cols = np.nonzero(known)
    x, y = (cols - k.cx) / k.fx, (rows - k.cy) / k.fy
    depth = found.depth_mm[known].astype(np.float64)
    weight = depth**2 / found.sigma_mm[known]
    design = np.column_stack([x, y, np.ones_like(x)])
    good = np.ones(len(x), np.bool_)
    for _ in range(3):
        a = design[good] * weight[good, None]
        plane = np.linalg.lstsq(a, weight[good] / depth[good], rcond=None)[0]
        off = depth * (design @ plane) - 1.0
        good = np.abs(off) * depth < 5.0 * found.sigma_mm[known]
    q = x * x + y * y
    bowl = np.column_stack([design, q])[good] * weight[good, None]
    terms = np.linalg.lstsq(bowl, weight[good] / depth[good], rcond=None)[0]
    squares = rows[good] // 64 * 10_000 + cols[good] // 64
    residuals = weight[good] / depth[good] - bowl @ terms
    scores = [np.bincount(squares, column * residuals) for column in bowl.T]
    inverse = np.linalg.inv(bowl.T @ bowl)
    spread = inverse @ (np.array(scores) @ np.array(scores).T) @ inverse
    corner = max(k.cx, k.width - k.cx) ** 2 / k.fx**2 + max(k.cy, k.height - k.cy) ** 2 / k.fy**2
    distance = float(np.median(depth))
    blocks: dict[tuple[int, int], list[float]] = {}
    for i, j, value in zip(rows[good] // 64, cols[good] // 64, off[good], strict=True):
        blocks.setdefault((int(i), int(j)), []).append(float(value))
    means = [np.mean(values) for values in blocks.values() if len(values) > 1000]
    return PlaneShape(
        distance,
        100.0 * float(np.sqrt(np.mean(off[good] ** 2))),
        100.0 * float(np.sqrt(np.mean(np.square(means)))),
        -100.0 * float(terms[3]) * corner * distance,
        100.0 * float(np.sqrt(spread[3, 3])) * corner * distance,
    )


# Straight lines, and whether image and depth are aligned


def straight_lines(found: PlenopticCamera) -> list[Figure]:
    """Return how straight lines across the image are; print it with the distortion left in too."""
    chart = make_chart(Simulation(SimulationOptions(CAMERA, "wall", frames=1)).scene)
    usual = Recording("wall", 1, (0, 12), scene=chart.scene)
    bent = Recording("wall", 1, (0,), distortion=STRONG, scene=chart.scene)
    return [
        *_lines(usual, found, chart, "calibrated camera"),
        *_lines(bent, bent.camera, chart, "strong distortion, true camera"),
    ]


def _lines(recording: Recording, camera: PlenopticCamera, chart: Chart, name: str) -> list[Figure]:
    shapes: dict[str, list[LineShape]] = {}
    for what, used, recorded in (
        ("left in", replace(camera, distortion=NoDistortion(), covariance=None), recording.camera),
        ("corrected", camera, replace(recording.camera, distortion=NoDistortion())),
    ):
        engine = recording.engine(used)
        shapes[what] = found = []
        for frame in recording.frames:
            cam_from_world = frame.world_from_cam.inverse()
            result = engine.run(frame.raw)
            found += measure_lines(result, engine.options.scale, chart, recorded, cam_from_world)
        print(
            f"{len(found)} straight lines of {np.median([s.length_px for s in found]):.0f} px, "
            f"{name}, distortion {what}: {_rms([s.bend_px for s in found]):.3f} px rms off a line, "
            f"at most {max(s.bend_px for s in found):.2f} px; depth along them "
            f"{_rms([s.depth_bend for s in found]):.2f} %, at most "
            f"{max(s.depth_bend for s in found):.2f} %"
        )
    bends, depth_bends = zip(*((s.bend_px, s.depth_bend) for s in shapes["corrected"]), strict=True)
    return [
        Figure(f"straight lines, {name}, rms", _rms(bends), "px", "lower", 0.3),
        Figure(f"straight lines, {name}, largest", max(bends), "px", "lower", 0.3),
        Figure(f"straight lines, {name}, depth, largest", max(depth_bends), "%", "lower", 1.0),
    ]


def alignment(recording: Recording, found: PlenopticCamera) -> list[Figure]:
    """Return how far depth is from the image, by its edges."""
    bent = Recording("desk", 1, FRAMES[:1], STRONG)
    figures = []
    for name, seen, camera in (
        ("calibrated camera", recording, found),
        ("strong distortion, true camera", bent, bent.camera),
    ):
        engine = seen.engine(camera, MetricOptions(edge_px=0, least_patch_px=0))
        edges = [measure_depth_edges(engine.run(frame.raw), frame) for frame in seen.frames]
        shift, growth = np.nanmean(edges, axis=0)
        print(f"edges of depth, {name}: shift x, y {shift} px, growth {growth} px")
        figures += [
            Figure(
                f"shift of depth against the image, mean of opposite edges, {name}",
                float(np.abs(shift).max()),
                "px",
                "lower",
                0.5,
            ),
            Figure(
                f"near surfaces beyond their edges, {name}", float(growth.max()), "px", "lower", 1.0
            ),
        ]
    return figures


def measure_depth_edges(found: MetricFrame, frame: SimulatedFrame) -> FloatArray:
    """Return how far edges of depth are from the true ones, (2, 2): shift and growth, x and y.

    In px. The shift is the mean of edges from near to far and from far to near, the growth half of
    their difference: by how much near surfaces go beyond their edges.
    """
    true = look_up(frame.view, found.intrinsics, frame.view.depth_mm)
    depth = found.depth_mm.astype(np.float64)
    to_far, to_near = np.transpose([_find_edges(depth, true), _find_edges(depth.T, true.T)])
    return np.array([0.5 * (to_far + to_near), 0.5 * (to_far - to_near)])


def _find_edges(depth: FloatArray, true: FloatArray) -> list[float]:
    """Return the mean place of edges along rows, near to far and far to near, off the true ones."""
    ratio = np.log(true[:, 1:] / true[:, :-1])
    offsets = []
    for sign in (1.0, -1.0):
        rows, cols = np.nonzero(sign * ratio > _JUMP)
        good = (cols >= _BORDER_PX) & (cols < depth.shape[1] - _BORDER_PX)
        rows, cols = rows[good], cols[good]
        window = np.arange(-_REACH_PX, _REACH_PX + 1)
        values = np.log(depth[rows[:, None], cols[:, None] + window])
        low, high = np.log(true[rows, cols]), np.log(true[rows, cols + 1])
        beyond = (values > (0.5 * (low + high))[:, None]) == (sign > 0.0)
        # one crossing only, and all known
        clean = np.isfinite(values).all(axis=1) & (np.abs(np.diff(beyond, axis=1)).sum(axis=1) == 1)
        clean &= beyond[:, -1] & ~beyond[:, 0]
        places = _REACH_PX - beyond[clean].sum(axis=1)
        offsets.append(float(np.mean(places)) if len(places) else float("nan"))
    return offsets


@dataclass(frozen=True)
class EdgeErrors:
    """Errors of metric depth within 4 px of depth jumps of 10 % and more.

    Parameters
    ----------
    off : float
        Share of the known pixels that are off by more than 5 %, in per cent.
    spread : float
        Robust spread of error over sigma.
    coverage : float
        Share of the pixels whose depth is known, in per cent.
    growth : float
        By how many pixels near surfaces go beyond their edges, along the worse axis, without the
        filters of metric depth.
    """

    off: float
    spread: float
    coverage: float
    growth: float


def measure_beside_edges(
    engines: tuple[DepthEngine, DepthEngine], raw: Frame, view: TrueDepth
) -> EdgeErrors:
    """Measure a frame with the default engine and with one without filters."""
    found, plain = (engine.run(raw) for engine in engines)
    true = view.at(found.intrinsics)
    inside = np.zeros(true.shape, np.bool_)
    inside[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX] = True
    beside = inside & np.isfinite(true) & (_distance_to_jumps(true) <= _BESIDE_PX)
    known = beside & found.known
    error = found.depth_mm[known] - true[known]
    normalized = error / found.sigma_mm[known]
    middle = np.median(normalized)
    depth = plain.depth_mm.astype(np.float64)
    edges = [_find_edges(depth, true), _find_edges(depth.T, true.T)]
    growth = [0.5 * (to_far - to_near) for to_far, to_near in edges]
    return EdgeErrors(
        100.0 * float(np.mean(np.abs(error / true[known]) > _GROSS)),
        1.4826 * float(np.median(np.abs(normalized - middle))),
        100.0 * float(known.sum() / max(beside.sum(), 1)),
        float(np.nanmax(growth)) if np.isfinite(growth).any() else float("nan"),
    )


@dataclass(frozen=True, eq=False)
class TrueDepth:
    """A true depth map: z in mm, focal length and principal point in px."""

    depth_mm: FloatArray
    focal_px: float
    principal_point_px: tuple[float, float]

    def at(self, k: PinholeIntrinsics) -> FloatArray:
        """Return the depths at the pixels of an image, from the nearest pixel."""
        rows, cols = np.mgrid[: k.height, : k.width]
        x = (cols - k.cx) / k.fx * self.focal_px + self.principal_point_px[0]
        y = (rows - k.cy) / k.fy * self.focal_px + self.principal_point_px[1]
        height, width = self.depth_mm.shape
        i = np.clip(np.rint(y).astype(np.int64), 0, height - 1)
        j = np.clip(np.rint(x).astype(np.int64), 0, width - 1)
        values: FloatArray = self.depth_mm[i, j].astype(np.float64)
        values[(np.abs(x - j) > 1.0) | (np.abs(y - i) > 1.0)] = np.nan
        return values


def _distance_to_jumps(true: FloatArray) -> Float32Array:
    """Return the distance to the nearest jump of depth by 10 % and more, in px."""
    logs = np.log(true)
    jumps = np.zeros(true.shape, np.uint8)
    across, down = (np.abs(np.diff(logs, axis=axis)) > _JUMP for axis in (1, 0))
    jumps[:, :-1] |= across
    jumps[:, 1:] |= across
    jumps[:-1] |= down
    jumps[1:] |= down
    return np.asarray(cv2.distanceTransform(1 - jumps, cv2.DIST_L2, 5), np.float32)


def depth_edges(recordings: Sequence[Recording]) -> list[Figure]:
    """Return the errors beside depth jumps, of desks, of rooms, and of another renderer."""
    cases: dict[str, list[EdgeErrors]] = {}
    for recording in recordings:
        engines = (
            recording.engine(recording.camera),
            recording.engine(recording.camera, MetricOptions(edge_px=0, least_patch_px=0)),
        )
        for frame in recording.frames:
            view = frame.view
            true = TrueDepth(
                np.asarray(view.depth_mm, np.float64),
                view.focal_px,
                (float(view.principal_point_px[0]), float(view.principal_point_px[1])),
            )
            raw = make_frame(frame.raw, "frame", "frame")
            name = recording.name.rsplit("-", 1)[0]
            cases.setdefault(name, []).append(measure_beside_edges(engines, raw, true))
    if INDEPENDENT.is_dir():
        cases["another renderer"] = [measure_independent(INDEPENDENT)]
    figures = []
    for name, errors in cases.items():
        off, spread, coverage, growth = (
            float(np.nanmean([getattr(each, key) for each in errors]))
            for key in ("off", "spread", "coverage", "growth")
        )
        print(
            f"within {_BESIDE_PX:g} px of depth jumps, {name}: {off:.1f} % off by more than 5 %, "
            f"error over sigma {spread:.2f}, known {coverage:.0f} %, near surfaces "
            f"{growth:+.2f} px beyond their edges"
        )
        what = f"within {_BESIDE_PX:g} px of depth jumps, {name}"
        figures += [
            Figure(f"{what}, off by more than 5 %", off, "%", "lower", _EDGE_LIMITS["off"]),
            Figure(f"{what}, error over sigma", spread, "1", "lower", _EDGE_LIMITS["spread"]),
            Figure(
                f"{what}, near surfaces beyond edges", growth, "px", "lower", _EDGE_LIMITS["growth"]
            ),
        ]
    return figures


def measure_independent(folder: Path) -> EdgeErrors:
    """Measure the first frame of a recording of another renderer, with its best-fit camera."""
    truth = folder / "truth"
    fit, physical = (read_json(truth / name) for name in ("pseudo_true_tilt.json", "camera.json"))
    frames = open_frames(folder / "raw")
    white = open_frames(folder / "white.png").read(0)
    vignetting = vignetting_from_white(white)
    some = [frames.read(index) for index in spread_choice(len(frames), 5)]
    grid = estimate_focal_planes(some, fit_grid_to_white(white).grid, vignetting).grid
    camera = PlenopticCamera(
        PhysicalParameters(*(fit[name] for name in ("fL", "bL0", "B", "cx", "cy"))),
        physical["pixel_mm"],
        grid,
        BrownDistortion(*(fit[name] for name in ("k0", "k1", "k2", "p0", "p1"))),
        tilt=ArrayTilt(fit["tx"], fit["ty"]),
    )
    engines = (
        DepthEngine(camera, vignetting),
        DepthEngine(camera, vignetting, MetricOptions(edge_px=0, least_patch_px=0)),
    )
    for engine in engines:
        engine.set_range(some)
    maps = physical["depth_maps"]
    true = TrueDepth(
        1000.0 * np.load(truth / "depth_pinhole_0000.npy").astype(np.float64),
        maps["pinhole_f_px"],
        (maps["principal_point"][0], maps["principal_point"][1]),
    )
    return measure_beside_edges(engines, frames.read(0), true)


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")


# Cost


def speed(recording: Recording, found: PlenopticCamera) -> list[Figure]:
    """Return the time of a warm frame of 2048 x 2048, and print that of its stages."""
    engine = recording.engine(found)
    engine.warm_up()
    raw = recording.frames[1].raw

    def whole() -> None:
        engine.run(raw).cloud()

    whole()
    seconds = min(_timed(whole) for _ in range(5))
    for name, value in _stages(recording, found, engine).items():
        print(f"| {name} | {value:.2f} |")
    return [
        Figure(
            "frame of 2048 x 2048 to image, depth, sigma and cloud, warm",
            seconds,
            "s",
            "lower",
            2.5,
            noisy=True,
        )
    ]


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _stages(recording: Recording, camera: PlenopticCamera, engine: DepthEngine) -> dict[str, float]:
    space, options = Workspace(), engine.options
    rectifier = Rectification.from_camera(camera, space)
    depth_options = DepthOptions(scale=options.scale, depth_range=engine.depth_range)
    focus = FocusEngine(
        camera.grid, recording.vignetting, depth_options, rectifier=rectifier, workspace=space
    )
    raw = recording.frames[1].raw
    frame = make_frame(raw, "frame", "frame")
    gray = focus.devignette(frame)
    depth = estimate_virtual_depth(
        gray, focus.grid, depth_options, optics=focus.optics, workspace=space
    )
    z, sigma = compute_metric_depth(camera, depth.u, depth.sigma)
    filters = SharpeningFilters.from_optics(focus.optics, options.scale)
    result = engine.run(raw)
    stages: dict[str, Callable[[], object]] = {
        "raw to floats": lambda: make_frame(raw, "frame", "frame"),
        "devignetting and rectifying": lambda: focus.devignette(frame),
        "virtual depth": lambda: estimate_virtual_depth(
            gray, focus.grid, depth_options, optics=focus.optics, workspace=space
        ),
        "focused image": lambda: make_focused_image(
            gray, focus.grid, depth, optics=focus.optics, filters=filters, workspace=space
        ),
        "metric depth and sigma": lambda: compute_metric_depth(camera, depth.u, depth.sigma),
        "filters": lambda: filter_depth(z, sigma, depth.flags, engine.range_mm, options, space),
        "cloud with normals": result.cloud,
    }
    return {name: min(_timed(work) for _ in range(3)) for name, work in stages.items()}


def run_sequence(camera_path: str, count: str) -> None:
    """Run one frame many times and print seconds of early and late frames: a process to measure."""
    recording = Recording("desk", 1, (2, 24))
    engine = recording.engine(read_camera(camera_path))
    engine.warm_up()
    times, sizes = [], []
    for index in range(int(count)):
        raw = recording.frames[index % 2].raw
        times.append(_timed(lambda raw=raw: engine.run(raw).cloud()))  # type: ignore[misc]
        sizes.append(_resident_gb())
    part = max(len(times) // 4, 1)
    early, late = np.median(times[:part]), np.median(times[-part:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(early, late, max(sizes[:part]), max(sizes[-part:]), peak)


def _resident_gb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def sequence(data: Path, count: int = _SEQUENCE) -> list[Figure]:
    """Return how time and memory change over many frames."""
    call = (
        "import sys; from benchmarks.depth import run_sequence; run_sequence(*sys.argv[1:])",
        str(data / f"{CALIBRATED_ON.name}-calibration" / "camera.json"),
        str(count),
    )
    done = subprocess.run(
        [sys.executable, "-c", *call],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    early, late, before, after, peak = map(float, done.stdout.split())
    print(
        f"{count} frames: {early:.2f} s a frame in the first quarter, {late:.2f} s in the last; "
        f"memory {before:.2f} and {after:.2f} GB, with rendering {peak:.2f} GB"
    )
    return [
        Figure(f"{count} frames, memory", after, "GB", "lower", 2.0),
        Figure(f"{count} frames, growth of memory", after - before, "GB", "lower", 0.05),
        Figure(f"{count} frames, slow-down", late / early, "1", "lower", 1.15, noisy=True),
    ]
