"""Recordings and works for tests of the frame loop. Worker processes import this file."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from lifcal.camera import write_camera, write_grid
from lifcal.errors import DataError
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import open_frames
from lifcal.pipeline.frames import FrameResult, FrameWork
from lifcal.pipeline.store import FolderImages, FrameEntry
from lifcal.pipeline.usable import UsableFrames
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.threads import THREADS


def make_recording(folder, frames):
    """Write raws (the third one is black), white image, grid and camera of a small camera."""
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=3, rays_per_pixel=8)
    )
    camera = replace(simulation.optics.camera, scale_source="simulation")
    write_camera(folder / "camera.json", camera)
    write_grid(folder / "grid.json", camera.grid)
    write_png(folder / "white.png", simulation.render_white())
    raws = [simulation.render_frame(index).raw for index in range(3)]
    for index in range(frames):
        raw = raws[index % 3]
        write_png(folder / "raw" / f"{index}.png", raw if index != 2 else 0 * raw)
    return camera


def read_files(folder):
    """Return the content of all files of a folder by their relative paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class SmallWork(FrameWork):
    """Makes frames that are nothing but their number, in the manner that `kind` names."""

    def __init__(self, folder: Path, kind: str = "") -> None:
        write_png(folder / "one.png", make_dots())
        usable = UsableFrames(open_frames(folder / "one.png"))
        super().__init__(usable, [], FolderImages(folder, {}), {}, None, dict)
        self.kind = kind

    def run(self, frame):
        raise NotImplementedError

    def draw(self, frame, made):
        raise NotImplementedError

    def describe(self, index, common, made):
        raise NotImplementedError

    def make(self, index):
        place = self.images.folder / f"was-here-{index}"
        if self.kind == "deadly" or (self.kind == "deadly once" and index == 1):
            if self.kind == "deadly once" and place.exists():
                return lambda: self._done(index)
            place.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "bad" and index == 1:
            raise DataError("frame 1 is bad")
        if self.kind == "threads":
            return lambda: FrameResult(index, problem=f"{os.getpid()} {THREADS.count}")
        if self.kind == "slow first" and index == 0:
            time.sleep(0.3)
        return lambda: self._done(index)

    @staticmethod
    def _done(index):
        return FrameResult(index, FrameEntry(str(index), "0", 0, 1.0))


def make_dots():
    import numpy as np

    image = np.zeros((8, 8), np.uint8)
    image[::2] = 200
    return image
