"""Random textures of printed surfaces, with detail at every scale and without repetition.

Every maker takes a random generator, a size in mm and a texel size in mm, draws its numbers from
the generator alone, and returns a `Texture` whose columns span the width. Internally, a surface is
a field of noise ("level", with zero mean and unit variance) and a map of regions; each region
converts levels to colors by its own ramp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

from lifcal.arrays import Float32Array, FloatArray
from lifcal.errors import InputError
from lifcal.imaging.markers import CELLS_PER_SIDE, draw_marker
from lifcal.simulate.scene import Texture

MARKER_BLACK = 12
MARKER_WHITE = 222

_COARSEST_MM = 160.0
_FINEST_MM = 1.0
_FINEST_TEXELS = 3.0
_LEVEL_SCALE = 44.0
_REGION_SHRINK = 8

_Regions = npt.NDArray[np.uint8]
_Ramp = tuple[float, float]
"""Reflectance (mean over the colors) at the lowest and at the highest level."""


@dataclass(frozen=True)
class MarkerPrint:
    """Position and size of a marker printed on a texture, in whole texels.

    Parameters
    ----------
    id : int
        Number of the marker in the dictionary DICT_6X6_250.
    row, col : int
        Upper left texel of the black square.
    cell_texels : int
        Side of one of the eight by eight cells.
    """

    id: int
    row: int
    col: int
    cell_texels: int

    @property
    def side_texels(self) -> int:
        """Side of the black square."""
        return CELLS_PER_SIDE * self.cell_texels


def make_noise(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make color noise with a wide spectrum, with patches of different tint.

    Parameters
    ----------
    rng : numpy.random.Generator
    size_mm : (width, height)
    texel_mm : float
        Size of a texel; it is rounded so that a whole number of texels covers the size.

    Returns
    -------
    Texture
    """
    shape = _texture_shape(size_mm, texel_mm)
    level = _noise(rng, shape, texel_mm)
    regions = _patches(rng, shape, texel_mm, n_regions=3)
    return _colour(rng, level, regions, ((0.04, 0.74), (0.08, 0.86), (0.14, 0.92)), 0.35)


def make_speckle(
    rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float
) -> Texture:
    """Make dark and bright specks on noise, like terrazzo. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    level, specks = _noise_and_specks(rng, shape, texel_mm, 14.0 * texel_mm)
    regions = np.zeros(shape, dtype=np.uint8)
    regions[specks > 1.1] = 1
    regions[specks < -1.1] = 2
    return _colour(rng, level, regions, ((0.12, 0.84), (0.45, 1.0), (0.0, 0.4)), 0.3)


def make_plaster(
    rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float
) -> Texture:
    """Make rough plaster: nearly gray noise with pits. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    level, pits = _noise_and_specks(rng, shape, texel_mm, 24.0 * texel_mm)
    regions = (pits < -1.4).astype(np.uint8)
    return _colour(rng, level, regions, ((0.1, 0.94), (0.02, 0.5)), 0.12)


def make_wood(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make planks with grain along the columns' direction. Parameters as in `make_noise`.

    The texture also varies along the grain, so that features can be located along a plank.
    """
    shape = _texture_shape(size_mm, texel_mm)
    level = _noise(rng, shape, texel_mm, grain=9.0)
    regions = np.zeros(shape, dtype=np.uint8)
    row = 0
    while row < shape[0]:
        height = max(round(rng.uniform(90.0, 150.0) / texel_mm), 4)
        regions[row : row + height] = rng.integers(0, 3)
        regions[row : row + max(round(1.5 / texel_mm), 1)] = 3
        row += height
    ramps = ((0.06, 0.8), (0.1, 0.9), (0.04, 0.7), (0.02, 0.35))
    return _colour(rng, level, regions, ramps, 0.3, hue_rad=0.5)


def make_page(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make a page of text-like lines of irregular blobs. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    level, blobs = _noise_and_specks(rng, shape, texel_mm, 8.0 * texel_mm)
    ink = np.zeros(shape, dtype=np.bool_)
    margin = max(round(8.0 / texel_mm), 4)
    row = margin
    while row < shape[0] - margin:
        scale = 2.2 if rng.random() < 0.12 else 1.0
        height = max(round(scale * rng.uniform(3.6, 4.8) / texel_mm), 8)
        _set_words(rng, ink[row : min(row + height, shape[0] - margin)], margin, height)
        row += round(1.6 * height)
    ink &= blobs > -0.25
    regions = ink.astype(np.uint8)
    return _colour(rng, level, regions, ((0.4, 0.86), (0.0, 0.22)), 0.12)


def make_brick(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make a brick wall with uneven joints and tones. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    level = _noise(rng, shape, texel_mm)
    regions = np.zeros(shape, dtype=np.uint8)
    joint = max(round(9.0 / texel_mm), 2)
    row = -round(rng.uniform(0.0, 60.0) / texel_mm)
    while row < shape[0]:
        height = max(round(rng.uniform(56.0, 72.0) / texel_mm), 6)
        course = np.zeros(shape[1], dtype=np.uint8)
        col = -round(rng.uniform(0.0, 200.0) / texel_mm)
        while col < shape[1]:
            width = max(round(rng.uniform(110.0, 230.0) / texel_mm), 6)
            course[max(col, 0) : max(col + width - joint, 0)] = rng.integers(1, 5)
            col += width
        regions[max(row, 0) : max(row + height - joint, 0)] = course
        row += height
    ramps = ((0.25, 0.95), (0.05, 0.66), (0.1, 0.8), (0.02, 0.6), (0.16, 0.92))
    return _colour(rng, level, regions, ramps, 0.3, hue_rad=0.2)


def make_poster(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make bars, discs and boxes of many colors under noise. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    level = _noise(rng, shape, texel_mm)
    regions = np.zeros(shape, dtype=np.uint8)
    n_colours = 7
    extent = float(min(shape))
    for _ in range(40):
        center = rng.uniform((0.0, 0.0), shape)
        half = rng.uniform(0.03, 0.16, size=2) * extent
        if (kind := rng.integers(0, 3)) == 2:
            half = np.array([0.012 * extent + 1.0, rng.uniform(0.1, 0.4) * extent])
        angle = rng.uniform(0.0, np.pi)
        _fill_shape(regions, center, half, angle, int(rng.integers(1, n_colours)), disc=kind == 1)
    dark = rng.permutation(np.linspace(0.0, 0.3, n_colours))
    ramps = tuple((float(low), float(low) + 0.58) for low in dark)
    return _colour(rng, level, regions, ramps, 0.5)


def make_dots(
    rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float, pitch_mm: float = 40.0
) -> Texture:
    """Make a grid of dark and bright dots, each with its own radius, offset and core.

    Parameters
    ----------
    rng, size_mm, texel_mm
        As in `make_noise`.
    pitch_mm : float
        Mean distance of neighboring dots.
    """
    shape = _texture_shape(size_mm, texel_mm)
    level = _noise(rng, shape, texel_mm)
    regions = np.zeros(shape, dtype=np.uint8)
    pitch = pitch_mm / texel_mm
    for row in np.arange(0.5 * pitch, shape[0], pitch):
        for col in np.arange(0.5 * pitch, shape[1], pitch):
            center = np.array([row, col]) + rng.uniform(-0.14, 0.14, size=2) * pitch
            radius = rng.uniform(0.12, 0.33) * pitch
            tone = int(rng.integers(1, 3))
            _fill_shape(regions, center, np.full(2, radius), 0.0, tone, disc=True)
            core = rng.uniform(0.25, 0.6) * radius
            shift = rng.uniform(-0.3, 0.3, size=2) * radius
            if rng.random() < 0.6:
                _fill_shape(regions, center + shift, np.full(2, core), 0.0, 3 - tone, disc=True)
    return _colour(rng, level, regions, ((0.15, 0.8), (0.0, 0.22), (0.6, 1.0)), 0.25)


def make_paint(rng: np.random.Generator, size_mm: tuple[float, float], texel_mm: float) -> Texture:
    """Make paint with a contrast below 1 %, too little to match. Parameters as in `make_noise`."""
    shape = _texture_shape(size_mm, texel_mm)
    base = rng.uniform(0.42, 0.58) * 255.0 * (1.0 + 0.08 * rng.uniform(-1.0, 1.0, size=3))
    grain = rng.uniform(-0.6, 0.6, size=(*shape, 1))
    return Texture(np.floor(base + grain + 0.5).astype(np.uint8))


def print_markers(texture: Texture, prints: Sequence[MarkerPrint]) -> Texture:
    """Print markers on a texture, each with a white margin of one cell.

    Raises
    ------
    InputError
        If a marker and its margin do not lie on the texture.
    """
    albedo = texture.albedo.copy()
    for item in prints:
        margin, side = item.cell_texels, item.side_texels
        top, left = item.row - margin, item.col - margin
        bottom, right = item.row + side + margin, item.col + side + margin
        if top < 0 or left < 0 or bottom > albedo.shape[0] or right > albedo.shape[1]:
            raise InputError(
                f"marker {item.id} with its margin covers rows {top} to {bottom} and columns "
                f"{left} to {right}, but the texture has {albedo.shape[0]} rows and "
                f"{albedo.shape[1]} columns. Move it, or make the texture larger."
            )
        albedo[top:bottom, left:right] = MARKER_WHITE
        drawn = np.where(draw_marker(item.id, item.cell_texels) > 127, MARKER_WHITE, MARKER_BLACK)
        albedo[item.row : item.row + side, item.col : item.col + side] = drawn[..., None]
    return Texture(albedo)


def _texture_shape(size_mm: tuple[float, float], texel_mm: float) -> tuple[int, int]:
    width, height = size_mm
    if not (width > 0 and height > 0 and texel_mm > 0):
        raise InputError(f"size_mm is {size_mm} and texel_mm is {texel_mm}, need positive numbers")
    return max(round(height / texel_mm), 1), max(round(width / texel_mm), 1)


def _white_spectrum(
    rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.complex64], tuple[int, int]]:
    """Return the Fourier transform of white noise of at least this shape, and its actual shape."""
    rows, cols = (int(fft.next_fast_len(max(length, 16), real=True)) for length in shape)
    white = rng.integers(-128, 128, size=(rows, cols), dtype=np.int8).astype(np.float32)
    spectrum: npt.NDArray[np.complex64] = fft.rfft2(white, overwrite_x=True)
    return spectrum, (rows, cols)


def _frequencies(shape: tuple[int, int], texel_mm: float) -> tuple[Float32Array, Float32Array]:
    """Return the squared frequencies down the rows (r, 1) and along the columns (1, c), 1/mm^2."""
    down = fft.fftfreq(shape[0], d=texel_mm).astype(np.float32)[:, None] ** 2
    along = fft.rfftfreq(shape[1], d=texel_mm).astype(np.float32)[None, :] ** 2
    return down, along


def _wide_filter(shape: tuple[int, int], texel_mm: float, grain: float = 1.0) -> Float32Array:
    """Return the amplitude 1/f between the finest (raised) and the coarsest wavelength.

    If `grain` is above 1, some of the structures are longer along the columns by this factor.
    """
    down, along = _frequencies(shape, texel_mm)
    finest = max(_FINEST_MM, _FINEST_TEXELS * texel_mm)
    smooth = np.exp(-0.5 * finest**2 * down) * np.exp(-0.5 * finest**2 * along)
    floor = np.float32(max(_COARSEST_MM, 100.0 * texel_mm) ** -2)
    amplitude = 1.0 / np.sqrt(down + along + floor) + np.float32(0.5 * finest)
    if grain > 1.0:
        long = np.float32(grain**2) * along
        amplitude += np.float32(0.6 * grain) / np.sqrt(down + long + floor)
    amplitude *= smooth
    amplitude[0, 0] = 0.0
    return np.asarray(amplitude, dtype=np.float32)


def _band_filter(shape: tuple[int, int], texel_mm: float, wavelength_mm: float) -> Float32Array:
    """Return an amplitude of the form f exp(-f^2 ...), which is largest at the wavelength."""
    down, along = _frequencies(shape, texel_mm)
    width = np.float32(0.5 * wavelength_mm**2)
    amplitude = np.sqrt(down + along) * np.exp(-width * down) * np.exp(-width * along)
    return np.asarray(amplitude, dtype=np.float32)


def _filtered(
    spectrum: npt.NDArray[np.complex64],
    amplitude: Float32Array,
    full_shape: tuple[int, int],
    shape: tuple[int, int],
) -> Float32Array:
    field = fft.irfft2(spectrum * amplitude, s=full_shape, overwrite_x=True)
    field = np.ascontiguousarray(field[: shape[0], : shape[1]], dtype=np.float32)
    # Estimate the standard deviation from every 7th row, which is accurate enough.
    field /= np.float32(max(float(field[::7].std()), 1e-12))
    return field


def _noise(
    rng: np.random.Generator, shape: tuple[int, int], texel_mm: float, grain: float = 1.0
) -> Float32Array:
    spectrum, full_shape = _white_spectrum(rng, shape)
    return _filtered(spectrum, _wide_filter(full_shape, texel_mm, grain), full_shape, shape)


def _noise_and_specks(
    rng: np.random.Generator, shape: tuple[int, int], texel_mm: float, speck_mm: float
) -> tuple[Float32Array, Float32Array]:
    """Return noise of a wide spectrum and, from the same numbers, noise of one wavelength."""
    spectrum, full_shape = _white_spectrum(rng, shape)
    level = _filtered(spectrum, _wide_filter(full_shape, texel_mm), full_shape, shape)
    band = _band_filter(full_shape, texel_mm, speck_mm)
    return level, _filtered(spectrum, band, full_shape, shape)


def _patches(
    rng: np.random.Generator, shape: tuple[int, int], texel_mm: float, n_regions: int
) -> _Regions:
    """Divide the surface into patches of 10 to 100 mm, numbered 0 to n_regions - 1."""
    coarse_shape = (shape[0] // _REGION_SHRINK + 2, shape[1] // _REGION_SHRINK + 2)
    coarse = _noise(rng, coarse_shape, texel_mm * _REGION_SHRINK)
    edges = np.quantile(coarse, np.linspace(0.0, 1.0, n_regions + 1)[1:-1])
    fine = _enlarge(coarse)[: shape[0], : shape[1]]
    regions = np.zeros(shape, dtype=np.uint8)
    for edge in edges:
        regions += fine > edge
    return regions


def _enlarge(coarse: Float32Array) -> Float32Array:
    """Enlarge an image by the factor `_REGION_SHRINK` along both axes, by interpolation."""
    rows, cols = (np.array(coarse.shape) - 1) * _REGION_SHRINK
    tall = np.empty((rows, coarse.shape[1]), dtype=np.float32)
    fine = np.empty((rows, cols), dtype=np.float32)
    weights = (np.arange(_REGION_SHRINK) / _REGION_SHRINK).astype(np.float32)
    for step, weight in enumerate(weights):
        tall[step::_REGION_SHRINK] = coarse[:-1] + weight * (coarse[1:] - coarse[:-1])
    slope = np.diff(tall, axis=1)
    for step, weight in enumerate(weights):
        fine[:, step::_REGION_SHRINK] = tall[:, :-1] + weight * slope
    return fine


def _set_words(
    rng: np.random.Generator, line: npt.NDArray[np.bool_], margin: int, height: int
) -> None:
    """Set the texels of one line of text to True, except for gaps between words and letters."""
    col = margin
    end = max(line.shape[1] - margin, margin)
    if rng.random() < 0.15:
        end = margin + round(rng.uniform(0.3, 0.8) * (end - margin))
    while col < end:
        for _ in range(int(rng.integers(2, 10))):
            width = max(round(height * rng.uniform(0.45, 0.8)), 2)
            top = round(0.25 * height) if rng.random() < 0.6 else 0
            line[top:, col : min(col + width, end)] = True
            col += width + max(round(0.12 * height), 1)
        col += max(round(0.5 * height), 2)


def _fill_shape(
    regions: _Regions,
    center: FloatArray,
    half: FloatArray,
    angle_rad: float,
    region: int,
    *,
    disc: bool,
) -> None:
    """Fill an ellipse or a rectangle, given by its center, half axes (row, col) and rotation."""
    reach = float(np.hypot(*half)) + 1.0
    top, left = np.maximum(np.floor(center - reach), 0.0).astype(int)
    bottom, right = np.maximum(np.ceil(center + reach), 0.0).astype(int)
    window = regions[top:bottom, left:right]
    down = np.arange(top, top + window.shape[0])[:, None] + 0.5 - center[0]
    along = np.arange(left, left + window.shape[1])[None, :] + 0.5 - center[1]
    cos, sin = np.cos(angle_rad), np.sin(angle_rad)
    across = (cos * down - sin * along) / half[0]
    length = (sin * down + cos * along) / half[1]
    inside = across**2 + length**2 <= 1.0 if disc else (abs(across) <= 1.0) & (abs(length) <= 1.0)
    window[inside] = region


def _colour(
    rng: np.random.Generator,
    level: Float32Array,
    regions: _Regions,
    ramps: Sequence[_Ramp],
    saturation: float,
    hue_rad: float | None = None,
) -> Texture:
    """Convert levels to colors, by the ramp of their region. This overwrites `level`.

    The brightness increases along a ramp, so that the contrast of the levels remains in a gray
    image; the hue changes along it too. Without `hue_rad` the hue is random.
    """
    table = np.zeros((len(ramps), 256, 4), dtype=np.uint8)
    position = np.linspace(0.0, 1.0, 256)[:, None]
    channels = 2.0 * np.pi / 3.0 * np.arange(3)
    hue = rng.uniform(0.0, 2.0 * np.pi) if hue_rad is None else hue_rad
    spread = np.pi if hue_rad is None else 0.2
    for index, (low, high) in enumerate(ramps):
        turn = hue + rng.uniform(-spread, spread) + rng.uniform(-1.0, 1.0) * position
        tint = 1.0 + saturation * rng.uniform(0.6, 1.0) * np.cos(turn - channels)
        colour = (low + (high - low) * position) * tint
        table[index, :, :3] = np.clip(255.0 * colour, 0.0, 255.0).astype(np.uint8)
    packed = table.reshape(-1, 4).view(np.uint32)[:, 0]
    level *= np.float32(_LEVEL_SCALE)
    level += np.float32(128.0)
    np.clip(level, 0.0, 255.0, out=level)
    index16 = level.astype(np.uint16)
    index16 += regions.astype(np.uint16) << np.uint16(8)
    albedo = packed[index16].view(np.uint8).reshape(*level.shape, 4)
    return Texture(np.ascontiguousarray(albedo[..., :3]))
