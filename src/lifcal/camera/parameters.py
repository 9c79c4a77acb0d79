"""Names, units and meanings of the parameters of a camera, in one table."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

NO_SCALE = "no scale"
"""Text shown instead of a unit where a length has no metric meaning."""


@dataclass(frozen=True)
class ParameterKind:
    """Unit and meaning of a parameter.

    Parameters
    ----------
    unit : str
        Unit of the parameter; '' for a pure number.
    meaning : str
    needs_scale : bool
        Whether the value has a meaning only if the scale is known.
    """

    unit: str
    meaning: str
    needs_scale: bool = False


PARAMETERS = {
    "f_L": ParameterKind("mm", "focal length of the main lens", needs_scale=True),
    "b_L0": ParameterKind("mm", "main lens to micro-lens array", needs_scale=True),
    "B": ParameterKind("mm", "micro-lens array to sensor", needs_scale=True),
    "c_x": ParameterKind("px", "principal point, x"),
    "c_y": ParameterKind("px", "principal point, y"),
    "F": ParameterKind("px", "focal length of the totally focused image"),
    "alpha": ParameterKind("", "virtual depth of a point at infinity"),
    "beta": ParameterKind("mm", "virtual depth times depth; carries the scale", needs_scale=True),
    "t_x": ParameterKind("1/px", "tilt of the micro-lens array along x"),
    "t_y": ParameterKind("1/px", "tilt of the micro-lens array along y"),
    "g": ParameterKind("", "strength of the focus-vignetting term"),
}
"""All parameters except the distortion terms, which the distortion model names, and the focal
planes."""


def unit_of(name: str, *, metric: bool = True) -> str:
    """Return the unit of a parameter; '' for pure numbers and names that are not in the table.

    Parameters
    ----------
    name : str
    metric : bool
        False if there is no scale, so that lengths have no unit.
    """
    kind = PARAMETERS.get(name)
    if kind is None:
        return ""
    return NO_SCALE if kind.needs_scale and not metric else kind.unit


def format_value(value: float | None, sigma: float | None) -> str:
    """Return "value ± sigma" with two digits of sigma, or the value alone if sigma is not known."""
    if value is None:
        return "unknown"
    if not sigma or not (math.isfinite(value) and math.isfinite(sigma)):
        return f"{value:.6g}"
    size = max(abs(value), sigma)
    power = math.floor(math.log10(size))
    if -4 < power < 7:
        power = 0
    digits = max(0, 1 - math.floor(math.log10(sigma) - power + 1e-9))
    shown = f"{value / 10.0**power:.{digits}f} ± {sigma / 10.0**power:.{digits}f}"
    return f"({shown}) × 10{_superscript(str(power))}" if power else shown


def format_unit(unit: str) -> str:
    """Return a unit with its powers as superscripts: px⁻² for px^-2."""
    return re.sub(r"\^(-?\d+)", lambda match: _superscript(match.group(1)), unit)


def _superscript(digits: str) -> str:
    return digits.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
