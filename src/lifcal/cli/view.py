"""`lifcal view`: look at depth, images and clouds in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._browser import open_page
from lifcal.cli._console import RichListener, output, verb
from lifcal.sources import check_folder


@verb()
def view(
    folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder of lifcal depth, or of lifcal calibrate.")
    ],
    frames: Annotated[
        int,
        typer.Option(min=1, help="Largest number of frames to show, evenly over the recording."),
    ] = 12,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and open nothing.")
    ] = False,
) -> None:
    """Look at image, depth, sigma, clouds and mesh, and measure: writes OUT/view.html.

    One page that needs nothing else: it can be sent to someone. For a calibration, its report.
    """
    check_folder(folder, "lifcal depth or lifcal calibrate")
    page = folder / "report.html"
    if not (folder / "intrinsics.json").is_file() and page.is_file():
        _show(page, opens, as_json)
        return
    from lifcal.arrays import spread_choice
    from lifcal.export.rgbd_folder import open_rgbd
    from lifcal.metric.ply import read_cloud, read_mesh
    from lifcal.report.depth_page import DepthView, SceneView, write_depth_page

    recording = open_rgbd(folder)
    chosen = spread_choice(len(recording), frames)
    views = []
    with RichListener().steps("reading frames", len(chosen)) as step:
        for index in chosen:
            image, depth = recording.read_image(index), recording.read_depth(index)
            sigma = recording.read_sigma(index)
            views.append(DepthView(recording.names[index], image, depth, sigma))
            step("")
    scenes = []
    if (folder / "fused.ply").is_file():
        cloud = read_cloud(folder / "fused.ply")
        scenes.append(SceneView("fused cloud", cloud.points_mm, cloud.colors))
    if (folder / "mesh.ply").is_file():
        cloud, triangles = read_mesh(folder / "mesh.ply")
        scenes.append(SceneView("mesh", cloud.points_mm, cloud.colors, triangles))
    page = folder / "view.html"
    title = f"{folder.resolve().name}: depth"
    write_depth_page(page, views, recording.intrinsics, title, scenes)
    _show(page, opens, as_json)


def _show(page: Path, opens: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"page": str(page)}))
        return
    output().print(f"Look at {page}", soft_wrap=True, highlight=False)
    if opens:
        open_page(page.resolve().as_uri())
