"""The order of the rooms: raw frames to focused images, and on to a calibrated camera."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifcal.listener import Listener
    from lifcal.pipeline.calibration import Calibration
    from lifcal.sfm import SfmEngine


def calibrate(
    raws: str | Path | Sequence[str],
    folder: str | Path,
    *,
    pixel_size_um: float,
    white: str | Path | None = None,
    grid: str | Path | None = None,
    xml: str | Path | None = None,
    bayer: str | None = None,
    focal_length_mm: float | None = None,
    marker_size_mm: float | None = None,
    marker_distances: str | Path | None = None,
    distances: str | Path | None = None,
    trajectory: str | Path | None = None,
    known: Mapping[str, float] | None = None,
    timestamps: str | Path | None = None,
    points: int = 1000,
    seed: int = 0,
    listener: Listener | None = None,
    sfm_engine: SfmEngine | None = None,
) -> Calibration:
    """Calibrate a camera from raw frames of any textured scene, taken with the camera moving.

    What `lifcal calibrate` does; docs/how-to/calibrate.md explains the options. For more choices,
    see `lifcal.pipeline.calibration.calibrate_frames`.

    Parameters
    ----------
    raws : str, Path or sequence of str
        Files, folders, globs, videos.
    folder : str or Path
        Where the results go; an unfinished run with the same settings is continued.
    pixel_size_um : float
    white, grid, xml : str or Path, optional
        White image, grid.json, the maker's XML.
    bayer : str, optional
    focal_length_mm : float, optional
        Nominal: a start and a check.
    marker_size_mm : float, optional
    marker_distances, distances, trajectory : str or Path, optional
    known : mapping of str to float, optional
        f_L and B in mm.
    timestamps : str or Path, optional
        A file with one time a line, for every frame.
    points : int
        Scene points to measure.
    seed : int
    listener : Listener, optional
        Is told how it goes.
    sfm_engine : SfmEngine, optional
        What finds the first poses, in place of COLMAP.

    Raises
    ------
    DataError
        For files that cannot be used.
    EstimationError
        If the frames do not determine the camera; the message says why and what to do.
    """
    from lifcal.calibration import CalibrateOptions
    from lifcal.geometry import read_timestamps
    from lifcal.imaging.frames import open_frames
    from lifcal.pipeline.calibration import calibrate_frames
    from lifcal.scale import ScaleOptions, read_marker_distances, read_picked_distances
    from lifcal.sfm import SfmOptions

    scale = ScaleOptions(
        marker_size_mm=marker_size_mm,
        marker_distances=()
        if marker_distances is None
        else read_marker_distances(Path(marker_distances)),
        distances=() if distances is None else read_picked_distances(Path(distances)),
        trajectory=None if trajectory is None else Path(trajectory),
        known=known or {},
    )
    options = CalibrateOptions(
        pixel_size_um,
        focal_length_mm,
        scale,
        SfmOptions(seed=seed),
        points=points,
        timestamps=None if timestamps is None else tuple(read_timestamps(Path(timestamps))),
    )
    named = {"grid": grid, "white": white, "xml": xml}
    sources = {key: None if path is None else Path(path) for key, path in named.items()}
    words = [str(raws)] if isinstance(raws, (str, Path)) else [str(word) for word in raws]
    return calibrate_frames(
        open_frames(words, bayer=bayer), Path(folder), options, sources, listener, sfm_engine
    )
