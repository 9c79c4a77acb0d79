"""Focused images to poses and tracks, kept in the folder for the next run."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lifcal import __version__
from lifcal.arrays import Float32Array
from lifcal.camera import BrownDistortion
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError
from lifcal.files import write_bytes
from lifcal.geometry import RigidTransform
from lifcal.imaging.files import read_image
from lifcal.imaging.frames import LUMINANCE
from lifcal.listener import Listener
from lifcal.pipeline.focusing import FocusRun
from lifcal.pipeline.starting import start_geometry
from lifcal.sfm import SfmEngine, SfmModel, SfmViews

_CACHE = Path("cache") / "sfm.npz"
_SCRATCH = Path("cache") / "colmap"
_STAGES = {"features": "finding features", "matching": "matching", "mapping": "finding poses"}


def track_frames(
    run: FocusRun, sfm: SfmEngine, focal_px: float | None, listener: Listener
) -> SfmModel:
    """Find the poses of all frames that are done, one image for each, in their order.

    The result is kept in the folder and taken from there if nothing has changed.
    """
    folder = run.record.folder
    key = _key(run, sfm, focal_px)
    kept = _read(folder / _CACHE, key)
    if kept is not None:
        return kept

    def read_map(index: int, kind: str) -> Float32Array:
        return np.asarray(read_image(run.record.paths(run.done[index])[kind]), np.float32)

    def judge(model: SfmModel) -> float:
        try:
            return start_geometry(model, run).virtual.misfit
        except EstimationError:
            return np.inf

    images = [read_gray(run.record.paths(name)["focused"]) for name in run.done]
    # The lenses at the rim leave black where nothing is seen: no feature there.
    masks = [image > 0 for image in images]
    with listener.steps(_STAGES["features"], len(_STAGES)) as step:
        count = 0

        def on_stage(name: str) -> None:
            nonlocal count
            if count:
                step(_STAGES[name])
            count += 1

        views = SfmViews(
            images,
            masks,
            run.record.content["settings"]["scale"],
            lambda index: read_map(index, "u"),
            lambda index: read_map(index, "sigma"),
            focal_px,
        )
        model = sfm.reconstruct(views, judge=judge, on_stage=on_stage, scratch=folder / _SCRATCH)
        step("")
    _write(folder / _CACHE, key, model)
    return model


def read_gray(path: Path) -> npt.NDArray[np.uint8]:
    """Return a focused image as 8-bit gray."""
    image = np.asarray(read_image(path))
    values = image.astype(np.float32) / (257.0 if image.dtype == np.uint16 else 1.0)
    if values.ndim == 3:
        values = values @ np.array(LUMINANCE, np.float32)
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


def _key(run: FocusRun, sfm: SfmEngine, focal_px: float | None) -> str:
    """Return what tells this input from another."""
    entries = run.record.content["frames"]
    content: dict[str, Any] = {
        "version": __version__,
        "options": dict(sfm.describe()),
        "focal_px": focal_px,
        "settings": run.record.content["settings"],
        "grid": run.record.content["grid"],
        "frames": [(name, entries[name]["checksum"]) for name in run.done],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, key: str, model: SfmModel) -> None:
    poses = [pose or RigidTransform.identity() for pose in model.cam_from_sfm]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        key=np.array(key),
        camera=np.array([model.focal_px, *model.principal_px, model.distortion.k0]),
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
            focal, cx, cy, k0 = held["camera"].tolist()
            poses = tuple(
                RigidTransform(rotation, translation) if there else None
                for there, rotation, translation in zip(
                    held["registered"], held["rotations"], held["translations"], strict=True
                )
            )
            return SfmModel(
                focal,
                np.array([cx, cy]),
                BrownDistortion(k0=k0),
                poses,
                held["points_sfm"],
                held["point_indices"],
                held["view_indices"],
                held["points_virt_px"],
                float(held["mean_error_px"]),
                tuple(map(Finding.from_dict, json.loads(str(held["findings"])))),
            )
    except (OSError, EOFError, ValueError, KeyError, BadZipFile):
        return None
