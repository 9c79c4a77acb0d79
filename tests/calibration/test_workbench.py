"""The workbench's steps: from memory they give what the command gives, and in their order only."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.calibration import (
    CalibrateOptions,
    View,
    Workbench,
    calibrate_bench,
    find_poses,
    focus_in_memory,
)
from lifcal.camera import read_grid
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError, InputError
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.imaging.frames import open_frames
from lifcal.listener import Listener
from lifcal.measure import MeasureOptions
from lifcal.pipeline.calibration import calibrate_frames
from lifcal.scale import ScaleOptions
from lifcal.sfm import ColmapEngine, SfmModel
from lifcal.simulate import Simulation, SimulationOptions, build_camera, write_sequence
from lifcal.virtual import DepthOptions, FocusEngine, LensOptics


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workbench") / "recording"
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=10, rays_per_pixel=8, seed=4)
    )
    write_sequence(folder, simulation)
    return folder


def test_from_memory_as_from_disk(recording, tmp_path):
    """The same frames, grid and range, without a folder: the same camera, to the bit."""
    raws = open_frames([str(recording / "raw")])
    white = recording / "white.png"
    options = CalibrateOptions(
        17.6, scale=ScaleOptions(marker_size_mm=40.0), measure=MeasureOptions(points=120)
    )
    sources = {"grid": None, "white": white, "xml": None}
    out = tmp_path / "out"
    from_disk = calibrate_frames(raws, out, options, sources).adjustment

    grid = read_grid(out / "grid.json")
    flat_field = vignetting_from_white(open_frames(white).read(0))
    ends = from_disk_range(out)
    engine = FocusEngine(grid, flat_field, DepthOptions(depth_range=ends))
    bench = Workbench(grid, engine.optics, engine.options.scale, options)
    for view in focus_in_memory(engine, [raws.read(i) for i in range(len(raws))]):
        bench.add_view(view)
    model = find_poses(bench.views, bench.image_scale, ColmapEngine(options.sfm))
    bench.start(model)
    bench.choose_points(Listener())
    chosen = bench.windows.images
    in_memory = calibrate_bench(bench)
    np.testing.assert_array_equal(in_memory.state.as_vector(), from_disk.state.as_vector())
    np.testing.assert_array_equal(in_memory.state.translations_mm, from_disk.state.translations_mm)

    # Steps that are repeated begin where they began before, and notice nothing twice.
    noticed = Finding.of("backdrop-resting", "some of the image rests", share=0.1)
    for _ in range(2):
        bench.start(replace(model, findings=(noticed,)))
        bench.choose_points(Listener())
    assert [each.code for each in bench.findings].count("backdrop-resting") == 1
    np.testing.assert_array_equal(bench.windows.images.places_px, chosen.places_px)
    assert bench.array_to_sensor_px is None


def from_disk_range(out):
    import json

    low, high = json.loads((out / "focus.json").read_text())["depth_range"]
    return low, high


def make_bench():
    grid = build_camera("mini").camera.grid
    return Workbench(grid, LensOptics.from_grid(grid), 0.5, CalibrateOptions(17.6))


def make_view(index):
    def nothing():
        raise AssertionError("nothing is read before it is needed")

    return View("name", index, 0.0, nothing, nothing, nothing, nothing)


def test_steps_out_of_order_are_named():
    bench = make_bench()
    with pytest.raises(InputError, match="call `start` of the workbench before"):
        bench.choose_points(Listener())
    with pytest.raises(InputError, match="call `choose_points` of the workbench before"):
        bench.measure()
    none = np.zeros(0, np.int64)
    model = SfmModel(
        900.0,
        np.zeros(2),
        build_camera("mini").camera.distortion,
        (None,),
        np.zeros((0, 3)),
        none,
        none,
        np.zeros((0, 2)),
        0.0,
    )
    with pytest.raises(InputError, match="the model has 1 images, 0 views were added"):
        bench.start(model)
    bench.add_view(make_view(3))
    with pytest.raises(InputError, match="index 3, needs more than 3"):
        bench.add_view(make_view(3))
    with pytest.raises(EstimationError, match="gave none of 1 images a pose"):
        bench.start(model)
    with pytest.raises(EstimationError, match="there are no frames"):
        focus_in_memory(FocusEngine(bench.grid), [])
