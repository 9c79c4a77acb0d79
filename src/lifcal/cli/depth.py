"""`lifcal depth`: metric depth, images and clouds of raws of a calibrated camera."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._choice import Ends, Every, Exclude
from lifcal.cli._console import EXIT_ERROR, RichListener, output, say_error, say_note, verb
from lifcal.cli._executor import Jobs, Scheduler
from lifcal.cli._options import AsJson, Bayer, OutputFolder
from lifcal.sources import check_files, list_files

if TYPE_CHECKING:
    from lifcal.pipeline.rgbd import RgbdRun

_IMAGES = "Images"
_FILTER = "What is known"
_FRAMES = "Times"
_FUSED = "One cloud of all"


@verb("the same command goes on from here")
def depth(
    raws: Annotated[
        list[str],
        typer.Argument(metavar="RAWS...", help="Raw frames: files, folders, globs or videos."),
    ],
    camera: Annotated[
        Path, typer.Option(help="camera.json, or the folder that lifcal calibrate wrote.")
    ],
    out: OutputFolder,
    white: Annotated[
        Path | None,
        typer.Option(help="White image, to even out the brightness inside micro images."),
    ] = None,
    bayer: Bayer = None,
    scale: Annotated[
        float,
        typer.Option(help="Size of the images relative to the raws.", rich_help_panel=_IMAGES),
    ] = 0.5,
    plane: Annotated[
        str,
        typer.Option(help="Image plane: pinhole (at the sensor) or 2B.", rich_help_panel=_IMAGES),
    ] = "pinhole",
    crop: Annotated[
        tuple[int, int, int, int] | None,
        typer.Option(
            metavar="X Y W H",
            help="Keep this part of the images only: left, top, width and height in px.",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    clouds: Annotated[
        bool,
        typer.Option(help="Write a point cloud (PLY) for each frame.", rich_help_panel=_IMAGES),
    ] = True,
    range_mm: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="NEAR FAR",
            help="Range of depths to search, in mm. Without it, some of the raws show it.",
            rich_help_panel=_FILTER,
        ),
    ] = None,
    most_sigma: Annotated[
        float,
        typer.Option(
            help="Largest standard deviation that is kept, as a part of the depth.",
            rich_help_panel=_FILTER,
        ),
    ] = 0.1,
    edge_px: Annotated[
        int,
        typer.Option(
            help="Number of pixels to leave out beside the edges of things.",
            rich_help_panel=_FILTER,
        ),
    ] = 1,
    least_patch_px: Annotated[
        int,
        typer.Option(help="Leave out connected patches of fewer pixels.", rich_help_panel=_FILTER),
    ] = 200,
    keep_hidden: Annotated[
        bool,
        typer.Option(
            help="Keep depths that are hidden from some of the micro lenses.",
            rich_help_panel=_FILTER,
        ),
    ] = True,
    with_calibration_sigma: Annotated[
        bool,
        typer.Option(
            "--with-calibration-sigma",
            help="Add the uncertainty of the camera to the standard deviation of each depth.",
            rich_help_panel=_FILTER,
        ),
    ] = False,
    every: Every = None,
    frames: Ends = None,
    exclude: Exclude = None,
    timestamps: Annotated[
        Path | None,
        typer.Option(
            help="File with the time of every raw, one a line. Without it, the index.",
            rich_help_panel=_FRAMES,
        ),
    ] = None,
    fps: Annotated[
        int | None,
        typer.Option(
            help="Frames a second for camera.yaml. Without it, as --timestamps tells, or 30.",
            rich_help_panel=_FRAMES,
        ),
    ] = None,
    poses: Annotated[
        Path | None,
        typer.Option(
            help="Poses of the frames (TUM trajectory, camera to world, in metres): write "
            "fused.ply.",
            rich_help_panel=_FUSED,
        ),
    ] = None,
    voxel_mm: Annotated[
        float | None,
        typer.Option(help="Size of the cells of fused.ply, in mm.", rich_help_panel=_FUSED),
    ] = None,
    mesh: Annotated[
        bool,
        typer.Option(
            "--mesh",
            help="Write a mesh of all frames (mesh.ply) too; needs Open3D.",
            rich_help_panel=_FUSED,
        ),
    ] = False,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Make metric depth, focused pinhole images and clouds of raws of a calibrated camera.

    The folder is an RGB-D recording in the TUM layout, with camera.yaml for ORB-SLAM3 and
    intrinsics.json for Open3D. Frames that cannot be used are named, the others are done. Run the
    same command again to continue an interrupted one.
    """
    # Before anything heavy is imported, so that a slip of the hand is told at once.
    list_files(raws)
    check_files(camera, white, timestamps, poses)
    from lifcal.geometry import read_timestamps
    from lifcal.imaging.frames import open_frames
    from lifcal.metric import MetricOptions
    from lifcal.pipeline.choice import FrameChoice
    from lifcal.pipeline.executors import open_executor
    from lifcal.pipeline.rgbd import RgbdOptions, make_rgbd

    metric = MetricOptions(
        scale=scale,
        plane=plane,
        range_mm=range_mm,
        most_sigma=most_sigma,
        edge_px=edge_px,
        least_patch_px=least_patch_px,
        keep_hidden=keep_hidden,
        calibration_sigma=with_calibration_sigma,
    )
    options = RgbdOptions(
        crop=crop,
        clouds=clouds,
        timestamps=None if timestamps is None else read_timestamps(timestamps),
        fps=fps,
        poses=poses,
        voxel_mm=voxel_mm,
        mesh=mesh,
    )
    choice = FrameChoice(every, frames, tuple(exclude or ()))
    opened = open_frames(raws, bayer=bayer, white=white)
    indices = choice.list_indices(opened.names)
    with open_executor(jobs, scheduler) as executor:
        run = make_rgbd(
            opened, out, camera, white, metric, options, RichListener(), indices, executor
        )
    if as_json:
        print(json.dumps(run.store.as_dict(), indent=2))
    elif run.done:
        _print_summary(run)
    if run.usable.problems:
        if len(indices) > 1:
            say_error(f"{len(run.usable.problems)} of {len(indices)} frames could not be done")
        raise SystemExit(EXIT_ERROR)


def _print_summary(run: RgbdRun) -> None:
    from statistics import median

    from lifcal.camera.parameters import format_value
    from lifcal.export.rgbd import read_orbslam_depth

    store, done = run.store, run.done
    entries = [store.entries[name] for name in done]
    known = median(entry.known_share for entry in entries)
    depths = [entry.median_depth_mm for entry in entries if entry.median_depth_mm]
    sigmas = [entry.median_sigma_mm for entry in entries if entry.median_sigma_mm]
    count = f"{len(done)} frame{'s' if len(done) > 1 else ''}"
    was = f" ({run.kept} of them before)" if run.kept else ""
    if len(store.entries) > len(done):
        was += f", {len(store.entries)} in the folder,"
    k = run.setup.intrinsics
    metric = all(finding.code != "no-scale" for finding in run.setup.findings)
    depth = format_value(median(depths or [0.0]), median(sigmas or [0.0]))
    output().print(
        f"{store.folder}: {count}{was} of {k['width']} x {k['height']} px, depth {depth} "
        f"{'mm' if metric else '(no scale)'} in the median, known in {100 * known:.0f} % of the "
        "pixels",
        soft_wrap=True,
    )
    if run.fused:
        output().print(f"fused.ply: {run.fused} points of all frames with a pose", soft_wrap=True)
    if not metric:
        return
    factor, sigma_factor = run.setup.depth_factor, run.setup.sigma_factor
    told = read_orbslam_depth(store.folder / "camera.yaml", factor)
    output().print(
        f"depth/*.png: {factor} units a metre ({1000.0 / factor:g} mm each), depth_sigma/*.png: "
        f"{sigma_factor} units a metre; 0 is unknown\n"
        f"camera.yaml: RGBD.DepthMapFactor {told.factor:g}, Stereo.b {told.baseline_m:.4g} m; "
        f"depths up to {told.close_m:.3g} m are close for ORB-SLAM3 (Stereo.ThDepth times b)",
        soft_wrap=True,
    )
    if depths and median(depths) > 1000.0 * told.close_m:
        say_note(
            f"most depths are beyond {told.close_m:.3g} m, which ORB-SLAM3 calls far: it needs "
            "several views of such points. Raise Stereo.ThDepth of camera.yaml if it loses track"
        )
