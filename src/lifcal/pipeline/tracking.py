"""Focused images to poses and tracks, kept in the folder for the next run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lifcal import __version__
from lifcal.calibration import View, find_models
from lifcal.camera import BrownDistortion
from lifcal.diagnostics import Finding
from lifcal.errors import DataError
from lifcal.files import make_plain, write_bytes
from lifcal.geometry import RigidTransform
from lifcal.listener import Listener
from lifcal.pipeline.focusing import FocusRun
from lifcal.pipeline.store import FolderStore
from lifcal.sfm import SfmEngine, SfmModel

_CACHE = Path("cache") / "sfm.npz"
_SCRATCH = Path("cache") / "colmap"
_STAGES = {"features": "finding features", "matching": "matching", "mapping": "finding poses"}


def track_frames(
    run: FocusRun,
    views: Sequence[View],
    sfm: SfmEngine,
    focal_px: float | None,
    listener: Listener,
) -> list[SfmModel]:
    """Find the poses of all frames that are done, one view for each, in their order.

    Each scene has a model of its own. The result is kept in the folder and taken from there if
    nothing has changed.
    """
    key = _key(run, sfm, focal_px)
    folder = run.store.folder if isinstance(run.store, FolderStore) else None
    scratch = None if folder is None else folder / _SCRATCH
    kept = None if folder is None else _read(folder / _CACHE, key)
    if kept is not None:
        return kept

    scale = float(run.store.settings["scale"])
    n_recordings = len({view.recording for view in views})
    total = n_recordings * len(_STAGES)
    with listener.steps(_STAGES["features"], total) as step:
        models = find_models(
            views,
            scale,
            sfm,
            focal_px,
            names=run.usable.frames.recording_names,
            on_stage=_count_stages(step, total),
            scratch=scratch,
        )
        step("")
    if folder is not None:
        _write(folder / _CACHE, key, models)
    return models


def _count_stages(step: Callable[[str], None], total: int) -> Callable[[str], None]:
    """Return a function that takes the names of stages as they begin, and makes steps of them.

    Frames are matched and mapped again if the first result is not convincing, or if a recording has
    several parts. There are never more steps than `total`, the last of which is left to the end.
    """
    begun: list[str] = []

    def on_stage(name: str) -> None:
        if 0 < len(begun) < total:
            step(_STAGES.get(name, name))
        begun.append(name)

    return on_stage


def _key(run: FocusRun, sfm: SfmEngine, focal_px: float | None) -> str:
    """Return what tells this input from another."""
    entries = run.store.entries
    content: dict[str, Any] = {
        "version": __version__,
        "options": dict(sfm.describe()),
        "focal_px": focal_px,
        "settings": dict(run.store.settings),
        "grid": dict(run.setup.grid),
        "frames": [(name, entries[name].checksum) for name in run.done],
        "recordings": list(run.usable.frames.recordings),
    }
    return hashlib.sha256(json.dumps(make_plain(content), sort_keys=True).encode()).hexdigest()


def _write(path: Path, key: str, models: Sequence[SfmModel]) -> None:
    arrays: dict[str, Any] = {"key": np.array(key), "count": np.array(len(models))}
    for number, model in enumerate(models):
        poses = [pose or RigidTransform.identity() for pose in model.cam_from_sfm]
        content = {
            "camera": np.array([model.focal_px, *model.principal_px, *model.distortion.parameters]),
            "registered": model.registered,
            "rotations": np.array([pose.rotation for pose in poses]),
            "translations": np.array([pose.translation_mm for pose in poses]),
            "points_sfm": model.points_sfm,
            "point_indices": model.point_indices,
            "view_indices": model.view_indices,
            "points_virt_px": model.points_virt_px,
            "mean_error_px": np.array(model.mean_error_px),
            "findings": np.array(json.dumps([found.as_dict() for found in model.findings])),
        }
        arrays.update({f"{name}_{number}": value for name, value in content.items()})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def _read(path: Path, key: str) -> list[SfmModel] | None:
    """Return what an earlier run found for the same input, None if there is nothing of it."""
    try:
        with np.load(io.BytesIO(path.read_bytes())) as held:
            if str(held["key"]) != key:
                return None
            return [_read_model(held, number) for number in range(int(held["count"]))] or None
    except (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile, DataError):
        return None


def _read_model(held: Mapping[str, Any], number: int) -> SfmModel:
    def get(name: str) -> Any:
        return held[f"{name}_{number}"]

    focal, cx, cy, *terms = get("camera").tolist()
    poses = tuple(
        RigidTransform(rotation, translation) if there else None
        for there, rotation, translation in zip(
            get("registered"), get("rotations"), get("translations"), strict=True
        )
    )
    return SfmModel(
        focal,
        np.array([cx, cy]),
        BrownDistortion(*terms),
        poses,
        get("points_sfm"),
        get("point_indices"),
        get("view_indices"),
        get("points_virt_px"),
        float(get("mean_error_px")),
        tuple(map(Finding.from_dict, json.loads(str(get("findings"))))),
    )
