"""Calibrate from arrays in memory, with the steps of the workbench in an order of our own.

What `lifcal calibrate` does in one command, spelled out: raw arrays in, a camera out, no folder in
between. Run it as it is: `python examples/own_order.py`.
"""

from lifcal.calibration import CalibrateOptions, Workbench, find_poses, focus_in_memory
from lifcal.grid import fit_grid_to_white, vignetting_from_white
from lifcal.imaging import make_frame
from lifcal.listener import Listener
from lifcal.measure import MeasureOptions
from lifcal.scale import ScaleOptions
from lifcal.sfm import ColmapEngine
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.virtual import FocusEngine, estimate_focal_planes


def main() -> None:
    """Calibrate a simulated camera, and say how far f_L is off."""
    simulation = Simulation(SimulationOptions(camera="mini", frames=12, rays_per_pixel=8))
    truth = simulation.optics.camera
    frames = [
        make_frame(simulation.render_frame(i).raw, f"frame{i}", f"frame{i}") for i in range(12)
    ]
    white = make_frame(simulation.render_white(), "white", "white")

    grid = fit_grid_to_white(white).grid
    flat_field = vignetting_from_white(white)
    grid = estimate_focal_planes(frames[:5], grid, flat_field).grid
    engine = FocusEngine(grid, flat_field)
    options = CalibrateOptions(
        1000.0 * truth.pixel_size_mm,
        scale=ScaleOptions(marker_size_mm=40.0),
        measure=MeasureOptions(points=300),
    )
    bench = Workbench(grid, engine.optics, engine.options.scale, options)
    for view in focus_in_memory(engine, frames):
        bench.add_view(view)
    bench.start(find_poses(bench.views, bench.image_scale, ColmapEngine()))
    bench.choose_points(Listener())
    bench.read_pixels(Listener())
    found = bench.adjust(bench.measure())
    for _ in range(2):  # from better start values, twice more
        bench.accept(found)
        found = bench.adjust(bench.measure())

    f_l, true = found.camera.parameters.focal_length_mm, truth.parameters.focal_length_mm
    print(f"f_L = {f_l:.3f} +- {found.covariance.sigmas()['f_L']:.3f} mm, truth {true:.3f} mm")


if __name__ == "__main__":
    main()
