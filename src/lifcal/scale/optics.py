"""Scale from known optics: f_L and B of an earlier calibration of the same camera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lifcal.errors import ConfigError, InputError
from lifcal.listener import Listener
from lifcal.scale.source import ScaleKnowledge, ScaleViews

KNOWN = ("f_L", "B")
"""Parameters that must be known, both, for a recalibration."""


@dataclass(frozen=True, eq=False)
class KnownOptics:
    """f_L and B in mm: recalibration.

    Parameters
    ----------
    values : mapping of str to float
        Both of them.
    """

    values: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if name not in KNOWN:
                raise ConfigError.unknown("parameter of --known", name, KNOWN)
            if not (np.isfinite(value) and value > 0.0):
                raise InputError(f"known {name} is {value}, needs a positive number of mm")
        if set(self.values) != set(KNOWN):
            raise InputError("recalibration needs both f_L and B, as in f_L=16.7,B=0.38")

    def describe(self) -> dict[str, Any]:
        """Return what the result depends on."""
        return {"source": "known optics", **self.values}

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Hold both in the adjustment."""
        del views, listener
        return ScaleKnowledge(fixed=dict(self.values))
