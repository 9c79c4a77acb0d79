"""Comparison of intrinsics with the truth, in their units, in per cent and in sigmas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import (
    ARRAY_PARAMETERS,
    PHYSICAL_PARAMETERS,
    Distortion,
    PlenopticCamera,
    unit_of,
)

DISTORTION = "distortion"
TILT_ANGLES = ("tilt_x", "tilt_y")
"""Angles of the micro-lens array against the sensor, as in `ArrayTilt.from_angles`."""
_METRIC = ("f_L", "b_L0", "B", "c_x", "c_y", "F", "alpha", "beta")
_WITHOUT_SCALE = ("F", "c_x", "c_y", "alpha")
_HELD = 1e-10
"""A parameter whose sigma is below this fraction of its value was held fixed."""
_GRID = 129


@dataclass(frozen=True)
class ParameterComparison:
    """Comparison of one parameter with the truth.

    Parameters
    ----------
    name, unit : str
    estimated, true : float
        Values of the parameter; for the distortion, the largest displacement over the image.
    error : float
        Estimated minus true value. For the distortion, the largest difference of the displacements.
    percent : float or None
        Error in per cent of the true value; None for the principal point and the distortion, which
        have no natural zero.
    sigma : float or None
        Standard deviation; None if it is not known or the parameter was held fixed.
    error_sigmas : float or None
    within_2_sigma : bool or None
    physical : float or None
        Value of the simulated optics where `true` is the best fit of the camera model to them.
    """

    name: str
    unit: str
    estimated: float
    true: float
    error: float
    percent: float | None
    sigma: float | None
    error_sigmas: float | None
    within_2_sigma: bool | None
    physical: float | None = None


def compare_parameters(
    camera: PlenopticCamera,
    truth: PlenopticCamera,
    *,
    metric: bool,
    physical: PlenopticCamera | None = None,
) -> tuple[ParameterComparison, ...]:
    """Compare all parameters; without a scale, only F, c, alpha and the distortion.

    Parameters
    ----------
    camera, truth : PlenopticCamera
    metric : bool
        Whether the camera has a scale.
    physical : PlenopticCamera, optional
        The simulated optics, where `truth` is the best fit of the camera model to them.
    """
    estimated, true, sigmas = _values(camera), _values(truth), camera.sigmas()
    beside = {} if physical is None else _values(physical)
    rows = []
    for name in _METRIC if metric else _WITHOUT_SCALE:
        error = estimated[name] - true[name]
        relative = name not in ("c_x", "c_y") and true[name] != 0.0
        sigma = sigmas.get(name)
        if sigma is not None and not sigma > _HELD * abs(estimated[name]):
            sigma = None
        rows.append(
            ParameterComparison(
                name,
                unit_of(name),
                estimated[name],
                true[name],
                error,
                100.0 * error / true[name] if relative else None,
                sigma,
                None if sigma is None else error / sigma,
                None if sigma is None else abs(error) < 2.0 * sigma,
                beside.get(name),
            )
        )
    rows += _compare_tilts(camera, truth)
    ours, theirs = _displacements(camera), _displacements(truth)
    rows.append(
        ParameterComparison(
            DISTORTION,
            "px",
            _largest(ours),
            _largest(theirs),
            _largest(ours - theirs),
            None,
            None,
            None,
            None,
        )
    )
    return tuple(rows)


def _compare_tilts(camera: PlenopticCamera, truth: PlenopticCamera) -> list[ParameterComparison]:
    """Compare the array's angles, where one of the cameras has a tilt."""
    if camera.tilt is None and truth.tilt is None:
        return []
    (estimated, sigmas), (true, _) = camera.tilt_angles_deg(), truth.tilt_angles_deg()
    rows = []
    for i, name in enumerate(TILT_ANGLES):
        error = float(estimated[i] - true[i])
        sigma = None if sigmas is None or sigmas[i] == 0.0 else float(sigmas[i])
        rows.append(
            ParameterComparison(
                name,
                "deg",
                float(estimated[i]),
                float(true[i]),
                error,
                None,
                sigma,
                None if sigma is None else error / sigma,
                None if sigma is None else abs(error) < 2.0 * sigma,
            )
        )
    return rows


def compute_error_squares(
    rows: tuple[ParameterComparison, ...], camera: PlenopticCamera, *, metric: bool
) -> tuple[float | None, float | None]:
    """Return the mean square of the errors in sigmas, without and with their correlations.

    The mean is over f_L, b_L0, B, c_x and c_y, or, without a scale, over F, c_x, c_y and alpha;
    parameters that were held fixed are left out. Both results are about 1 if the sigmas are right.
    The second, e^T C^-1 e / n, also reveals an error in a combination of parameters that is better
    determined than each of them.
    """
    order = PHYSICAL_PARAMETERS if metric else ARRAY_PARAMETERS
    by_name = {row.name: row for row in rows if row.name in order and row.sigma is not None}
    covariance = camera.physical_covariance() if metric else camera.covariance
    if not by_name or covariance is None:
        return None, None
    names = [name for name in order if name in by_name]
    normalised = np.array([by_name[name].error_sigmas for name in names], np.float64)
    chosen = [order.index(name) for name in names]
    sigma = np.sqrt(np.diag(covariance))[chosen]
    correlation = covariance[np.ix_(chosen, chosen)] / sigma[:, None] / sigma
    # If parameters were held fixed, others may be exactly correlated; such combinations are left
    # out.
    values, vectors = np.linalg.eigh(correlation)
    known = values > 1e-9
    whitened = (vectors.T @ normalised)[known] / np.sqrt(values[known])
    return float(np.mean(normalised**2)), float(np.mean(whitened**2))


def find_missing_terms(estimated: Distortion, true: Distortion) -> str:
    """Return a text naming terms of the true distortion that were not estimated, or its model.

    The text is empty if there are none.
    """
    needed = [name for name in true.parameter_names() if getattr(true, name) != 0.0]
    if needed and type(estimated) is not type(true):
        return f"of the model {true.name!r}"
    return ", ".join(name for name in needed if getattr(estimated, name) == 0.0)


def _values(camera: PlenopticCamera) -> dict[str, float]:
    return dict(
        zip(
            (*PHYSICAL_PARAMETERS, *ARRAY_PARAMETERS),
            (*camera.parameters.as_vector().tolist(), *camera.array.as_vector().tolist()),
            strict=True,
        )
    )


def _displacements(camera: PlenopticCamera) -> FloatArray:
    """Return the displacement by the distortion at a grid of recorded pixels, (n, 2)."""
    width, height = camera.image_size
    xs, ys = np.meshgrid(np.linspace(0, width - 1, _GRID), np.linspace(0, height - 1, _GRID))
    recorded = np.column_stack([xs.ravel(), ys.ravel()])
    return recorded - camera.distortion.undistort(recorded, camera.principal_point_px)


def _largest(displacements: FloatArray) -> float:
    lengths = np.hypot(displacements[:, 0], displacements[:, 1])
    return float(np.max(lengths, where=np.isfinite(lengths), initial=0.0))
