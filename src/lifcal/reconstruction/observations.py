"""Observations: measured points in micro images, with the view, the scene point and the lens."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array, read_only
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, write_text

REQUIRED_COLUMNS = ("view", "point", "center_x", "center_y", "x", "y")
OPTIONAL_COLUMNS = ("lens_type", "sigma")

_MAX_PX = 1e6
_LARGEST_ID = 2**53
_SAME_CENTER = 0.1
"""Largest distance, in pitches, between a center and the nearest one of the grid for which both are
taken to be the same."""
_WRONG_TYPES = 0.05
_MAX_TYPES = 3


@dataclass(frozen=True, eq=False)
class Observations:
    """Points measured in micro images, sorted by (point, view).

    Make one with `from_arrays` or `read_observations`: they check and sort.

    Parameters
    ----------
    view_indices, point_indices : (n,) int64
        Indices into `view_ids` and `point_ids`.
    centers_raw_px : (n, 2) float64
        Center of the micro image in which the point was measured, recorded raw coordinates.
    points_raw_px : (n, 2) float64
        The measured point, recorded raw coordinates.
    covariances_px2 : (n, 2, 2) float64
        Covariance of the measured point. If nothing is known, all are the identity; the adjustment
        estimates a common factor.
    lens_types : (n,) int64
    view_ids : (n_views,) int64
    point_ids : (n_points,) int64
        The caller's numbers of views and points, ascending.
    """

    view_indices: IntArray
    point_indices: IntArray
    centers_raw_px: FloatArray
    points_raw_px: FloatArray
    covariances_px2: FloatArray
    lens_types: IntArray
    view_ids: IntArray
    point_ids: IntArray

    @classmethod
    def from_arrays(
        cls,
        views: npt.ArrayLike,
        points: npt.ArrayLike,
        centers_raw_px: npt.ArrayLike,
        points_raw_px: npt.ArrayLike,
        *,
        sigma_px: npt.ArrayLike | None = None,
        covariances_px2: npt.ArrayLike | None = None,
        lens_types: npt.ArrayLike | None = None,
    ) -> Observations:
        """Check, sort and number observations.

        Parameters
        ----------
        views, points : (n,) int
            The caller's numbers of the view and the scene point of each observation: any integers.
        centers_raw_px, points_raw_px : (n, 2) float64
        sigma_px : (n,) float64, optional
            Standard deviation of each coordinate.
        covariances_px2 : (n, 2, 2) float64, optional
            Covariance of each point, instead of `sigma_px`.
        lens_types : (n,) int, optional

        Raises
        ------
        InputError
            For wrong shapes, NaN, sigmas that are not positive, covariances that are not positive
            definite, or a micro image that appears twice for a point in a view.
        """
        centers = check_array(centers_raw_px, "centers_raw_px", (None, 2))
        n = len(centers)
        measured = check_array(points_raw_px, "points_raw_px", (n, 2))
        view_names = _check_ids(views, "view", n)
        point_names = _check_ids(points, "point", n)
        types = (
            np.zeros(n, np.int64) if lens_types is None else _check_ids(lens_types, "lens_type", n)
        )
        covariances = _check_covariances(sigma_px, covariances_px2, n)
        if n == 0:
            raise InputError("there are no observations")
        for name, values in (("center", centers), ("x, y", measured)):
            bad = ~(np.abs(values) < _MAX_PX).all(axis=1)
            if bad.any():
                i = int(np.argmax(bad))
                raise InputError(
                    f"observation {i} (view {view_names[i]}, point {point_names[i]}) has {name} = "
                    f"({values[i, 0]}, {values[i, 1]}), needs finite raw pixels"
                )
        if types.min() < 0 or types.max() >= _MAX_TYPES:
            bad_type = types.min() if types.min() < 0 else types.max()
            raise InputError(f"lens_type has {bad_type}, needs 0, 1 or 2")
        # Two micro images are the same if their centers agree to a hundredth of a pixel.
        lens = np.rint(100.0 * centers)
        order = np.lexsort((lens[:, 0], lens[:, 1], view_names, point_names))  # last key first
        lens = lens[order]
        centers, measured, types = centers[order], measured[order], types[order]
        view_ids, view_indices = np.unique(view_names[order], return_inverse=True)
        point_ids, point_indices = np.unique(point_names[order], return_inverse=True)
        twice = (
            (np.diff(point_indices) == 0)
            & (np.diff(view_indices) == 0)
            & (np.diff(lens, axis=0) == 0.0).all(axis=1)
        )
        if twice.any():
            i = int(np.argmax(twice))
            raise InputError(
                f"{int(twice.sum())} observations are duplicates: point "
                f"{point_ids[point_indices[i]]} appears twice in the micro image at "
                f"({centers[i, 0]:g}, {centers[i, 1]:g}) of view {view_ids[view_indices[i]]}"
            )
        return cls(
            *(
                read_only(np.ascontiguousarray(array))
                for array in (
                    view_indices.astype(np.int64),
                    point_indices.astype(np.int64),
                    centers,
                    measured,
                    covariances[order],
                    types,
                    view_ids,
                    point_ids,
                )
            )
        )

    def __len__(self) -> int:
        return len(self.points_raw_px)

    def __repr__(self) -> str:
        return (
            f"Observations({len(self)} of {len(self.point_ids)} points in "
            f"{len(self.view_ids)} views, {self.n_types} lens types)"
        )

    @property
    def n_types(self) -> int:
        """One more than the largest lens type."""
        return int(self.lens_types.max()) + 1

    @cached_property
    def centers(self) -> tuple[FloatArray, IntArray]:
        """The distinct micro-image centers, (n_centers, 2), and the index of each observation's."""
        # They are packed into complex numbers, because np.unique along an axis is slow.
        packed = self.centers_raw_px[:, 0] + 1j * self.centers_raw_px[:, 1]
        unique, index = np.unique(packed, return_inverse=True)
        table = np.column_stack([unique.real, unique.imag])
        return read_only(table), read_only(index.astype(np.int64))

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """Point and view of each (point, view) pair, and the index at which its observations begin.

        The last array has one more entry, the number of observations.
        """
        change = (np.diff(self.point_indices) != 0) | (np.diff(self.view_indices) != 0)
        first = np.concatenate([[0], np.flatnonzero(change) + 1])
        return (
            read_only(self.point_indices[first]),
            read_only(self.view_indices[first]),
            read_only(np.append(first, len(self))),
        )

    def with_types_of(self, grid: MicroLensGrid) -> Observations:
        """Return the observations with the lens types of a grid, where they had none (all 0).

        Raises
        ------
        InputError
            If the centers are not those of the grid, or if types were given that differ from those
            of the grid.
        """
        table, index = self.centers
        lenses = grid.nearest(table)
        middle = float(np.median(np.linalg.norm(grid.centers_raw_px[lenses] - table, axis=1)))
        if middle > _SAME_CENTER * grid.pitch_px:
            raise InputError(
                f"the micro-image centers are {middle:.2g} px from those of the grid (median): the "
                "grid is not that of these observations"
            )
        types = grid.lens_types[lenses][index]
        if self.lens_types.any():
            wrong = float(np.mean(types != self.lens_types))
            if grid.n_types > 1 and wrong > _WRONG_TYPES:
                raise InputError(
                    f"{100.0 * wrong:.0f} % of the lens types are not those of the grid: are its "
                    "types in another order?"
                )
            return self
        return replace(self, lens_types=read_only(types.astype(np.int64)))

    def select(self, keep: BoolArray) -> Observations:
        """Return the observations where `keep` is True, with new indices of views and points."""
        if not keep.any():
            raise InputError("there are no observations left")
        return Observations.from_arrays(
            self.view_ids[self.view_indices[keep]],
            self.point_ids[self.point_indices[keep]],
            self.centers_raw_px[keep],
            self.points_raw_px[keep],
            covariances_px2=self.covariances_px2[keep],
            lens_types=self.lens_types[keep],
        )


def _check_ids(values: npt.ArrayLike, name: str, n: int) -> IntArray:
    array = np.asarray(values)
    if array.shape != (n,) or (n and not np.issubdtype(array.dtype, np.integer)):
        raise InputError(f"{name} needs {n} integers, found {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _check_covariances(
    sigma_px: npt.ArrayLike | None, covariances_px2: npt.ArrayLike | None, n: int
) -> FloatArray:
    if sigma_px is not None and covariances_px2 is not None:
        raise InputError("give sigma_px or covariances_px2, not both")
    if covariances_px2 is not None:
        covariances = check_array(covariances_px2, "covariances_px2", (n, 2, 2))
        a, b, c = covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]
        good = (a > 0.0) & (a * c - b * b > 0.0) & (b == covariances[:, 1, 0])
        if not (good & np.isfinite(a + c)).all():
            raise InputError(
                f"covariances_px2 of observation {int(np.argmin(good))} is not symmetric and "
                "positive definite"
            )
        return covariances
    covariances = np.zeros((n, 2, 2))
    sigma = np.ones(n) if sigma_px is None else check_array(sigma_px, "sigma_px", (n,))
    if not ((sigma > 0.0) & np.isfinite(sigma)).all():
        i = int(np.argmin((sigma > 0.0) & np.isfinite(sigma)))
        raise InputError(f"sigma of observation {i} is {sigma[i]}, needs a positive number")
    covariances[:, 0, 0] = covariances[:, 1, 1] = sigma**2
    return covariances


# Files


def read_observations(path: str | Path) -> Observations:
    """Read a CSV file with the header `view,point,center_x,center_y,x,y[,lens_type][,sigma]`.

    Columns may be in any order; views, points and lens types are integers.

    Raises
    ------
    DataError
        If a line cannot be read; the message names the line and the problem.
    """
    path = Path(path)
    text = read_bytes(path, limit=1 << 31).decode("utf-8-sig", errors="replace")
    header, _, body = text.partition("\n")
    columns = [word.strip() for word in header.split(",")]
    _check_columns(path, columns)
    if not body.strip():
        raise DataError(f"{path}: has a header but no observations")
    try:
        table = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, comments="#")
        if table.shape[1] != len(columns):
            raise ValueError
    except ValueError:
        _name_bad_line(path, body, columns)
        raise DataError(f"{path}: not a table of {len(columns)} columns") from None
    values = dict(zip(columns, table.T, strict=True))
    for name in ("view", "point", "lens_type"):
        column = values.get(name)
        if column is None:
            continue
        bad = ~((np.abs(column) <= _LARGEST_ID) & (column == np.rint(column)))
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"{path}: row {row + 1}: {name} is {column[row]:g}, needs an integer below 2^53"
            )
    types = values.get("lens_type")
    try:
        return Observations.from_arrays(
            values["view"].astype(np.int64),
            values["point"].astype(np.int64),
            np.column_stack([values["center_x"], values["center_y"]]),
            np.column_stack([values["x"], values["y"]]),
            sigma_px=values.get("sigma"),
            lens_types=None if types is None else types.astype(np.int64),
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None


def write_observations(path: str | Path, observations: Observations) -> None:
    """Write the CSV that `read_observations` reads, whole or not at all.

    Correlations between x and y are not part of the format: `sigma` is the root of the mean
    variance.
    """
    sigma = np.sqrt((observations.covariances_px2[:, [0, 1], [0, 1]]).mean(axis=1))
    lines = [",".join((*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS))]
    lines += [
        f"{view},{point},{cx!r},{cy!r},{x!r},{y!r},{kind},{s!r}"
        for view, point, (cx, cy), (x, y), kind, s in zip(
            observations.view_ids[observations.view_indices].tolist(),
            observations.point_ids[observations.point_indices].tolist(),
            observations.centers_raw_px.tolist(),
            observations.points_raw_px.tolist(),
            observations.lens_types.tolist(),
            sigma.tolist(),
            strict=True,
        )
    ]
    write_text(Path(path), "\n".join(lines) + "\n")


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    known = (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    unknown = [name for name in columns if name not in known]
    if missing or unknown or len(set(columns)) != len(columns):
        found = ",".join(columns)
        raise DataError(
            f"{path}: the header is {found[:100]!r}, needs {','.join(REQUIRED_COLUMNS)} and "
            f"optionally {', '.join(OPTIONAL_COLUMNS)}"
        )


def _name_bad_line(path: Path, body: str, columns: Sequence[str]) -> None:
    """Raise DataError for the first line that is not a row of numbers."""
    for number, row in enumerate(csv.reader(io.StringIO(body)), start=2):
        if not row or row[0].lstrip().startswith("#"):
            continue
        if len(row) != len(columns):
            raise DataError(
                f"{path}: line {number}: {len(row)} values for {len(columns)} columns"
            ) from None
        for name, word in zip(columns, row, strict=True):
            try:
                float(word)
            except ValueError:
                raise DataError(
                    f"{path}: line {number}: {name} is {word.strip()[:40]!r}, needs a number"
                ) from None
