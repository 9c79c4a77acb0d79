"""The sensor: light to numbers, with dust, noise, gamma coding, quantization and compression."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, ImageArray
from lifcal.errors import InputError
from lifcal.imaging.files import decode_image, encode_jpeg

_ROWS_AT_ONCE = 256
JPEG_QUALITY = 90
"""About the default quality of cameras that write JPEG files, or slightly less."""
_VIDEO_QUALITY = 75
"""JPEG quality that sets the coarseness of the quantization. It leaves a peak signal-to-noise ratio
of 37 dB on raws of `r5-16mm`, which is that of video of ordinary quality."""
_VIDEO_RANGE = (16, 235)
"""Luma of black and white in video of limited range (ITU-R BT.601 and BT.709)."""


@dataclass(frozen=True)
class SensorOptions:
    """Exposure, noise and quantization of the sensor.

    Parameters
    ----------
    bits : int
        Bit depth, 8 to 16. Above 8, values are stored in the upper bits of 16, so white is near
        65535 at any depth.
    exposure : float
        Value of white in the middle of a micro image, as a fraction of full scale.
    full_well_e : float
        Electrons at full scale; 0 switches shot noise off.
    read_noise_e : float
        Standard deviation of the read noise in electrons.
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


@dataclass(frozen=True)
class Speck:
    """A dust speck that absorbs light, with a Gaussian shadow.

    Parameters
    ----------
    x_px, y_px : float
        Its middle on the raw image.
    radius_px : float
        Standard deviation of the Gaussian that describes its shadow.
    absorbed : float
        Fraction of the light that it absorbs in its middle, 0 to 1.
    """

    x_px: float
    y_px: float
    radius_px: float
    absorbed: float


def draw_dust(
    n_specks: int, image_size: tuple[int, int], rng: np.random.Generator
) -> tuple[Speck, ...]:
    """Return dust specks at random positions.

    Their shadows of 1 to 6 px absorb 10 to 70 % of the light, as those of grains of 10 to 50 um on
    the cover glass of a sensor do.
    """
    width, height = image_size
    return tuple(
        Speck(
            float(rng.uniform(-0.5, width - 0.5)),
            float(rng.uniform(-0.5, height - 0.5)),
            float(np.exp(rng.uniform(np.log(1.0), np.log(6.0)))),
            float(rng.uniform(0.1, 0.7)),
        )
        for _ in range(n_specks)
    )


def shade_by_dust(light: Float32Array, specks: tuple[Speck, ...]) -> Float32Array:
    """Return the light that passes the dust, (height, width)."""
    out = light.copy()
    height, width = light.shape
    for speck in specks:
        reach = 4.0 * speck.radius_px
        x0, x1 = max(0, int(speck.x_px - reach)), min(width, int(speck.x_px + reach) + 1)
        y0, y1 = max(0, int(speck.y_px - reach)), min(height, int(speck.y_px + reach) + 1)
        x, y = np.arange(x0, x1) - speck.x_px, np.arange(y0, y1) - speck.y_px
        square = (x[None, :] ** 2 + y[:, None] ** 2) / speck.radius_px**2
        out[y0:y1, x0:x1] *= (1.0 - speck.absorbed * np.exp(-0.5 * square)).astype(np.float32)
    return out


def compress(raw: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.uint8]:
    """Return an image after compression and decompression.

    Parameters
    ----------
    raw : (height, width) uint8
    kind : str
        'none', 'jpeg' or 'video', see `Imperfections`. Video has no motion compensation here: each
        frame is coded on its own.
    """
    if kind == "none":
        return raw
    if kind == "jpeg":
        return _through_jpeg(raw, JPEG_QUALITY)
    low, high = _VIDEO_RANGE
    luma = np.rint(low + raw.astype(np.float64) * ((high - low) / 255.0)).astype(np.uint8)
    luma = _through_jpeg(luma, _VIDEO_QUALITY)
    back = (luma.astype(np.float64) - low) * (255.0 / (high - low))
    return np.clip(np.rint(back), 0, 255).astype(np.uint8)


def _through_jpeg(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    return np.asarray(decode_image(Path("raw.jpg"), encode_jpeg(image, quality)), np.uint8)


def expose(
    light: Float32Array,
    options: SensorOptions,
    rng: np.random.Generator,
    *,
    gamma: float = 1.0,
) -> ImageArray:
    """Return the image that the sensor records.

    Parameters
    ----------
    light : (height, width) float32
        Light on each pixel; 1 is white in the middle of a micro image.
    options : SensorOptions
    rng : numpy.random.Generator
        Source of the noise; the same state gives the same image.
    gamma : float
        Values are recorded to the power of 1 / gamma, after the noise and before quantization.

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
        if gamma != 1.0:
            signal = np.maximum(signal, 0.0) ** (1.0 / gamma)
        counts = np.clip(np.rint(signal * steps), 0, steps) * (1 << shift)
        out[first : first + _ROWS_AT_ONCE] = counts.astype(dtype)
    return out
