"""Make the pictures of the documentation: `python docs/figures/make.py`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.spatial.transform import Rotation

from benchmarks import bundle, calibrate, depth, virtual
from benchmarks.spots import measure_spots
from benchmarks.straight_lines import make_chart
from lifcal.camera import NoDistortion
from lifcal.grid.fit import average_frames, fit_grid_to_frames
from lifcal.grid.picture import draw_grid_fit
from lifcal.imaging import preview
from lifcal.imaging.files import write_png
from lifcal.metric import read_cloud
from lifcal.simulate import (
    SCENES,
    PackedScene,
    Renderer,
    Simulation,
    SimulationOptions,
    build_camera,
    build_path,
    build_scene,
)
from lifcal.simulate.overview import display, draw_overview
from lifcal.virtual import FocusEngine

mpl.use("agg")

FOLDER = Path(__file__).parent


def make_overview() -> None:
    simulation = Simulation(SimulationOptions(camera="r5-16mm", scene="desk", frames=8))
    write_png(FOLDER / "overview.png", draw_overview(simulation, simulation.render_frame(1)))


def make_scenes() -> None:
    optics = build_camera("mini")
    panels = []
    for name in SCENES:
        scene = build_scene(name, 1)
        pose = build_path("winding", scene, 8, 1, optics.field_of_view_rad)[1]
        view = Renderer(optics, 16).render_pinhole(PackedScene(scene), pose.inverse(), 0.75)
        panels.append(preview.panel(preview.fit(display(view.color), 400, 300), name))
    write_png(FOLDER / "scenes.png", preview.tile([panels[:3], panels[3:]]))


def make_grid() -> None:
    simulation = Simulation(SimulationOptions(camera="r5-16mm", scene="desk", frames=8))
    grid = simulation.optics.camera.grid
    panels = []
    for caption, image in (
        ("white image", simulation.render_white()),
        ("raw frame", simulation.render_frame(1).raw),
    ):
        x, y, size, zoom = 990, 880, 110, 5
        crop = np.asarray(image[y : y + size, x : x + size], np.uint8)
        picture = preview.fit(crop, size * zoom, size * zoom, smooth=False)
        for kind, color in enumerate([(230, 60, 50), (60, 190, 75), (70, 110, 240)]):
            centers = grid.centers_raw_px[grid.lens_types == kind]
            places = (centers - [x, y] + 0.5) * zoom - 0.5
            near = ((places > -60) & (places < size * zoom + 60)).all(axis=1)
            preview.draw_rings(picture, places[near], color, round(grid.radius_px * zoom))
        panels.append(preview.panel(picture, caption + ", circles: grid, colored by lens type"))
    write_png(FOLDER / "grid.png", preview.tile([panels]))


def make_focus_shift() -> None:
    import matplotlib.pyplot as plt

    optics = build_camera("r5-16mm")
    camera, pixel = optics.camera, optics.camera.pixel_size_mm
    spots = measure_spots(
        optics,
        np.array([2.4, 2.7, 3.1, 3.6, 4.2, 5.0]),
        np.random.default_rng(0),
        balls_per_depth=12,
        reach=0.85,
    )
    offset = np.hypot(spots.offset_px[:, 0], spots.offset_px[:, 1])
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    curve = np.linspace(0.0, 0.86 * camera.grid.radius_px, 200)
    plane = float(optics.focal_planes_v[1])
    of_type = spots.lens_types == 1
    for v, color in zip(
        (2.4, 2.7, 3.1, 3.6, 4.2, 5.0), plt.cm.turbo(np.linspace(0.05, 0.95, 6)), strict=True
    ):
        at_depth = of_type & np.isclose(spots.defocus, 1 / plane - 1 / v)
        predicted = optics.apertures.compute_spot(curve * pixel, plane, v)[1] / pixel
        left.plot(curve, predicted, color=color, lw=1.2)
        left.plot(
            offset[at_depth], spots.outward_px()[at_depth], ".", color=color, label=f"v = {v}"
        )
    left.set_title(f"lens type in focus at v = {plane}", fontsize=10)
    left.set_xlabel("distance from the micro-image center / px")
    left.set_ylabel("outward shift of the centroid / px")
    left.legend(fontsize=8, title="dots: rendered\nlines: overlap of discs", title_fontsize=8)
    for kind, color in enumerate(("tab:red", "tab:green", "tab:blue")):
        rows = spots.lens_types == kind
        v = optics.focal_planes_v[kind]
        right.plot(
            spots.predicted_px[rows],
            spots.outward_px()[rows],
            ".",
            color=color,
            label=f"type {kind}, in focus at v = {v}",
        )
    limit = 1.05 * float(np.abs(spots.predicted_px).max())
    right.plot([-limit, limit], [-limit, limit], "k-", lw=0.8)
    right.set_xlabel("predicted shift / px")
    right.set_ylabel("rendered shift / px")
    right.legend(fontsize=8)
    right.set_title("all types, all depths", fontsize=10)
    figure.savefig(FOLDER / "focus-shift.png", dpi=110)


def make_grid_fit() -> None:
    """A grid found in six frames of a scene, with no white image."""
    simulation = Simulation(
        SimulationOptions(camera="r5-16mm", scene="room", frames=6, rays_per_pixel=4)
    )
    average = average_frames([simulation.render_frame(index).raw for index in range(6)])
    fit = fit_grid_to_frames(average)
    write_png(FOLDER / "grid-fit.png", draw_grid_fit(fit, average.mean))


def make_virtual_depth() -> None:
    """A raw frame, its totally focused image, virtual depth and its standard deviation."""
    recording = virtual.record(virtual.CAMERA, "desk", 1, (10,))
    camera = recording.camera
    frame = recording.raw(0)
    result = FocusEngine(camera.grid).run(frame)
    low, high = np.nanquantile(result.depth.u, [0.005, 0.995])
    sigma = 100.0 * result.depth.sigma / result.depth.u
    pictures = [
        (f"raw, {frame.image_size[0]} x {frame.image_size[1]} px", np.clip(frame.gray, 0.0, 1.0)),
        ("totally focused", np.clip(result.focused.image, 0.0, 1.0)),
    ]
    panels = [
        preview.panel(preview.fit(np.asarray(255.0 * image, np.uint8), 460, 460), caption)
        for caption, image in pictures
    ]
    for caption, image, ends in (
        (f"virtual depth, {low:.2f} (blue) to {high:.2f} (red)", result.depth.u, (low, high)),
        ("its sigma, 0 (blue) to 1 % (red)", sigma, (0.0, 1.0)),
    ):
        colors = preview.colorize(image, *ends)
        panels.append(preview.panel(preview.fit(colors, 460, 460), caption))
    write_png(FOLDER / "virtual-depth.png", preview.tile([panels]))


def make_straight_lines() -> None:
    """Images and depth with a strong distortion left in, and corrected."""
    wall = Simulation(SimulationOptions(depth.CAMERA, "wall", frames=1)).scene
    board = depth.Recording("wall", 1, (0,), depth.STRONG, make_chart(wall).scene)
    desk = depth.Recording("desk", 1, (10,), depth.STRONG)
    rows = []
    for name, distortion in (
        ("distortion left in", NoDistortion()),
        ("corrected", board.camera.distortion),
    ):
        panels = []
        for recording, title in ((board, name), (desk, "")):
            camera = replace(recording.camera, distortion=distortion)
            found = recording.engine(camera).run(recording.frames[0].raw)
            image = np.asarray(255.0 * np.clip(found.image, 0.0, 1.0), np.uint8)
            panels.append(preview.panel(preview.fit(image, 420, 420), title))
        low, high = np.nanquantile(found.depth_mm, [0.01, 0.99])
        colors = preview.colorize_depth(found.depth_mm, low, high)
        panels.append(preview.panel(preview.fit(colors, 420, 420), "depth"))
        rows.append(panels)
    rows[1].append(
        preview.panel(preview.color_bar(low, high, "mm", 100, 420, near_is_low=True), "")
    )
    write_png(FOLDER / "straight-lines.png", preview.tile(rows))


def make_raw_to_depth() -> None:
    """A raw, and image and depth by the camera that was calibrated on another recording."""
    camera = depth.calibrate_other(Path(os.environ["LIFCAL_BENCHMARK_DATA"]))
    recording = depth.Recording("desk", 1, (10,))
    raw = recording.frames[0].raw
    found = recording.engine(camera).run(raw)
    low, high = np.nanquantile(found.depth_mm, [0.01, 0.99])
    pictures = (
        ("raw, a part of it", display(raw[600:780, 480:660] / np.float32(255.0))),
        ("image", display(found.image)),
        ("depth", preview.colorize_depth(found.depth_mm, low, high)),
    )
    panels = [
        preview.panel(preview.fit(image, 420, 420, smooth=False), title)
        for title, image in pictures
    ]
    panels.append(preview.panel(preview.color_bar(low, high, "mm", 90, 420, near_is_low=True), ""))
    write_png(FOLDER / "raw-to-depth.png", preview.tile([panels]))


def make_measurement_bias() -> None:
    """Draw the mean errors of measured positions by lens type and depth.

    The calibrations are those that `python -m benchmarks calibrate` left in LIFCAL_BENCHMARK_DATA.
    """
    import matplotlib.pyplot as plt

    data = Path(os.environ["LIFCAL_BENCHMARK_DATA"])
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    quarters = np.arange(1, 5)
    for axis, title, focus in (
        (axes[0], "without the focus term", False),
        (axes[1], "with it", True),
    ):
        for case in calibrate.MAIN:
            folder = data / f"{case.name}-calibration"
            _, bias = calibrate.measure_against_truth(folder, data / case.recording, focus=focus)
            for kind, color in enumerate(("#d1495b", "#2e933c", "#3066be")):
                style = "-" if case.scene == "desk" else "--"
                axis.plot(quarters, bias[kind], style, color=color, marker="o", ms=3, lw=1)
        axis.axhspan(-0.02, 0.02, color="#dddddd", zorder=0)
        axis.set_title(title)
        axis.set_xticks(quarters, ["nearest", "second", "third", "farthest"])
        axis.set_xlabel("quarter of the depths")
    axes[0].set_ylabel("mean outward error, px")
    for kind, color in enumerate(("#d1495b", "#2e933c", "#3066be")):
        axes[1].plot([], [], color=color, label=f"lens type {kind}")
    axes[1].plot([], [], "k-", lw=1, label="desk")
    axes[1].plot([], [], "k--", lw=1, label="room")
    axes[1].legend(fontsize=8, ncols=2)
    figure.savefig(FOLDER / "measurement-bias.png", dpi=110)
    plt.close(figure)


def make_virtual_depth_phase() -> None:
    """Median error of virtual depth by sub-pixel phase, and by virtual depth."""
    import matplotlib.pyplot as plt

    recordings = [
        virtual.record(virtual.CAMERA, scene, seed)
        for scene in virtual.SCENES
        for seed in virtual.SEEDS
    ]
    results = virtual.measure_scenes(recordings, recordings[0].simulation.render_white())
    figure, axes = plt.subplots(1, 3, figsize=(14.0, 4.2), layout="constrained", sharey=True)
    for scene, color in zip(virtual.SCENES, ("tab:blue", "tab:red"), strict=True):
        frames = [e.depth for pair in results.frames for e in pair if e.name.startswith(scene)]
        bias = virtual.measure_bias(frames, results.fit.grid)
        for (name, found), line in zip(bias.by_place.items(), ("-", "--"), strict=True):
            label = f"{scene}, {name}: {100.0 * found.first_harmonic:.3f} %"
            axes[0].plot(found.middles, 100.0 * found.medians, line, color=color, label=label)
        ripple = bias.by_disparity["1.5 pitches"]
        label = f"{scene}: {100.0 * ripple.amplitude:.3f} %"
        axes[1].plot(
            ripple.phases, 100.0 * ripple.errors, ".", ms=3, alpha=0.5, color=color, label=label
        )
        axes[2].plot(bias.by_u.middles, 100.0 * bias.by_u.medians, ".-", color=color, label=scene)
    for axis in axes:
        axis.axhline(0.0, color="k", lw=0.6)
        axis.legend(fontsize=8)
    axes[0].set_ylim(-0.6, 0.6)
    axes[0].set_ylabel("median error of u / %")
    axes[0].set_xlabel("phase in the nearest micro image / px")
    axes[1].set_xlabel("phase of the disparity over 1.5 pitches / px")
    axes[2].set_xlabel("virtual depth u")
    axes[0].set_title("by place in a pixel, with amplitude", fontsize=10)
    axes[1].set_title("by disparity, with amplitude", fontsize=10)
    axes[2].set_title("by virtual depth", fontsize=10)
    figure.savefig(FOLDER / "virtual-depth-phase.png", dpi=110)


def make_recording_motion() -> None:
    """Draw how to move, and how not to, seen from above."""
    import matplotlib.pyplot as plt

    angles = np.linspace(-0.5, 0.5, 7)
    arc = [(1.0 * np.sin(a), 1.0 - 1.0 * np.cos(a), a) for a in angles]
    near_and_far = [(x, y + 0.12 * np.cos(9.0 * a), a) for x, y, a in arc]
    panels = (
        ("good: around, nearer and farther", near_and_far, True),
        ("not enough: turning on the spot", [(0.0, 0.0, a) for a in angles[1::2]], True),
        ("not enough: along the optical axis", [(0.0, 0.11 * i, 0.0) for i in range(-1, 3)], True),
        ("not enough: a flat wall alone", arc[1::2], False),
    )
    things = ((-0.3, 0.9, 0.16), (0.05, 0.75, 0.1), (0.25, 1.15, 0.2), (-0.1, 1.3, 0.14))
    figure, axes = plt.subplots(1, 4, figsize=(12, 4), layout="constrained")
    for axis, (title, cameras, deep) in zip(axes, panels, strict=True):
        if deep:
            for x, y, size in things:
                axis.add_patch(plt.Rectangle((x, y), size, size, color="#8fb8d8"))
        else:
            axis.plot([-0.6, 0.6], [1.0, 1.0], color="#8fb8d8", linewidth=6)
        axis.plot([c[0] for c in cameras], [c[1] for c in cameras], "--", color="#999999")
        for x, y, angle in cameras:
            forward = np.array([-np.sin(angle), np.cos(angle)])
            aside = np.array([forward[1], -forward[0]])
            place = np.array([x, y])
            corners = [place, place + 0.13 * forward + 0.06 * aside]
            corners.append(place + 0.13 * forward - 0.06 * aside)
            good = title.startswith("good")
            axis.add_patch(plt.Polygon(corners, color="#1a7f5a" if good else "#c22f21"))
        axis.set(xlim=(-0.75, 0.75), ylim=(-0.35, 1.55), aspect="equal", xticks=[], yticks=[])
        axis.set_title(title, fontsize=10)
    figure.savefig(FOLDER / "recording-motion.png", dpi=110)
    plt.close(figure)


def make_tutorial_cloud(folder: Path) -> None:
    """Draw the cloud of the tutorial, which was run in `folder`, from two sides."""
    import matplotlib.pyplot as plt

    cloud = read_cloud(folder / "rgbd" / "fused.ply")
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    sides = (("from the first camera", 0.0, 0.0), ("from the right and above", -35.0, -25.0))
    for axis, (title, turn, pitch) in zip(axes, sides, strict=True):
        middle = np.median(cloud.points_mm, axis=0)
        rotation = Rotation.from_euler("yx", [turn, pitch], degrees=True)
        points = rotation.apply(cloud.points_mm - middle)
        order = np.argsort(-points[:, 2])  # the nearest last
        axis.scatter(*points[order, :2].T, s=2.5, c=cloud.colors[order] / 255.0, linewidths=0)
        axis.set(aspect="equal", title=title, xlabel="mm", ylabel="mm")
        low, high = np.percentile(points[:, :2], [0.5, 99.5], axis=0)
        axis.set_xlim(low[0] - 20.0, high[0] + 20.0)
        axis.set_ylim(high[1] + 20.0, low[1] - 20.0)
    figure.savefig(FOLDER / "tutorial-cloud.png", dpi=80)
    plt.close(figure)


def make_bundle_speed() -> None:
    """Time of an iteration by the number of observations."""
    import matplotlib.pyplot as plt

    sizes, seconds = bundle.linearity()
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    axis.loglog(sizes, seconds, "o-", label="an iteration, two cores")
    axis.loglog(sizes, seconds[-1] * sizes / sizes[-1], "k--", lw=0.8, label="linear")
    axis.set_xlabel("observations (30 views, each point in 15)")
    axis.set_ylabel("seconds")
    axis.grid(visible=True, which="both", lw=0.3)
    axis.legend()
    figure.savefig(FOLDER / "bundle-speed.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    make_overview()
    make_scenes()
    make_grid()
    make_grid_fit()
    make_focus_shift()
    make_virtual_depth()
    make_virtual_depth_phase()
    make_straight_lines()
    make_bundle_speed()
    make_recording_motion()
    if "LIFCAL_TUTORIAL" in os.environ:  # the folder in which its commands were run
        make_tutorial_cloud(Path(os.environ["LIFCAL_TUTORIAL"]))
    if "LIFCAL_BENCHMARK_DATA" in os.environ:
        make_raw_to_depth()
        make_measurement_bias()
