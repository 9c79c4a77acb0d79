"""The bundle adjustment: exactness, efficiency, the focus term, real corners, speed and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bundle_scenes import Scene, make_scene
from benchmarks.figures import Figure
from benchmarks.r12 import (
    FOLDER,
    SPACING_MM,
    board_distances,
    judge_board,
    neighbors,
    published_focal_px,
    published_ratio,
    read_r12,
)
from lifcal.arrays import FloatArray
from lifcal.bundle import (
    Adjustment,
    AdjustOptions,
    FocusTerm,
    Layout,
    Loss,
    Prior,
    Problem,
    SolverOptions,
    adjust,
    compute_covariance,
    cross_validate,
    solve,
    start_from_observations,
    start_from_sfm,
)
from lifcal.bundle.selection import restrict
from lifcal.camera import TILT_PARAMETERS, BrownDistortion, PhysicalParameters, PlenopticCamera
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, Reconstruction
from lifcal.simulate import CAMERAS, build_camera

JUDGED = ("f_L", "b_L0", "B", "c_x", "c_y", "alpha", "F")
NOISE_PX = 0.1
R12_STRENGTH = Prior(0.5, 0.25)
_CHOSEN = AdjustOptions(loss="huber", distortion="auto")
"""Options of the figures in docs/figures/bundle.md: Huber's loss, and distortion terms chosen
automatically."""
DEPTHS_MM: Mapping[str, tuple[float, float]] = {
    "r5-12.5mm": (400.0, 1500.0),
    "r5-16mm": (400.0, 1500.0),
    "r5-35mm": (900.0, 4000.0),
    "r25-12mm": (400.0, 1500.0),
    "r12-50mm": (240.0, 370.0),
    "mini": (400.0, 1500.0),
    "mini-square": (400.0, 1500.0),
    "mini-keplerian": (300.0, 1500.0),
}


def run() -> list[Figure]:
    figures = [
        Figure(
            "noise-free, worst of all cameras and four starts",
            max(noise_free(name) for name in DEPTHS_MM),
            "relative",
            "lower",
            1e-6,
        ),
        *_efficiency_figures(200, seeds=(0, 1, 2, 3, 4)),
        *_focus_figures(),
        Figure(
            "iterations from structure from motion, 30 views, k0, k1, p0, p1",
            _sfm_iterations(AdjustOptions(distortion="brown", fixed={"k2": 0.0})),
            "1",
            "lower",
            15,
        ),
        Figure(
            "iterations from structure from motion, 30 views, terms chosen",
            _sfm_iterations(_CHOSEN),
            "1",
            "lower",
            30,
        ),
        *_speed_figures(),
    ]
    if FOLDER.is_dir():
        figures += _r12_figures()
    return figures


# Exactness


def noise_free(name: str) -> float:
    """Return the worst relative error of the intrinsics after solves from four rough starts.

    The start values are off by 3 % (f_L, b_L0), 30 % (B) and 50 px (c), in four combinations of
    signs. They have no distortion, and points are off by 0.3 % of their coordinates.
    """
    rng = np.random.default_rng(1)
    camera = build_camera(name).camera
    scene = make_scene(camera, DEPTHS_MM[name], 100, 8, rng)
    distances = scene.distances(6, 0.01, rng)
    truth = scene.truth
    p = camera.parameters
    worst = 0.0
    for f, b0, b in ((1, 1, 1), (1, -1, 1), (-1, 1, -1), (-1, -1, 1)):
        rough = PhysicalParameters(
            p.focal_length_mm * (1.0 + 0.03 * f),
            p.lens_to_array_mm * (1.0 + 0.03 * b0),
            p.array_to_sensor_mm * (1.0 + 0.3 * b),
            p.principal_x_px + 50.0 * f,
            p.principal_y_px - 50.0 * b0,
        )
        moved = truth.points_world_mm * (
            1.0 + 0.003 * rng.normal(size=(len(truth.points_world_mm), 3))
        )
        start = replace(
            truth,
            array=rough.to_pinhole_array(camera.pixel_size_mm),
            distortion=BrownDistortion(),
            points_world_mm=moved,
        )
        exact = AdjustOptions(loss="none", distortion="brown", reject_sigmas=None)
        state = adjust(
            scene.observations,
            start,
            camera.pixel_size_mm,
            camera.grid,
            exact,
            distances=distances,
        ).state
        found = state.array.to_physical(camera.pixel_size_mm).as_vector()
        errors = np.abs(found / p.as_vector() - 1.0)
        array = np.abs(state.array.as_vector() / camera.array.as_vector() - 1.0)
        # The error of the distortion is that of the displacement at the rim, divided by the radius.
        corner = np.array([[0.0, 0.0]])
        distorted = state.distortion.distort(corner, state.array.as_vector()[1:3])
        true = camera.distortion.distort(corner, camera.principal_point_px)
        bend = np.abs(distorted - true).max() / 1000.0
        worst = max(worst, float(errors.max()), float(array.max()), float(bend))
    return worst


# Efficiency


def efficiency(
    n_solves: int, *, outliers: float = 0.0, loss: str = "none", seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return, for each parameter, rmse / bound, and predicted sigma / observed spread.

    The bound is the Cramer-Rao bound at the true values, without outliers. The spread is the root
    mean square deviation from the truth.
    """
    rng = np.random.default_rng(seed)
    camera = build_camera("r5-16mm").camera
    scene = make_scene(camera, (400.0, 1500.0), 60, 10, rng)
    distances = scene.distances(4, 1e-3, rng)
    problem = Problem(
        scene.observations, camera.pixel_size_mm, scene.truth, ("k2",), distances=distances
    )
    bound = compute_covariance(Layout(problem), scene.truth, NOISE_PX).sigmas()
    true = _values(camera)
    errors: dict[str, list[float]] = {name: [] for name in JUDGED}
    sigmas: dict[str, list[float]] = {name: [] for name in JUDGED}
    options = AdjustOptions(
        loss=loss,
        distortion="brown",
        fixed={"k2": 0.0},
        reject_sigmas=None if loss == "none" else 4.5,
    )
    for _ in range(n_solves):
        observations, _ = scene.noisy(NOISE_PX, rng, outliers)
        found = adjust(
            observations,
            scene.truth,
            camera.pixel_size_mm,
            camera.grid,
            options,
            distances=distances,
        )
        predicted = found.covariance.sigmas()
        for name, value in _values(found.camera).items():
            errors[name].append(value - true[name])
            sigmas[name].append(predicted[name])
    result = {}
    for name in JUDGED:
        rmse = float(np.sqrt(np.mean(np.square(errors[name]))))
        result[name] = (rmse / bound[name], float(np.mean(sigmas[name])) / rmse)
    return result


def _values(camera: PlenopticCamera) -> dict[str, float]:
    p, a = camera.parameters, camera.array
    return {
        "f_L": p.focal_length_mm,
        "b_L0": p.lens_to_array_mm,
        "B": p.array_to_sensor_mm,
        "c_x": p.principal_x_px,
        "c_y": p.principal_y_px,
        "alpha": a.alpha,
        "F": a.focal_px,
    }


def pool(results: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return the result that `efficiency` would give for the solves of several scenes together."""
    pooled = {}
    for name in JUDGED:
        ratios, sigmas = np.array([result[name] for result in results]).T
        rmse = float(np.sqrt(np.mean(ratios**2)))
        pooled[name] = (rmse, float(np.sqrt(np.mean((ratios * sigmas) ** 2))) / rmse)
    return pooled


def _efficiency_figures(n_solves: int, seeds: Sequence[int]) -> list[Figure]:
    """Return figures over all scenes: an rmse has a standard error of 5 % for 200 solves, 2 % for
    1000.
    """
    each = [efficiency(n_solves, seed=seed) for seed in seeds]
    plain = pool(each)
    robust = pool([efficiency(n_solves, outliers=0.1, loss="cauchy", seed=seed) for seed in seeds])
    ratios = [ratio for ratio, _ in plain.values()]
    scenes = [ratio for result in each for ratio, _ in result.values()]
    return [
        Figure("rmse / bound, largest of 7", max(ratios), "1", "lower", 1.1),
        Figure("rmse / bound, smallest of 7", min(ratios), "1", "higher", 0.9),
        # The limit is four standard errors of one ratio, because it is for the worst of 35 ratios.
        Figure("rmse / bound, largest of 7 in 5 scenes", max(scenes), "1", "lower", 1.2),
        Figure("rmse / bound, smallest of 7 in 5 scenes", min(scenes), "1", "higher", 0.8),
        Figure(
            "|predicted sigma / spread - 1|, worst",
            max(abs(sigma - 1.0) for _, sigma in plain.values()),
            "1",
            "lower",
            0.2,
        ),
        Figure(
            "rmse / bound with 10 % outliers, largest",
            max(ratio for ratio, _ in robust.values()),
            "1",
            "lower",
            1.5,
        ),
        Figure(
            "|predicted sigma / spread - 1| with 10 % outliers, worst",
            max(abs(sigma - 1.0) for _, sigma in robust.values()),
            "1",
            "lower",
            0.2,
        ),
    ]


# The focus-vignetting term


def focus_errors_percent(seed: int = 3) -> tuple[float, float, float]:
    """Return the error of B: plain model, with g given, with g estimated with a wide prior.

    The simulation has g = 0.3, three lens types and 0.1 px of noise.
    """
    rng = np.random.default_rng(seed)
    camera = build_camera("r5-16mm").camera
    scene = make_scene(camera, (400.0, 1500.0), 200, 16, rng, focus_strength=0.3)
    observations, _ = scene.noisy(NOISE_PX, rng)
    distances = scene.distances(8, 0.01, rng)
    true = camera.parameters.array_to_sensor_mm
    p = camera.parameters
    k = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    term = FocusTerm.from_grid(camera.grid)
    errors = []
    for options in (
        _CHOSEN,
        replace(_CHOSEN, focus=term, focus_strength=0.3 / k),
        replace(_CHOSEN, focus=term, focus_strength=Prior(0.5, 0.5)),
    ):
        found = adjust(
            observations,
            scene.truth,
            camera.pixel_size_mm,
            camera.grid,
            options,
            distances=distances,
        )
        errors.append(100.0 * (found.camera.parameters.array_to_sensor_mm / true - 1.0))
    return errors[0], errors[1], errors[2]


def _focus_figures() -> list[Figure]:
    plain, given, estimated = focus_errors_percent()
    return [
        Figure("B, g = 0.3, plain model, |error|", abs(plain), "%", "higher", 2.0),
        Figure("B, g = 0.3, g given, |error|", abs(given), "%", "lower", 0.3),
        Figure("B, g = 0.3, g estimated, |error|", abs(estimated), "%", "lower", 0.3),
    ]


# Real corners


def adjust_r12(
    *,
    focus: bool,
    strength: float | Prior = R12_STRENGTH,
    plane_sigma: float = 0.05,
    folder: Path = FOLDER,
    tilt: str = "auto",
    validate: bool = False,
) -> Adjustment:
    """Return the R12-A adjustment from observations alone; the board's long edges give the scale.

    The focus term has the published focal planes. Its strength and the sigma of each 1 / u are
    choices, not measurements: B depends on them, and the figures show by how much.
    """
    data = read_r12(folder)
    width, height = data.published.image_size
    pixel_mm = data.published.pixel_size_mm
    start = start_from_observations(
        data.observations, 50.0 / pixel_mm, ((width - 1) / 2.0, (height - 1) / 2.0)
    )
    options = replace(_CHOSEN, tilt=tilt, clustered=validate)
    if focus:
        term = FocusTerm(data.focal_planes, plane_sigma=plane_sigma)
        options = replace(options, focus=term, focus_strength=strength)
    found = adjust(
        data.observations,
        start,
        pixel_mm,
        (width, height),
        options,
        distances=board_distances(),
    )
    return cross_validate(found, options) if validate else found


def compare_detectors() -> list[Figure]:
    """Return the differences between calibrations from the corners of two detectors, in sigmas.

    The tilt is estimated, and sigmas are cross-validated. Both detectors use the same images, so
    the differences should be smaller than for independent recordings.
    """
    older = FOLDER.with_name("R12-A-older")
    if not older.is_dir():
        return []
    first, second = (
        adjust_r12(focus=True, folder=folder, tilt="free", validate=True)
        for folder in (FOLDER, older)
    )
    sigmas = first.covariance.sigmas(), second.covariance.sigmas()
    names = first.problem.names[: first.problem.n_camera]
    moved = first.state.as_vector() - second.state.as_vector()
    figures = []
    for name, difference in zip(names, moved, strict=False):
        if name in ("F", "c_x", "c_y", "alpha", "beta", *TILT_PARAMETERS):
            apart = abs(difference) / float(np.hypot(sigmas[0][name], sigmas[1][name]))
            label = f"R12-A, two detectors: {name}, difference in sigmas"
            figures.append(Figure(label, apart, "", "lower", 2.0))
    angles, errors = first.camera.tilt_angles_deg()
    assert errors is not None
    for axis, angle, error in zip("xy", angles.tolist(), errors.tolist(), strict=True):
        figures.append(Figure(f"R12-A: tilt about {axis}", angle, "deg", "lower", 0.1))
        figures.append(Figure(f"R12-A: sigma of the tilt about {axis}", error, "deg", "lower", 0.1))
    return figures


def hold_out_r12() -> list[Figure]:
    """Compare the estimated and the published F on boards that were not used for calibration.

    A third of the views, the nearest or the farthest, is left out. The others are adjusted with F
    free, and with F held at the published value. Then the views that were left out are adjusted
    with all intrinsics held. Their residuals, the mean spacing of the board's corners (10 mm) and
    its flatness show which camera is more accurate at distances that were not used.
    """
    data = read_r12()
    width, height = data.published.image_size
    pixel_mm = data.published.pixel_size_mm
    p = data.published.parameters
    thin = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    published = published_focal_px(data.published, thin)
    start = start_from_observations(
        data.observations, 50.0 / pixel_mm, ((width - 1) / 2.0, (height - 1) / 2.0)
    )
    term = FocusTerm(data.focal_planes, plane_sigma=0.05)
    free = replace(_CHOSEN, focus=term, focus_strength=R12_STRENGTH)
    whole = adjust(
        data.observations, start, pixel_mm, (width, height), free, distances=board_distances()
    )
    state, seen = whole.state, whole.problem.observations
    middle = state.points_world_mm.mean(axis=0)
    depths = state.rotations[:, 2] @ middle + state.translations_mm[:, 2]
    order = seen.view_ids[np.argsort(depths)]
    third = len(order) // 3
    figures = []
    for side, held in (("near", order[:third]), ("far", order[-third:])):
        out = np.isin(seen.view_ids[seen.view_indices], held)
        left_out, others = (restrict(seen, state.with_focus(None), keep) for keep in (out, ~out))
        for name, focal in (("own F", None), ("published F", published)):
            options = free if focal is None else replace(free, fixed={"F": focal})
            trained = adjust(
                *others, pixel_mm, (width, height), options, distances=board_distances()
            )
            names = trained.problem.names
            vector = trained.state.as_vector()
            fixed = dict(zip(names[: trained.problem.n_camera], vector, strict=False))
            strength = float(vector[names.index("g")])
            exact = replace(
                _CHOSEN,
                fixed=fixed,
                focus=FocusTerm(trained.state.focal_planes),
                focus_strength=strength,
            )
            judged = adjust(*left_out, pixel_mm, (width, height), exact)
            points, ids = judged.state.points_world_mm, judged.problem.observations.point_ids
            ends = points[neighbors(ids)]
            spacing = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
            _, flatness = judge_board(points, ids)
            label = f"R12-A, {len(held)} {side} boards left out, {name}"
            figures += [
                Figure(f"{label}: F", trained.camera.array.focal_px, "px", "lower", 12000.0),
                Figure(f"{label}: rms of their corners", judged.summary.rms_px, "px", "lower", 1.0),
                Figure(
                    f"{label}: mean spacing, |error|",
                    100.0 * abs(float(spacing.mean()) / SPACING_MM - 1.0),
                    "%",
                    "lower",
                    10.0,
                ),
                Figure(f"{label}: flatness rms", flatness, "mm", "lower", 2.0),
            ]
    return figures


def _r12_figures() -> list[Figure]:
    figures = []
    for name, focus in (("plain", False), ("focus term", True)):
        found = adjust_r12(focus=focus)
        spacing, flatness = judge_board(
            found.state.points_world_mm, found.problem.observations.point_ids
        )
        worst = max(abs(row.percent) for row in found.summary.residual_scale)
        limit = 1.0 if focus else 10.0
        p = found.camera.parameters
        figures += [
            Figure(f"R12-A, {name}: frames", found.summary.n_views, "1", "higher", 15),
            Figure(
                f"R12-A, {name}: rms, all corners",
                found.summary.rms_all_px,
                "px",
                "lower",
                0.66 if focus else 0.68,
            ),
            Figure(f"R12-A, {name}: scale by type and depth, worst", worst, "%", "lower", limit),
            Figure(f"R12-A, {name}: spacing rms", spacing, "mm", "lower", 0.05),
            Figure(f"R12-A, {name}: flatness rms", flatness, "mm", "lower", 0.21),
            Figure(f"R12-A, {name}: F", found.camera.array.focal_px, "px", "lower", 12000.0),
            Figure(f"R12-A, {name}: f_L", p.focal_length_mm, "mm", "lower", 60.0),
            Figure(f"R12-A, {name}: b_L0", p.lens_to_array_mm, "mm", "lower", 70.0),
            Figure(f"R12-A, {name}: B", p.array_to_sensor_mm, "mm", "lower", 0.5),
        ]
    choices: tuple[tuple[str, float | Prior, float], ...] = (
        ("g = 0.5, planes exact", 0.5, 0.0),
        ("g = 0.5 +- 0.25, planes exact", Prior(0.5, 0.25), 0.0),
        ("g = 0.5, planes +- 0.1", 0.5, 0.1),
    )
    for name, strength, sigma in choices:
        found = adjust_r12(focus=True, strength=strength, plane_sigma=sigma)
        worst = max(abs(row.percent) for row in found.summary.residual_scale)
        b = found.camera.parameters.array_to_sensor_mm
        figures += [
            Figure(f"R12-A, {name}: B", b, "mm", "lower", 0.5),
            Figure(f"R12-A, {name}: scale by type and depth, worst", worst, "%", "lower", 10.0),
        ]
    published = read_r12().published
    p = published.parameters
    thin = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    focal = published_focal_px(published, thin)
    moved = published_focal_px(published, thin - 0.001)
    return [
        *figures,
        *compare_detectors(),
        *hold_out_r12(),
        Figure("R12-A, published: F", focal, "px", "lower", 12000.0),
        Figure(
            "R12-A, published: F with its own ratio of pitches",
            published_focal_px(published, published_ratio()),
            "px",
            "lower",
            12000.0,
        ),
        Figure(
            "R12-A, published: F, 0.1 % less in the pupil ratio",
            100.0 * (moved / focal - 1.0),
            "%",
            "lower",
            10.0,
        ),
    ]


# Speed


def speed_scene(
    n_views: int, n_points: int, n_observations: int, *, everywhere: bool = False
) -> Scene:
    """Return a scene with about the given number of observations.

    Each point is measured in all micro images that see it, in as many views as are needed for this
    number. With `everywhere`, it is measured in all views that see it, in about two micro images.
    """
    rng = np.random.default_rng(0)
    camera = build_camera("r5-16mm").camera
    depth = (400.0, 1500.0)
    if everywhere:
        each = max(round(n_observations / (n_views * n_points)), 2)
        scene = make_scene(camera, depth, n_points, n_views, rng, images_per_pair=each)
    else:
        views = min(n_views, round(1.25 * n_observations / (8.0 * n_points)))
        scene = make_scene(camera, depth, n_points, n_views, rng, views_per_point=views)
    surplus = len(scene.observations) - n_observations
    if surplus <= 0:
        return scene
    # Remove whole (point, view) pairs at random until the number is reached.
    points, _, offsets = scene.observations.pairs
    keep_pair = rng.random(len(points)) > surplus / len(scene.observations)
    chosen = scene.observations.select(np.repeat(keep_pair, np.diff(offsets)))
    places = np.searchsorted(scene.observations.point_ids, chosen.point_ids)
    truth = replace(scene.truth, points_world_mm=scene.truth.points_world_mm[places])
    return Scene(camera, chosen, truth)


def iteration_s(scene: Scene, repeats: int = 5) -> float:
    """Return the shortest time of an iteration: normal matrices, elimination, solution, cost."""
    layout = Layout(Problem(scene.observations, scene.camera.pixel_size_mm, scene.truth))
    loss = Loss("huber", 1.345, NOISE_PX)
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        step = layout.linearize(scene.truth, loss).reduce(1e-6).solve(400)
        assert step is not None
        layout.compute_cost(scene.truth, loss)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


SIZES = (
    (30, 1500, 160_000, 0.1),
    (76, 3500, 409_000, 0.25),
    (76, 8000, 941_000, 0.6),
)


def _speed_figures() -> list[Figure]:
    figures = []
    for n_views, n_points, n_observations, limit in SIZES:
        for everywhere in (False, True):
            scene = speed_scene(n_views, n_points, n_observations, everywhere=everywhere)
            pairs = len(scene.observations.pairs[0])
            figures.append(
                Figure(
                    f"an iteration, {len(scene.observations)} observations, {n_views} views, "
                    f"{n_points} points, {pairs} times in a view",
                    iteration_s(scene),
                    "s",
                    "lower",
                    limit,
                    noisy=True,
                )
            )
    sizes, seconds = linearity()
    slope = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    figures.append(
        Figure(
            f"growth from {sizes[0]:.0f} to {sizes[-1]:.0f} observations, power",
            slope,
            "1",
            "lower",
            1.1,
            noisy=True,
        )
    )
    figures.append(Figure("peak memory, 941,000 observations", _peak_gb(), "GB", "lower", 1.0))
    return figures


def linearity() -> tuple[FloatArray, FloatArray]:
    """Return numbers of observations from 10 k to 3 M, and seconds per iteration, for 30 views."""
    found = []
    for n_points in (80, 250, 800, 2500, 8000, 28000):
        rng = np.random.default_rng(0)
        scene = make_scene(
            build_camera("r5-16mm").camera,
            (400.0, 1500.0),
            n_points,
            30,
            rng,
            views_per_point=15,
            images_per_pair=10,
        )
        found.append((len(scene.observations), iteration_s(scene, repeats=3)))
    table = np.array(found)
    return table[:, 0], table[:, 1]


def _peak_gb() -> float:
    """Return the peak memory of a process that reads and solves the largest problem."""
    scene = speed_scene(*SIZES[-1][:3], everywhere=True)
    o, truth = scene.observations, scene.truth
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.npz"
        np.savez(
            path,
            views=o.view_ids[o.view_indices],
            points=o.point_ids[o.point_indices],
            centers=o.centers_raw_px,
            measured=o.points_raw_px,
            types=o.lens_types,
            rotations=truth.rotations,
            translations=truth.translations_mm,
            world=truth.points_world_mm,
        )
        # VmHWM is the peak of this process alone; getrusage would include the forking process.
        code = (
            "import sys\n"
            "from benchmarks.bundle import solve_file\n"
            "solve_file(sys.argv[1])\n"
            "lines = open('/proc/self/status').read().splitlines()\n"
            "print(next(line for line in lines if line.startswith('VmHWM')).split()[1])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True
        )
    return int(done.stdout.split()[-1]) * 1024 / 1e9


def solve_file(path: str) -> None:
    """Solve a stored problem, from slightly wrong start values."""
    with np.load(path) as saved:
        observations = Observations.from_arrays(
            saved["views"],
            saved["points"],
            saved["centers"],
            saved["measured"],
            lens_types=saved["types"],
        )
        camera = build_camera("r5-16mm").camera
        rng = np.random.default_rng(5)
        points = saved["world"] * (1.0 + 1e-3 * rng.normal(size=saved["world"].shape))
        start = Reconstruction(
            camera.array, camera.distortion, saved["rotations"], saved["translations"], points
        )
    solve(
        Problem(observations, camera.pixel_size_mm, start),
        SolverOptions(loss="huber", noise=NOISE_PX, max_iterations=5),
    )


# Iterations


def sfm_start(scene: Scene, rng: np.random.Generator) -> tuple[Reconstruction, float]:
    """Return start values like those of structure from motion, and their unit in mm.

    Poses are off by 1 mrad and 2 mm, points by 1 % of their distance, F by 0.5 %, c by 5 px.
    Lengths are in an arbitrary unit.
    """
    truth, unit = scene.truth, 137.0
    poses = [
        RigidTransform(
            pose.step([*rng.normal(scale=1e-3, size=3), *rng.normal(scale=2.0, size=3)]).rotation,
            (pose.translation_mm + rng.normal(scale=2.0, size=3)) / unit,
        )
        for pose in truth.cam_from_world
    ]
    points = truth.points_world_mm * (
        1.0 + rng.normal(scale=0.01, size=(len(truth.points_world_mm), 1))
    )
    array = truth.array
    start = start_from_sfm(
        scene.observations,
        array.focal_px * 1.005,
        (array.principal_x_px + 5.0, array.principal_y_px - 5.0),
        poses,
        points / unit,
    )
    return start.state, unit


def _sfm_iterations(options: AdjustOptions) -> float:
    rng = np.random.default_rng(4)
    camera = build_camera("r5-16mm").camera
    exact = make_scene(camera, (400.0, 1500.0), 300, 30, rng)
    observations, _ = exact.noisy(NOISE_PX, rng, outliers=0.02)
    scene = Scene(camera, observations, exact.truth)
    start, _ = sfm_start(scene, rng)
    found = adjust(
        observations,
        start,
        camera.pixel_size_mm,
        camera.grid,
        options,
        distances=exact.distances(6, 0.05, rng),
    )
    return float(found.summary.iterations)


assert set(DEPTHS_MM) <= set(CAMERAS)
