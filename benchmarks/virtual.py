"""Virtual depth and the focused image: against truth, on a real raw, and how fast.

Simulated frames have full optics and noise; grid and vignetting are fitted to the simulated white
image, the focal planes to five frames spread over the sequence, as `lifcal focus` takes them. A
pixel counts as textured where the gradient of the true
pinhole view is, rms over 13 x 13 pixels, at least the noise of a raw pixel that sees mid gray: 2 of
255 a pixel for the simulated sensor. The raw pixels of such a window then tell u to about 0.7 % at
best (they are about 450, on average 6 px from the micro-image centers, and half of a gradient is
along that): less texture has little to tell. Pixels within 24 px of the border are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.grid import REAL_DATA, make_white, radii_error, wrong_types
from benchmarks.virtual_truth import (
    Bias,
    DepthErrors,
    ImageErrors,
    Ripple,
    SeenImage,
    StraightEdge,
    Truth,
    compare_depth,
    compare_image,
    compute_bias,
    compute_phases,
    compute_ripple,
    count_matches,
    detrend_by,
    join_errors,
    list_marker_lines,
    make_truth,
    measure_straight_edges,
    raw_noise,
)
from lifcal.arrays import Float32Array, ImageArray, spread_choice
from lifcal.camera import MicroLensGrid, PlenopticCamera, read_grid, write_grid
from lifcal.errors import EstimationError
from lifcal.grid.fit import GridFit, fit_grid_to_white, refine_grid
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import Frame, make_frame, open_frames
from lifcal.imaging.raytrix import read_raytrix_xml
from lifcal.pipeline.focusing import FRAMES_FOR_RANGE
from lifcal.simulate import SimulatedFrame, Simulation, SimulationOptions
from lifcal.threads import PartedLoop
from lifcal.virtual import (
    DepthOptions,
    FocusedFrame,
    FocusEngine,
    _kernels_cost,
    _kernels_refine,
    _kernels_synthesis,
)
from lifcal.virtual.focal_planes import estimate_focal_planes

CAMERA = "r5-16mm"
SCENES = ("desk", "room")
SEEDS = (1, 2, 3)
N_FRAMES = 36
FRAMES = (10, 12)
"""Of the sequence: two that see the same things from places 5 to 8 % of the distance apart."""
U_EDGES = np.arange(2.0, 6.01, 0.1)
PHASE_EDGES = np.linspace(0.0, 1.0, 21)


def run() -> list[Figure]:
    return [*_simulated(), *_real(), *_speed()]


# Simulated frames


@dataclass(frozen=True, eq=False)
class Recording:
    """Some frames of one scene, and their truth.

    Parameters
    ----------
    name : str
    simulation : Simulation
    frames : tuple of SimulatedFrame
    others : tuple of array
        Raw images of the whole sequence, for the focal planes.
    """

    name: str
    simulation: Simulation
    frames: tuple[SimulatedFrame, ...]
    others: tuple[ImageArray, ...]

    @property
    def camera(self) -> PlenopticCamera:
        """The true camera."""
        return self.simulation.optics.camera

    def find_grid(self, grid: MicroLensGrid, vignetting: Float32Array) -> MicroLensGrid:
        """Return a grid with the focal planes that the recording shows."""
        frames = [make_frame(raw, self.name, self.name) for raw in self.others]
        return estimate_focal_planes(frames, grid, vignetting).grid

    def raw(self, index: int) -> Frame:
        """Return a frame as if it was read from a file."""
        name = f"{self.name}-{index}"
        return make_frame(self.frames[index].raw, name, name)


def record(camera: str, scene: str, seed: int, frames: Sequence[int] = FRAMES) -> Recording:
    """Render some frames of a sequence."""
    simulation = Simulation(
        SimulationOptions(camera=camera, scene=scene, frames=N_FRAMES, seed=seed)
    )
    rendered = tuple(simulation.render_frame(index) for index in frames)
    others = tuple(
        simulation.render_frame(index).raw for index in spread_choice(N_FRAMES, FRAMES_FOR_RANGE)
    )
    return Recording(f"{scene}-{seed}", simulation, rendered, others)


@dataclass(frozen=True, eq=False)
class FrameErrors:
    """What one frame came out as."""

    name: str
    depth: DepthErrors
    image: ImageErrors
    edges: tuple[StraightEdge, ...]
    true_edges: tuple[StraightEdge, ...]
    result: FocusedFrame
    truth: Truth


def measure_frame(recording: Recording, index: int, engine: FocusEngine) -> FrameErrors:
    """Run one frame and compare it with its truth."""
    frame, camera = recording.frames[index], recording.camera
    result = engine.run(recording.raw(index))
    depth = result.depth
    truth = make_truth(camera, frame.view, depth.u.shape, depth.scale)
    image = compare_image(result.focused, truth)
    edges, true_edges = (
        measure_straight_edges(
            picture,
            depth.scale,
            list_marker_lines(recording.simulation.scene),
            camera,
            frame.view,
            frame.world_from_cam.inverse(),
        )
        for picture in (
            np.asarray(image.gain * result.focused.image, np.float32),
            truth.luminance,
        )
    )
    threshold = raw_noise(recording.simulation.options.sensor)
    return FrameErrors(
        f"{recording.name}-{index}",
        compare_depth(depth, truth, threshold),
        image,
        tuple(edges),
        tuple(true_edges),
        result,
        truth,
    )


def compare_matches(recording: Recording, pair: tuple[FrameErrors, FrameErrors]) -> tuple[int, int]:
    """Return the right matches between two focused images, and between the two true views."""
    counts = []
    for true in (False, True):
        seen = [
            SeenImage(
                errors.truth.luminance
                if true
                else np.asarray(errors.image.gain * errors.result.focused.image, np.float32),
                errors.result.depth.scale,
                frame.view,
                frame.world_from_cam,
            )
            for errors, frame in zip(pair, recording.frames, strict=True)
        ]
        counts.append(count_matches(seen[0], seen[1], recording.camera))
    return counts[0], counts[1]


def plane_error(grid: MicroLensGrid, camera: PlenopticCamera) -> float:
    """Return the largest relative error of the focal planes, as the paper's v; NaN without planes.

    Types are numbered by rising virtual depth in focus, in the fit and in the simulated cameras.
    """
    planes = camera.grid.focal_planes
    if grid.focal_planes is None or planes is None or len(grid.focal_planes) != len(planes):
        return float("nan")
    found = camera.paper_from_virtual_depth(grid.focal_planes)
    return float(np.abs(found / camera.paper_from_virtual_depth(planes) - 1.0).max())


@dataclass(frozen=True, eq=False)
class SceneBias:
    """How the error of u depends on what it should not depend on; errors relative to u.

    Parameters
    ----------
    by_place : dict of Bias
        By 'x' and 'y' in the pixel of the nearest micro image. Errors are taken less their median
        in bins of u.
    by_disparity : dict of Ripple
        By the disparity of micro images 'one pitch' and '1.5 pitches' apart: along the columns or
        rows of a hexagonal grid, lenses of one type are 1.5 pitches apart.
    by_u : Bias
    """

    by_place: dict[str, Bias]
    by_disparity: dict[str, Ripple]
    by_u: Bias


def measure_bias(parts: Sequence[DepthErrors], grid: MicroLensGrid) -> SceneBias:
    """Return the median error of some frames by sub-pixel phase and by true u."""
    errors = join_errors(parts)
    phases = compute_phases(errors.points_raw_px, errors.u, grid)
    values = detrend_by(errors.u, errors.relative, U_EDGES)
    known = np.isfinite(values)
    return SceneBias(
        {
            name: compute_bias(phases[known, axis], values[known], PHASE_EDGES)
            for axis, name in enumerate("xy")
        },
        {
            "one pitch": compute_ripple(parts, grid.pitch_px),
            "1.5 pitches": compute_ripple(parts, 1.5 * grid.pitch_px),
        },
        compute_bias(errors.u, errors.relative, U_EDGES, fewest=5000),
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All of the simulated frames."""

    fit: GridFit
    recordings: list[Recording]
    frames: list[tuple[FrameErrors, ...]]
    plane_errors: list[float]


def measure_scenes(
    recordings: Sequence[Recording], white: ImageArray, options: DepthOptions | None = None
) -> Results:
    """Fit the grid, find the focal planes of each recording, and run all of its frames."""
    fit = fit_grid_to_white(white)
    vignetting = vignetting_from_white(white)
    results = Results(fit, list(recordings), [], [])
    for recording in recordings:
        grid = recording.find_grid(fit.grid, vignetting)
        results.plane_errors.append(plane_error(grid, recording.camera))
        engine = FocusEngine(grid, vignetting, options)
        results.frames.append(
            tuple(measure_frame(recording, index, engine) for index in range(len(recording.frames)))
        )
    return results


def _simulated() -> list[Figure]:
    recordings = [record(CAMERA, scene, seed) for scene in SCENES for seed in SEEDS]
    results = measure_scenes(recordings, recordings[0].simulation.render_white())
    _print_frames(results)
    return [*_depth_figures(results), *_image_figures(results), *_type_figures(results)]


def _print_frames(results: Results) -> None:
    print(
        "frame      textured  coverage  median error  >5 %   z robust  z clipped  |z|>5"
        "   PSNR   near edges"
    )
    for errors in (errors for pair in results.frames for errors in pair):
        depth, image = errors.depth, errors.image
        print(
            f"{errors.name:10} {depth.textured_share:8.1%} {depth.coverage:9.1%} "
            f"{depth.median_error:13.3%} {depth.gross_share:6.2%} {depth.robust_spread:9.2f} "
            f"{depth.clipped_spread:10.2f} {depth.beyond_share:6.2%} {image.psnr_db:6.1f} "
            f"{image.psnr_edges_db:8.1f} dB"
        )


def _depth_figures(results: Results) -> list[Figure]:
    figures = []
    for scene in SCENES:
        chosen = [e for pair in results.frames for e in pair if e.name.startswith(scene)]
        depths = [errors.depth for errors in chosen]
        bias = measure_bias(depths, results.fit.grid)
        what = f"{scene}, virtual depth"
        n = len(depths)
        figures += [
            Figure(
                f"{what}, median |error| of u, worst of {n}",
                100.0 * max(errors.median_error for errors in depths),
                "%",
                "lower",
                0.3,
            ),
            Figure(
                f"{what}, off by more than 5 %, worst of {n}",
                100.0 * max(errors.gross_share for errors in depths),
                "%",
                "lower",
                3.0,
            ),
            Figure(
                f"{what}, coverage of textured pixels, worst of {n}",
                100.0 * min(errors.coverage for errors in depths),
                "%",
                "higher",
                90.0,
            ),
        ]
        for kind, spreads in (
            ("robust", [errors.robust_spread for errors in depths]),
            ("clipped", [errors.clipped_spread for errors in depths]),
        ):
            name = f"{what}, error over sigma, {kind} spread"
            figures += [
                Figure(f"{name}, least of {n}", min(spreads), "1", "higher", 0.8),
                Figure(f"{name}, largest of {n}", max(spreads), "1", "lower", 1.25),
            ]
        amplitudes = {
            **{f"place in a pixel, {k}": b.first_harmonic for k, b in bias.by_place.items()},
            **{f"disparity over {k}": b.amplitude for k, b in bias.by_disparity.items()},
        }
        figures += [
            Figure(f"{what}, bias by {name}, amplitude", 100.0 * value, "%", "lower", 0.03)
            for name, value in amplitudes.items()
        ]
        figures.append(
            Figure(
                f"{what}, bias by u, largest median",
                100.0 * bias.by_u.largest,
                "%",
                "lower",
                0.3,
            )
        )
        print(f"{what}, median error by u: " + _describe(bias.by_u))
    return figures


def _describe(bias: Bias) -> str:
    known = np.isfinite(bias.medians)
    return ", ".join(
        f"{u:.2f}: {100.0 * median:+.2f} %"
        for u, median in zip(bias.middles[known], bias.medians[known], strict=True)
    )


def _image_figures(results: Results) -> list[Figure]:
    frames = [errors for pair in results.frames for errors in pair]
    edges = [edge for errors in frames for edge in errors.edges]
    bends = [edge.bend_px for edge in edges]
    ratios = []
    for recording, pair in zip(results.recordings, results.frames, strict=True):
        found, true = compare_matches(recording, (pair[0], pair[1]))
        print(f"{recording.name}: {found} right matches, {true} between the true views")
        ratios.append(found / max(true, 1))
    figures = [
        Figure(
            f"{scene}, focused image, PSNR away from depth edges, worst",
            min(errors.image.psnr_db for errors in frames if errors.name.startswith(scene)),
            "dB",
            "higher",
            30.0,
        )
        for scene in SCENES
    ]
    floor = [edge.bend_px for errors in frames for edge in errors.true_edges]
    lengths = [float(np.ptp(edge.along_px)) for edge in edges]
    print(
        f"{len(edges)} straight edges of {min(lengths, default=0):.0f} to "
        f"{max(lengths, default=0):.0f} px: {_rms([e.bend_px for e in edges]):.3f} px rms from a "
        f"straight line ({_rms(floor):.3f} px in the true views), "
        f"{_rms([e.off_true_px for e in edges]):.3f} px rms off the true one"
    )
    return [
        *figures,
        Figure(
            "focused image, straight edges, from a straight line, rms",
            _rms(bends),
            "px",
            "lower",
            0.1,
        ),
        Figure(
            "focused image, straight edges, bow, median",
            float(np.median([edge.bow_px for edge in edges])),
            "px",
            "lower",
            0.05,
        ),
        Figure(
            f"focused images, SIFT matches relative to the true views, worst of {len(ratios)}",
            min(ratios),
            "1",
            "higher",
            0.8,
        ),
    ]


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _type_figures(results: Results) -> list[Figure]:
    truth = results.recordings[0].camera.grid
    return [
        Figure(
            "white image, lenses of wrong type", wrong_types(results.fit, truth), "1", "lower", 0.0
        ),
        Figure(
            f"focal planes v_T without the maker's file, worst of {len(results.plane_errors)}",
            float(np.max(results.plane_errors)),
            "relative",
            "lower",
            0.05,
        ),
        Figure(
            "white image, overlap radii", radii_error(results.fit, truth), "relative", "lower", 0.03
        ),
    ]


# The real raw of an R42


def focus_r42(options: DepthOptions | None = None) -> tuple[MicroLensGrid, FocusedFrame] | None:
    """Run the real R42 raw with the maker's grid, moved to it; None if it is not at hand.

    The raw has its vignetting removed already.
    """
    path = REAL_DATA / "R42" / "sc2_klein.png"
    if not path.exists():
        return None
    frame = open_frames(path).read(0)
    maker = read_raytrix_xml(path.with_suffix(".xml")).grid(frame.image_size)
    grid = refine_grid(maker, frame, source="scene", discs=False).grid
    even = np.ones(frame.gray.shape, np.float32)
    # Without overlap discs one raw may not tell the focal planes: then all types count the same.
    with suppress(EstimationError):
        grid = estimate_focal_planes([frame], grid, even).grid
    return grid, FocusEngine(grid, even, options).run(frame)


def _real() -> list[Figure]:
    """Return figures of the real raw.

    The maker's file has no b_L0 and B, so k of `1/u = (1 - k) + k/v` is taken as 1: v is u. That is
    also how others who work with the micro-image centers alone define it.
    """
    found = focus_r42()
    if found is None:
        return []
    depth = found[1].depth
    median = float(np.nanmedian(depth.u))
    print(f"real R42 raw: u known in {depth.known.mean():.1%}, median {median:.2f}")
    return [
        Figure("real R42 raw, median v (k = 1)", median, "1", "higher", 5.0),
        Figure("real R42 raw, median v (k = 1), upper limit", median, "1", "lower", 6.5),
    ]


# Speed and memory


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    """Collect the seconds that each compiled stage takes. All must be compiled before."""
    seconds: dict[str, float] = {}
    plain = {
        (module, name): item
        for module in (_kernels_cost, _kernels_refine, _kernels_synthesis)
        for name, item in vars(module).items()
        if isinstance(item, PartedLoop)
    }

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        return timed

    try:
        for (module, name), item in plain.items():
            setattr(module, name, wrap(name, item))
        yield seconds
    finally:
        for (module, name), item in plain.items():
            setattr(module, name, item)


@dataclass(frozen=True, eq=False)
class Load:
    """A frame to time, and what its camera's white image says."""

    frame: Frame
    raw: ImageArray
    white: ImageArray
    grid: MicroLensGrid
    vignetting: Float32Array


def make_load(camera: str, rays: int = 4) -> Load:
    """Render a frame of a camera, with the grid of its white image and true focal planes."""
    simulation = Simulation(SimulationOptions(camera=camera, frames=2, rays_per_pixel=rays))
    raw = simulation.render_frame(0).raw
    white = make_white(simulation.optics, 8, np.random.default_rng(0), rays=16)
    grid = fit_grid_to_white(white).grid
    truth = simulation.optics.camera.grid
    if grid.n_types == truth.n_types:
        grid = replace(grid, focal_planes=truth.focal_planes)
    return Load(make_frame(raw, camera, camera), raw, white, grid, vignetting_from_white(white))


def time_stages(load: Load, options: DepthOptions) -> tuple[float, dict[str, float]]:
    """Return the wall time of depth and focused image of a frame, warm, and of each stage."""
    engine = FocusEngine(load.grid, load.vignetting, options)
    engine.run(load.frame)
    best, stages = float("inf"), {}
    for _ in range(3):
        with timed_stages() as seconds:
            start = time.perf_counter()
            engine.run(load.frame)
            total = time.perf_counter() - start
        if total < best:
            best, stages = total, dict(seconds)
    stages["the rest"] = best - sum(stages.values())
    return best, stages


def run_files(folder: str) -> None:
    """Run `raw.png` of a folder with its `white.png` and `grid.json`: a process to measure."""
    path = Path(folder)
    vignetting = vignetting_from_white(open_frames(path / "white.png").read(0))
    engine = FocusEngine(read_grid(path / "grid.json"), vignetting)
    engine.run(open_frames(path / "raw.png").read(0))


def peak_gb(load: Load) -> float:
    """Return the peak memory of a process that reads and runs one frame, range not given."""
    # Through one more process: a child's own figure may begin at what its parent holds.
    code = (
        "import resource, subprocess, sys;"
        "call = 'import sys; from benchmarks.virtual import run_files; run_files(sys.argv[1])';"
        "subprocess.run([sys.executable, '-c', call, sys.argv[1]], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_png(Path(folder) / "raw.png", load.raw)
        write_png(Path(folder) / "white.png", load.white)
        write_grid(Path(folder) / "grid.json", load.grid)
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
    return int(done.stdout) * 1024 / 1e9


def _speed() -> list[Figure]:
    figures = []
    columns: dict[str, dict[str, float]] = {}
    for camera, limit_s, limit_gb in ((CAMERA, 2.0, 1.5), ("r25-12mm", 12.0, 5.0)):
        load = make_load(camera)
        width, height = load.grid.image_size
        engine = FocusEngine(load.grid, load.vignetting)
        given = engine.set_range([load.frame])
        what = f"depth and focused image of {width} x {height}"
        for name, depth_range in (("range given", given), ("range found", None)):
            seconds, stages = time_stages(load, DepthOptions(depth_range=depth_range))
            columns[f"{width} x {height}, {name}"] = stages
            figures.append(
                Figure(f"{what}, {name}, warm", seconds, "s", "lower", limit_s, noisy=True)
            )
        figures.append(Figure(f"{what}, peak memory", peak_gb(load), "GB", "lower", limit_gb))
    _print_stages(columns)
    return figures


def _print_stages(columns: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for stages in columns.values() for name in stages))
    print("| stage, s | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for name in names:
        print(
            f"| {name} | " + " | ".join(f"{c.get(name, 0.0):.2f}" for c in columns.values()) + " |"
        )
    totals = [sum(stages.values()) for stages in columns.values()]
    print("| all | " + " | ".join(f"{total:.2f}" for total in totals) + " |")
