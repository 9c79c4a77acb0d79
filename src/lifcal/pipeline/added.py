"""A finished calibration whose scenes are adjusted together with those of new recordings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifcal.arrays import spread_choice
from lifcal.bundle import Adjustment
from lifcal.bundle.record import read_record
from lifcal.camera import MicroLensGrid, read_camera, read_grid
from lifcal.diagnostics import Finding
from lifcal.errors import DataError
from lifcal.files import read_json
from lifcal.imaging.frames import Frames
from lifcal.listener import Listener
from lifcal.pipeline.grids import GridNotShownError
from lifcal.pipeline.usable import UsableFrames

RECORD = Path("cache", "adjustment.npz")
"""The adjustment of a finished calibration, inside its folder."""
_FRAMES = 5
"""Frames of a recording in which the grid is compared; more do not change it."""


@dataclass(frozen=True, eq=False)
class AddedCalibration:
    """A finished calibration, as its folder holds it.

    Parameters
    ----------
    folder : Path
    key : str
        What tells its input from another's.
    adjustment : Adjustment
    grid : MicroLensGrid
    names, times, recordings : tuple
        Name, time and recording of each view, in the order of the adjustment.
    """

    folder: Path
    key: str
    adjustment: Adjustment
    grid: MicroLensGrid
    names: tuple[str, ...]
    times: tuple[float, ...]
    recordings: tuple[str, ...]

    def describe(self) -> dict[str, str]:
        """Return what a calibration that it was added to depends on."""
        return {"folder": self.folder.name, "key": self.key}

    def check(self, frames: Frames, pixel_size_mm: float) -> None:
        """Raise DataError if frames are not of this camera, by their size and that of pixels."""
        camera = self.adjustment.camera
        if camera.image_size != frames.image_size:
            theirs, ours = ("{} x {} px".format(*s) for s in (frames.image_size, camera.image_size))
            raise DataError(
                f"{self.folder}: was calibrated from frames of {ours}, the new ones have {theirs}: "
                "not of the same camera, or recorded with other settings"
            )
        if not math.isclose(camera.pixel_size_mm, pixel_size_mm, rel_tol=1e-6):
            raise DataError(
                f"{self.folder}: was calibrated with pixels of {1000.0 * camera.pixel_size_mm:g} "
                f"um, not {1000.0 * pixel_size_mm:g} um. Give --pixel-size-um as before"
            )

    def compare_grid(self, frames: Frames, listener: Listener) -> list[Finding]:
        """Compare the grid with that which frames show.

        Raises
        ------
        GridNotShownError
            If they differ so much that the frames are not of the camera as it was then.
        """
        from lifcal.grid.check import measure_offset

        with listener.status("comparing the grid with that of the finished calibration"):
            usable = UsableFrames(frames)
            chosen = [i for i in spread_choice(len(frames), _FRAMES) if usable.read(i) is not None]
            offset = measure_offset(frames.select(chosen), self.grid) if chosen else None
        if offset is None:
            return []
        changed, other = offset.tells_change(self.grid)
        shift_px = math.hypot(*offset.move_px[0])
        text = (
            f"{frames.recording_names[0]}: its micro images lie {shift_px:.2f} px beside those of "
            f"{self.folder}, and {offset.stretch_px:.2f} px more in the corners: the lens was "
            "focused anew, or lens or array moved, after that calibration"
        )
        if other:
            raise GridNotShownError(f"{text}. Calibrate anew (--known carries f_L and B over)")
        if not changed:
            return []
        return [
            Finding.of(
                "recordings-differ",
                f"{text}. Then one camera does not fit both",
                recording=frames.recording_names[0],
                shift_px=shift_px,
                stretch_px=offset.stretch_px,
            )
        ]


def read_added(folder: Path) -> AddedCalibration:
    """Read a finished calibration with all that it measured.

    Raises
    ------
    DataError
        If the folder holds none, or not all that is needed of it.
    """
    if not (folder / "summary.json").is_file() or not (folder / "camera.json").is_file():
        raise DataError(f"{folder}: no finished calibration here (camera.json and summary.json)")
    summary = read_json(folder / "summary.json")
    camera = read_camera(folder / "camera.json")
    try:
        key = str(summary["provenance"]["key"])
        frames = {int(entry["index"]): entry for entry in summary["frames"]}
        worlds = {
            int(index): str(entry["recording"])
            for entry in summary.get("worlds", ())
            for index in entry["frames"]
        }
        adjustment = read_record(folder / RECORD, key, camera)
        if adjustment is None:
            raise DataError(
                f"{folder}: {RECORD}, which holds what was measured, is missing (lifcal clean "
                "removes it) or of another version of lifcal: calibrate that recording again"
            )
        ids: list[int] = adjustment.problem.observations.view_ids.tolist()
        entries: list[dict[str, Any]] = [frames[index] for index in ids]
        return AddedCalibration(
            folder,
            key,
            adjustment,
            read_grid(folder / "grid.json"),
            tuple(str(entry["name"]) for entry in entries),
            tuple(float(entry["time"]) for entry in entries),
            tuple(worlds.get(index, str(folder)) for index in ids),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{folder / 'summary.json'}: not of a finished calibration") from None


def name_apart(names: tuple[str, ...], taken: set[str], folder: Path) -> list[str]:
    """Return names of frames that differ from others, with that of their folder before them."""
    if not taken & set(names):
        return list(names)
    prefix = folder.resolve().name
    found = [f"{prefix}_{name}" for name in names]
    number = 2
    while taken & set(found):
        found = [f"{prefix}_{number}_{name}" for name in names]
        number += 1
    return found
