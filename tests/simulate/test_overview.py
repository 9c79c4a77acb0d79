"""The picture of a simulated frame, with what a calibration found beside the truth."""

import numpy as np

from lifcal.simulate import Simulation, SimulationOptions
from lifcal.simulate.overview import Estimate, draw_overview


def test_an_estimate_stands_below_the_truth(rng):
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=1, rays_per_pixel=2)
    )
    frame = simulation.render_frame(0)
    plain = draw_overview(simulation, frame)
    depth = frame.view.depth_mm.copy()
    focused = rng.integers(0, 255, depth.shape).astype(np.uint8)
    rows = [("f_L mm", "16.7", "16.8", "-0.1 %", "-0.2")] * 3
    both = draw_overview(simulation, frame, Estimate(focused, depth, rows))
    np.testing.assert_array_equal(both[: len(plain)], plain)
    assert both.shape[0] > plain.shape[0] + 400
    # a perfect estimate has the picture of the truth: the same colors on the same scale
    height = 420
    truth = both[len(plain) - 12 - height : len(plain) - 12, 590:1130]
    found = both[len(plain) + 30 : len(plain) + 30 + height, 590:1130]
    np.testing.assert_array_equal(found, truth)
