"""Scale from known optics: f_L and B of an earlier calibration of the same camera."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.bundle import Follows, Prior
from lifcal.camera import PHYSICAL_PARAMETERS, read_camera
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.listener import Listener
from lifcal.scale.source import ScaleKnowledge, ScaleViews

KNOWN = ("f_L", "B")
"""Parameters that can be known: both if the same lens was refocused, B alone if the lens was
exchanged."""


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError or InputError unless the names are B, or f_L and B."""
    for name in names:
        if name not in KNOWN:
            raise ConfigError.unknown("parameter of --known", name, KNOWN)
    if "B" not in names:
        raise InputError("recalibration needs both f_L and B, as in f_L=16.7,B=0.38, or B alone")


@dataclass(frozen=True, eq=False)
class KnownOptics:
    """Recalibration with known f_L and B in mm, or B alone, which are held fixed as exact.

    Parameters
    ----------
    values : mapping of str to float
    """

    values: Mapping[str, float]

    def __post_init__(self) -> None:
        check_names(tuple(self.values))
        for name, value in self.values.items():
            if not (np.isfinite(value) and value > 0.0):
                raise InputError(f"known {name} is {value}, needs a positive number of mm")

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends."""
        return {"source": "known optics", **self.values}

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Return the values to be held fixed in the adjustment."""
        del views, listener
        return ScaleKnowledge(fixed=dict(self.values))


@dataclass(frozen=True)
class EarlierOptics:
    """Recalibration with f_L and B, or B alone, of an earlier calibration, and their covariance.

    Parameters
    ----------
    path : str
        The camera file, for messages.
    pixel_size_mm : float
        Pixel size of the earlier calibration, to which f_L and B refer.
    names : tuple of str
        Names of the known parameters: f_L and B, or B.
    values_mm : tuple of float
        Values, in the order of the names.
    covariance_mm2 : tuple of tuple of float
        Covariance, in the order of the names.
    """

    path: str
    pixel_size_mm: float
    names: tuple[str, ...]
    values_mm: tuple[float, ...]
    covariance_mm2: tuple[tuple[float, ...], ...]

    def check_pixel_size(self, pixel_size_mm: float) -> None:
        """Raise DataError if the earlier calibration assumed another pixel size."""
        if not np.isclose(pixel_size_mm, self.pixel_size_mm, rtol=1e-6):
            raise DataError(
                f"{self.path}: was calibrated with pixels of {1000.0 * self.pixel_size_mm:g} um, "
                f"not {1000.0 * pixel_size_mm:g} um, so its f_L and B are other lengths. Give "
                "--pixel-size-um as before"
            )

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends."""
        return {
            "source": "earlier optics",
            "names": list(self.names),
            "values_mm": list(self.values_mm),
            "covariance_mm2": [list(row) for row in self.covariance_mm2],
        }

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Return the parameters as priors; a parameter without uncertainty is held fixed."""
        del views, listener
        values = dict(zip(self.names, self.values_mm, strict=True))
        covariance = np.array(self.covariance_mm2)
        sigmas = dict(zip(self.names, np.sqrt(np.diag(covariance)).tolist(), strict=True))
        exact = {name: values[name] for name in self.names if sigmas[name] == 0.0}
        priors = {
            name: Prior(values[name], sigmas[name]) for name in self.names if name not in exact
        }
        if len(priors) == 2:
            # The priors are that of B, and that of f_L given B. Together they have the covariance
            # of the file.
            i, j = self.names.index("f_L"), self.names.index("B")
            slope = float(covariance[i, j] / covariance[j, j])
            given = float(covariance[i, i] - slope * covariance[i, j])
            # For two parameters that are fully correlated, rounding errors could make this variance
            # zero or negative.
            sigma = max(given, 1e-6 * float(covariance[i, i])) ** 0.5
            priors["f_L"] = Prior(values["f_L"], sigma, Follows("B", values["B"], slope))
        return ScaleKnowledge(fixed=exact, priors=priors)


def read_earlier_optics(path: Path, names: Sequence[str] = KNOWN) -> EarlierOptics:
    """Read f_L and B with their covariance from the camera.json of an earlier calibration.

    Raises
    ------
    DataError
        If the file cannot be read, is not metric, or holds no covariance.
    """
    check_names(tuple(names))
    names = tuple(name for name in KNOWN if name in names)
    camera = read_camera(path)
    if camera.scale_source is None:
        raise DataError(f"{path}: was calibrated without a scale, so its B is not in mm")
    if camera.covariance is None:
        raise DataError(
            f"{path}: holds no covariance. To take its values as exact, give "
            f"f_L={camera.parameters.focal_length_mm:.7g},"
            f"B={camera.parameters.array_to_sensor_mm:.7g}"
        )
    places = [PHYSICAL_PARAMETERS.index(name) for name in names]
    covariance = camera.physical_covariance()
    assert covariance is not None
    return EarlierOptics(
        str(path),
        camera.pixel_size_mm,
        names,
        tuple(camera.parameters.as_vector()[places].tolist()),
        tuple(tuple(row) for row in covariance[np.ix_(places, places)].tolist()),
    )
