"""Freeing the disk of what a run can make again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifcal.errors import DataError
from lifcal.files import hold_folder

_REMOVABLE = {
    "focus.json": ("virtual_depth", "cache"),
    "depth.json": ("preview",),
}
"""For the record of each kind of folder, the folders inside that the same command makes again. What
other commands read (focused images, depth maps, clouds) stays."""


@dataclass(frozen=True)
class Cleaning:
    """What was removed from a folder, or would be.

    Parameters
    ----------
    folder : Path
    removed : tuple of str
        Names of the folders inside.
    files : int
        How many files they held.
    bytes : int
        Their size.
    """

    folder: Path
    removed: tuple[str, ...]
    files: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "folder": str(self.folder),
            "removed": list(self.removed),
            "files": self.files,
            "bytes": self.bytes,
        }


def clean_folder(folder: Path, *, dry_run: bool = False) -> Cleaning:
    """Remove what `lifcal calibrate`, `lifcal focus` or `lifcal depth` can make again.

    Parameters
    ----------
    folder : Path
    dry_run : bool
        Only say what would be removed.

    Raises
    ------
    DataError
        If the folder was not written by one of these commands, if a calibration there is not
        finished, or if a run is writing there.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    records = [name for name in _REMOVABLE if (folder / name).is_file()]
    if not records:
        raise DataError(
            f"{folder}: holds nothing to remove: no run of lifcal calibrate, focus or depth has "
            f"made images there (no {' or '.join(_REMOVABLE)})"
        )
    if records == ["focus.json"] and not (folder / "camera.json").is_file():
        raise DataError(
            f"{folder}: holds no finished calibration, and virtual depth is what it is for: "
            "nothing is removed"
        )
    inside = [name for record in records for name in _REMOVABLE[record]]
    inside = [name for name in inside if (folder / name).is_dir()]
    files = [path for name in inside for path in (folder / name).rglob("*") if path.is_file()]
    found = Cleaning(folder, tuple(inside), len(files), sum(path.stat().st_size for path in files))
    if dry_run:
        return found
    with hold_folder(folder):
        for name in inside:
            try:
                shutil.rmtree(folder / name)
            except OSError as error:
                raise DataError(f"{folder / name}: cannot remove: {error.strerror}") from error
    return found
