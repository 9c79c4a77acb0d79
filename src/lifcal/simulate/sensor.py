"""The sensor: light to numbers, with shot noise, read noise and quantisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import Float32Array, ImageArray
from lifcal.errors import InputError

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class SensorOptions:
    """What the sensor does.

    Parameters
    ----------
    bits : int
        8 to 16. Above 8 the values fill the upper bits of 16: white is near 65535 at any depth.
    exposure : float
        Part of full scale that white in the middle of a micro image reaches.
    full_well_e : float
        Electrons at full scale; 0 switches shot noise off.
    read_noise_e : float
        Standard deviation, electrons.
    """

    bits: int = 8
    exposure: float = 0.85
    full_well_e: float = 10_000.0
    read_noise_e: float = 12.0

    def __post_init__(self) -> None:
        if not 8 <= self.bits <= 16:
            raise InputError(f"bits is {self.bits}, needs 8 to 16")
        if not 0.0 < self.exposure < 100.0:
            raise InputError(f"exposure is {self.exposure}, needs a positive number below 100")
        if self.full_well_e < 0.0 or self.read_noise_e < 0.0:
            raise InputError(
                f"full_well_e is {self.full_well_e} and read_noise_e {self.read_noise_e}, "
                "need to be zero or positive"
            )


def expose(light: Float32Array, options: SensorOptions, rng: np.random.Generator) -> ImageArray:
    """Return what the sensor records.

    Parameters
    ----------
    light : (height, width) float32
        1 is white in the middle of a micro image.
    options : SensorOptions
    rng : numpy.random.Generator
        Source of the noise; the same state gives the same image.

    Returns
    -------
    (height, width) uint8 or uint16
    """
    steps = (1 << options.bits) - 1
    dtype: type[np.uint8] | type[np.uint16] = np.uint8 if options.bits == 8 else np.uint16
    shift = 0 if options.bits == 8 else 16 - options.bits
    out: ImageArray = np.empty(light.shape, dtype)
    for first in range(0, len(light), _ROWS_AT_ONCE):
        signal = light[first : first + _ROWS_AT_ONCE].astype(np.float64) * options.exposure
        if options.full_well_e > 0.0:
            electrons = rng.poisson(signal * options.full_well_e).astype(np.float64)
            electrons += options.read_noise_e * rng.standard_normal(signal.shape)
            signal = electrons / options.full_well_e
        counts = np.clip(np.rint(signal * steps), 0, steps) * (1 << shift)
        out[first : first + _ROWS_AT_ONCE] = counts.astype(dtype)
    return out
