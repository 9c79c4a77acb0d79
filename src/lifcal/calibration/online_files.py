"""The state of an online calibration in a folder.

state.npz holds all but the images of the keyframes, each of which has a file of its own that is
written once. A run that is killed leaves the state before or after, never a part of one.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lifcal import __version__
from lifcal.bundle import Adjustment
from lifcal.bundle.record import decode, encode
from lifcal.calibration.drift import DriftWatch
from lifcal.calibration.live_map import Keyframe, LiveMap
from lifcal.calibration.looks import Images, Look
from lifcal.calibration.online import Candidate, OnlineState, Pending
from lifcal.calibration.plenoptic_pnp import MatchNoise
from lifcal.calibration.window import Solution
from lifcal.camera import MicroLensGrid, PlenopticCamera
from lifcal.errors import DataError, LifcalError
from lifcal.files import read_bytes, write_bytes
from lifcal.geometry import RigidTransform

_CLASSES: dict[str, type] = {
    each.__name__: each
    for each in (
        Candidate,
        DriftWatch,
        Images,
        Keyframe,
        LiveMap,
        Look,
        MatchNoise,
        OnlineState,
        Pending,
        RigidTransform,
        Solution,
    )
}
"""Records that are built from a state, by the names of their classes."""
_STATE = "state.npz"
"""Name of the file with all but the images."""
_FORMAT = 1
"""Number of this form of the state: others are refused."""
_MOST_BYTES = 1 << 31
"""Largest file of a state that is read."""


def write_state(folder: Path, state: OnlineState) -> None:
    """Write a state, whole or not at all; images of keyframes that are there are not repeated."""
    images: dict[int, Images] = {}

    def light(frame: Any) -> Any:
        images[frame.index] = frame.images
        return replace(frame, images=frame.index)

    plain = replace(
        state,
        waiting=[light(each) for each in state.waiting],
        map=_lighten(state.map, light),
        pending=None
        if state.pending is None
        else replace(
            state.pending,
            keyframes=tuple(light(each) for each in state.pending.keyframes),
            map=_lighten(state.pending.map, light),
        ),
    )
    for index, each in images.items():
        path = _name_images(folder, index)
        if not path.is_file():
            _write(path, each)
    _write(folder / _STATE, plain)
    for path in folder.glob("keyframe-*.npz"):
        if path not in {_name_images(folder, index) for index in images}:
            path.unlink(missing_ok=True)


def read_state(folder: Path, grid: MicroLensGrid) -> OnlineState:
    """Return the state that was written to a folder.

    Raises
    ------
    DataError
        If there is none, it is damaged, or another version wrote it.
    """
    state: OnlineState = _read(folder / _STATE, OnlineState)
    held: dict[int, Images] = {}

    def heavy(frame: Any) -> Any:
        index = int(frame.images)
        if index not in held:
            held[index] = _read(_name_images(folder, index), Images)
        return replace(frame, images=held[index])

    solution = state.solution
    if solution is not None:
        solution = replace(solution, adjustment=_add_camera(solution.adjustment, grid))
    pending = state.pending
    if pending is not None:
        pending = replace(
            pending,
            keyframes=tuple(heavy(each) for each in pending.keyframes),
            map=_lighten(pending.map, heavy),
        )
    return replace(
        state,
        waiting=[heavy(each) for each in state.waiting],
        map=_lighten(state.map, heavy),
        solution=solution,
        pending=pending,
    )


def _lighten(live: Any, change: Any) -> Any:
    if live is None:
        return None
    return replace(
        live,
        keyframes=[change(each) for each in live.keyframes],
        last_seen=np.array(live.last_seen),
    )


def _add_camera(found: Adjustment, grid: MicroLensGrid) -> Adjustment:
    n = found.problem.n_camera
    camera = PlenopticCamera.from_pinhole_array(
        found.state.array,
        found.problem.pixel_size_mm,
        grid,
        found.state.distortion,
        found.problem.scale_source,
        found.covariance.array[:n, :n],
        found.state.array_tilt,
    )
    return replace(found, camera=camera)


def _name_images(folder: Path, index: int) -> Path:
    return folder / f"keyframe-{index:06d}.npz"


def _write(path: Path, value: Any) -> None:
    arrays: dict[str, Any] = {}
    content = {"format": _FORMAT, "lifcal": __version__, "record": encode(value, arrays)}
    buffer = io.BytesIO()
    np.savez(buffer, tree=np.array(json.dumps(content)), **arrays)
    write_bytes(path, buffer.getvalue())


def _read(path: Path, kind: type) -> Any:
    content = read_bytes(path, limit=_MOST_BYTES)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            tree = json.loads(str(held["tree"]))
            if tree["format"] != _FORMAT:
                raise ValueError
            found = decode(tree["record"], dict(held), _CLASSES)
    except (EOFError, ValueError, TypeError, KeyError, AttributeError, BadZipFile, LifcalError):
        raise DataError(
            f"{path}: is damaged, or another version of lifcal wrote it: begin in a new folder"
        ) from None
    if not isinstance(found, kind):
        raise DataError(f"{path}: holds another record")
    return found
