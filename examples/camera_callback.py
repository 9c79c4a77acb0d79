"""Calibrate a camera from the callback of its driver, frame by frame.

The driver of a camera calls a function with every frame. Here a simulated camera takes the
driver's place, so that the script runs as it is: `python examples/camera_callback.py`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal import OnlineCalibrator
from lifcal.calibration import CalibrateOptions, OnlineOptions
from lifcal.grid import vignetting_from_white
from lifcal.imaging import make_frame
from lifcal.measure import MeasureOptions
from lifcal.scale import ScaleOptions
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.virtual import FocusEngine

FRAMES = 7
incoming: queue.Queue[tuple[npt.NDArray[Any], float] | None] = queue.Queue(maxsize=4)


def on_frame(pixels: npt.NDArray[Any], seconds: float) -> None:
    """Be called by the driver: copy the pixels, and return at once.

    A driver uses its buffer again, so the copy is needed. If the queue is full, the frame is
    dropped: the next one is as good.
    """
    with contextlib.suppress(queue.Full):
        incoming.put((np.array(pixels), seconds), timeout=60.0)


def main() -> None:
    """Calibrate until the frames end, and say what is known."""
    simulation = Simulation(SimulationOptions(camera="mini", frames=FRAMES, rays_per_pixel=4))
    truth = simulation.optics.camera
    white = make_frame(simulation.render_white(), "white", "white")
    options = CalibrateOptions(
        1000.0 * truth.pixel_size_mm,
        scale=ScaleOptions(marker_size_mm=40.0),
        measure=MeasureOptions(points=80),
    )
    # The grid of your camera comes from `lifcal.find_grid` or a grid.json; here it is known.
    engine = FocusEngine(truth.grid, vignetting_from_white(white))
    calibrator = OnlineCalibrator(engine, options, OnlineOptions(points=80, lag=1))

    def drive() -> None:
        """Play the driver of the camera."""
        for index in range(FRAMES):
            on_frame(simulation.render_frame(index).raw, index / 10.0)
        incoming.put(None)

    threading.Thread(target=drive).start()
    while (frame := incoming.get()) is not None:
        update = calibrator.add_frame(*frame)
        known = ", ".join(
            f"{name} = {update.values[name]:.1f} +- {update.sigmas[name]:.1f} px"
            for name in ("F", "c_x", "c_y")
            if name in update.values
        )
        print(f"{update.status}: {known or update.text}")
        if update.advice is not None:
            print(f"    {update.advice.text}")
    calibrator.close()
    print(f"the true F is {truth.array.focal_px:.1f} px")


if __name__ == "__main__":
    main()
