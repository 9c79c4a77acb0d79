"""Focused images to poses and tracks, kept in the folder for the next run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lifcal import __version__
from lifcal.calibration import View, find_poses
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
) -> SfmModel:
    """Find the poses of all frames that are done, one view for each, in their order.

    The result is kept in the folder and taken from there if nothing has changed.
    """
    key = _key(run, sfm, focal_px)
    folder = run.store.folder if isinstance(run.store, FolderStore) else None
    scratch = None if folder is None else folder / _SCRATCH
    kept = None if folder is None else _read(folder / _CACHE, key)
    if kept is not None:
        return kept

    scale = float(run.store.settings["scale"])
    with listener.steps(_STAGES["features"], len(_STAGES)) as step:
        count = 0

        def on_stage(name: str) -> None:
            nonlocal count
            if count:
                step(_STAGES.get(name, name))
            count += 1

        model = find_poses(views, scale, sfm, focal_px, on_stage=on_stage, scratch=scratch)
        step("")
    if folder is not None:
        _write(folder / _CACHE, key, model)
    return model


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
    }
    return hashlib.sha256(json.dumps(make_plain(content), sort_keys=True).encode()).hexdigest()


def _write(path: Path, key: str, model: SfmModel) -> None:
    poses = [pose or RigidTransform.identity() for pose in model.cam_from_sfm]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        key=np.array(key),
        camera=np.array([model.focal_px, *model.principal_px, *model.distortion.parameters]),
        registered=model.registered,
        rotations=np.array([pose.rotation for pose in poses]),
        translations=np.array([pose.translation_mm for pose in poses]),
        points_sfm=model.points_sfm,
        point_indices=model.point_indices,
        view_indices=model.view_indices,
        points_virt_px=model.points_virt_px,
        mean_error_px=np.array(model.mean_error_px),
        findings=np.array(json.dumps([found.as_dict() for found in model.findings])),
    )
    write_bytes(path, buffer.getvalue())


def _read(path: Path, key: str) -> SfmModel | None:
    """Return what an earlier run found for the same input, None if there is nothing of it."""
    try:
        with np.load(io.BytesIO(path.read_bytes())) as held:
            if str(held["key"]) != key:
                return None
            focal, cx, cy, *terms = held["camera"].tolist()
            poses = tuple(
                RigidTransform(rotation, translation) if there else None
                for there, rotation, translation in zip(
                    held["registered"], held["rotations"], held["translations"], strict=True
                )
            )
            return SfmModel(
                focal,
                np.array([cx, cy]),
                BrownDistortion(*terms),
                poses,
                held["points_sfm"],
                held["point_indices"],
                held["view_indices"],
                held["points_virt_px"],
                float(held["mean_error_px"]),
                tuple(map(Finding.from_dict, json.loads(str(held["findings"])))),
            )
    except (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile, DataError):
        return None
