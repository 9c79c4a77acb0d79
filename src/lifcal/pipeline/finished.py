"""A finished calibration in a folder, which nothing overwrites unless the user says so."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifcal import __version__
from lifcal.bundle.files import name_for_world
from lifcal.diagnostics import Finding
from lifcal.distances import PICKED
from lifcal.errors import DataError
from lifcal.files import digest_files, make_part_path, make_plain, read_json
from lifcal.pipeline.store import list_differences

if TYPE_CHECKING:
    from lifcal.calibration import CalibrateOptions
    from lifcal.listener import Listener
    from lifcal.pipeline.added import AddedCalibration
    from lifcal.sfm import SfmEngine

FILES = (
    "camera.json",
    "poses.txt",
    "points.ply",
    "cameras.ply",
    "observations.csv",
    "summary.json",
    "report.html",
)
"""What a calibration writes, besides focused images and maps of virtual depth."""
_FOR_EACH_WORLD = ("poses.txt", "points.ply", "cameras.ply")
"""Results that every world has its own of."""
_MOST_TOLD = 4
"""Differences that a message names; more of them do not help."""


def describe_inputs(
    options: CalibrateOptions,
    sfm: SfmEngine,
    settings: Mapping[str, Any],
    frames: Sequence[str] | Mapping[str, str],
    recordings: Sequence[int] = (),
    added: AddedCalibration | None = None,
) -> dict[str, Any]:
    """Return what the result of a calibration depends on, as JSON holds it.

    Parameters
    ----------
    options : CalibrateOptions
    sfm : SfmEngine
    settings : mapping
        What focused images depend on besides the raws.
    frames : sequence of str, or mapping of str to str
        Names of the frames; with check sums of their pixels where these are known.
    recordings : sequence of int
        Number of the recording of each frame.
    added : AddedCalibration, optional
        A finished calibration that is adjusted together with the frames.
    """
    several: dict[str, Any] = {}
    if len(set(recordings)) > 1:
        several["recordings"] = list(recordings)
    if added is not None:
        several["added"] = added.describe()
    plain: dict[str, Any] = make_plain(
        {
            "lifcal_version": __version__,
            "frames": dict(frames) if isinstance(frames, Mapping) else list(frames),
            "settings": dict(settings),
            "options": options.as_dict(),
            "scale": [
                dict(source.describe())
                for scale in options.scales or (options.scale,)
                for source in scale.list_sources()
            ],
            "sfm": dict(sfm.describe()),
            **several,
        }
    )
    return plain


def compute_key(inputs: Mapping[str, Any]) -> str:
    """Return what tells the input of a calibration from another's."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def digest_results(folder: Path) -> dict[str, str | None]:
    """Return what tells the files that a summary belongs to from others."""
    names = [*FILES[: FILES.index("summary.json")], *_list_worlds(folder)]
    return digest_files({name: folder / name for name in names})


def _list_worlds(folder: Path) -> list[str]:
    """Return the names of results of the second and further worlds."""
    found = []
    for name in _FOR_EACH_WORLD:
        world = 1
        while (folder / name_for_world(name, world)).is_file():
            found.append(name_for_world(name, world))
            world += 1
    return found


def guard_finished(
    folder: Path, inputs: Mapping[str, Any], force: bool, listener: Listener
) -> bool:
    """Make sure that a run with these inputs overwrites no finished calibration of other inputs.

    Parameters
    ----------
    folder : Path
    inputs : mapping
        What `describe_inputs` returns.
    force : bool
        Keep the finished calibration in a folder beside this one, so that the run can go on. Images
        that the run can use stay.
    listener : Listener
        Is told where the finished calibration is kept.

    Returns
    -------
    bool
        Whether a finished calibration was there and is kept beside.

    Raises
    ------
    DataError
        If there is one, and `force` is False. The message says what differs.
    """
    differences = _compare(folder, inputs)
    if not differences:
        return False
    told = "; ".join(differences[:_MOST_TOLD])
    if len(differences) > _MOST_TOLD:
        told += f"; and {len(differences) - _MOST_TOLD} more"
    beside = _name_beside(folder)
    if not force:
        raise DataError(
            f"{folder}: holds a finished calibration that was made with other settings ({told}). "
            f"Choose another folder, or give --force, which keeps the old one as {beside}"
        )
    with listener.status(f"keeping the old calibration as {beside}"):
        _keep(folder, beside)
        if _read_settings(folder) != inputs["settings"]:
            _clear(folder)
        else:
            _remove_results(folder)
    text = f"{folder}: the calibration that was there is kept as {beside} ({told})"
    listener.finding(Finding.of("calibration-kept", text, kept=str(beside)))
    return True


def _compare(folder: Path, inputs: Mapping[str, Any]) -> list[str]:
    """Return in words how a finished calibration differs; nothing if there is none."""
    if not all((folder / name).is_file() for name in ("camera.json", "summary.json")):
        return []
    try:
        summary = read_json(folder / "summary.json")
    except DataError as error:
        return [str(error)]
    old = summary.get("inputs")
    if not isinstance(old, Mapping):
        return ["by another version of lifcal, or by another command"]
    found = [
        *_compare_frames(old.get("frames"), inputs["frames"]),
        *list_differences(
            {"lifcal_version": old.get("lifcal_version"), **(old.get("settings") or {})},
            {"lifcal_version": inputs["lifcal_version"], **inputs["settings"]},
            ("grid", "white", "xml"),
        ),
        *list_differences(old.get("options") or {}, inputs["options"]),
    ]
    if not found:  # else they repeat what the options say
        parts = ("scale", "sfm", "recordings", "added")
        before, after = ({k: _number(each.get(k)) for k in parts} for each in (old, inputs))
        found = list_differences(before, after)
    digests = summary.get("files")
    for name, digest in digests.items() if isinstance(digests, Mapping) else ():
        path = folder / name
        if path.is_file() and digest_files({name: path})[name] != digest:
            found.append(f"{name} was changed after it was written")
    return found


def _number(value: Any) -> Any:
    """Return a list as a mapping from the index, so that its entries are compared one by one."""
    return dict(enumerate(value)) if isinstance(value, list) else value


def _compare_frames(old: Any, new: Sequence[str] | Mapping[str, str]) -> list[str]:
    before, now = list(old or ()), list(new)
    if before != now:
        more, fewer = set(now) - set(before), set(before) - set(now)
        words = [f"{len(before)} frames then, {len(now)} now"]
        words += [f"{min(more)} is new"] if more else []
        words += [f"{min(fewer)} is missing"] if fewer else []
        return [", ".join(words)]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changed = [name for name in now if old[name] != new[name]]
        if changed:
            return [f"frame {changed[0]} has other pixels"]
    return []


def _read_settings(folder: Path) -> Any:
    """Return the settings that the images in a folder were made with."""
    try:
        return read_json(folder / "focus.json").get("settings")
    except DataError:
        return None


def _name_beside(folder: Path) -> Path:
    """Return the first name beside a folder that is free."""
    place = folder if folder.name else folder.resolve()
    number = 1
    while (beside := place.with_name(f"{place.name}-old-{number}")).exists():
        number += 1
    return beside


def _keep(folder: Path, beside: Path) -> None:
    """Copy a folder. Files are linked where that is possible, since none is changed in place."""
    part = make_part_path(beside.parent, beside.name)
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
        shutil.copytree(folder, part, copy_function=_link)
        part.rename(beside)
    except OSError as error:  # shutil.Error is one
        shutil.rmtree(part, ignore_errors=True)
        raise DataError(f"{beside}: cannot keep the old calibration: {error}") from error


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a drive without hard links
        shutil.copy2(source, target)


def _remove_results(folder: Path) -> None:
    """Remove the results of a calibration, of which there is a copy; images stay.

    A run that is interrupted then leaves no results of other settings, and can be continued.
    """
    for name in [*FILES, *_list_worlds(folder)]:
        (folder / name).unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Remove what is in a folder, of which there is a copy; picked distances stay."""
    for path in folder.iterdir():
        if path.name == PICKED:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
