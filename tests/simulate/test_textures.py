"""Textures: the same from the same generator, with contrast everywhere and at every scale."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import pytest

from lifcal.errors import InputError
from lifcal.imaging.markers import draw_marker
from lifcal.simulate import textures
from lifcal.simulate.scene import Texture
from lifcal.simulate.textures import MARKER_BLACK, MARKER_WHITE, MarkerPrint, print_markers

RICH = ("noise", "speckle", "plaster", "wood", "page", "brick", "poster", "dots")
SIZE_MM = (300.0, 240.0)
TEXEL_MM = 0.4


@cache
def make(name: str, *, seed: int | None = None, texel_mm: float = TEXEL_MM) -> Texture:
    seed = zlib.crc32(name.encode()) if seed is None else seed
    return getattr(textures, f"make_{name}")(np.random.default_rng(seed), SIZE_MM, texel_mm)


def grey(texture: Texture) -> np.ndarray:
    return texture.albedo.mean(axis=2) / 255.0


def block_contrast(image: np.ndarray, side: int) -> np.ndarray:
    """Standard deviation over mean of the image, in each block."""
    rows, cols = (length // side for length in image.shape)
    blocks = image[: rows * side, : cols * side].reshape(rows, side, cols, side)
    return blocks.std(axis=(1, 3)) / image.mean()


def octave_contrast(image: np.ndarray, wavelengths_mm: tuple[float, ...]) -> list[float]:
    """Contrast in the octave around each wavelength."""
    power = np.abs(np.fft.fft2(image - image.mean())) ** 2 / image.size**2
    down = np.fft.fftfreq(image.shape[0], TEXEL_MM)[:, None]
    along = np.fft.fftfreq(image.shape[1], TEXEL_MM)[None, :]
    octaves = np.log2(np.hypot(down, along).clip(1e-9))
    return [
        float(np.sqrt(power[np.abs(octaves + np.log2(wavelength)) < 0.5].sum()) / image.mean())
        for wavelength in wavelengths_mm
    ]


@pytest.mark.parametrize("name", [*RICH, "paint"])
def test_same_seed_same_texture(name: str) -> None:
    first, again, other = make(name, seed=3), make.__wrapped__(name, seed=3), make(name, seed=4)
    assert first.albedo.shape == (600, 750, 3)
    assert np.array_equal(first.albedo, again.albedo)
    assert not np.array_equal(first.albedo, other.albedo)


@pytest.mark.parametrize("name", RICH)
@pytest.mark.parametrize("texel_mm", [0.35, 1.25])
def test_reflects_neither_too_little_nor_too_much(name: str, texel_mm: float) -> None:
    albedo = make(name, texel_mm=texel_mm).albedo
    assert 0.35 < albedo.mean() / 255.0 < 0.6
    assert np.mean(albedo == 255) < 0.05
    assert np.mean(albedo == 0) < 0.02


@pytest.mark.parametrize("name", RICH)
@pytest.mark.parametrize("texel_mm", [0.35, 1.25])
def test_has_contrast_nearly_everywhere(name: str, texel_mm: float) -> None:
    # Blocks of 12 texels: about 4 mm on a desk, 15 mm in a room.
    contrast = block_contrast(grey(make(name, texel_mm=texel_mm)), 12)
    assert np.quantile(contrast, 0.01) > 0.03
    assert np.median(contrast) > 0.1


@pytest.mark.parametrize("name", RICH)
def test_has_structure_at_every_scale(name: str) -> None:
    assert min(octave_contrast(grey(make(name)), (2.0, 4.0, 10.0, 30.0, 80.0))) > 0.04


@pytest.mark.parametrize("name", RICH)
def test_does_not_repeat_itself(name: str) -> None:
    image = grey(make(name))
    spectrum = np.fft.fft2(image - image.mean())
    correlation = np.fft.ifft2(np.abs(spectrum) ** 2).real
    correlation /= correlation[0, 0]
    # Away from zero shift. A repeated print would reach 1; bricks, lines and grids stay well below.
    reach = round(25.0 / TEXEL_MM)
    rows, cols = (np.minimum(np.arange(n), n - np.arange(n)) for n in image.shape)
    far = np.maximum(rows[:, None], cols[None, :]) > reach
    assert correlation[far].max() < 0.6


def test_checkers_catch_a_flat_and_a_repeated_print() -> None:
    paint = grey(make("paint"))
    assert np.median(block_contrast(paint, 12)) < 0.03
    assert max(octave_contrast(paint, (2.0, 4.0, 10.0, 30.0, 80.0))) < 0.04
    tiled = np.tile(grey(make("noise"))[:100, :125], (6, 6))
    spectrum = np.fft.fft2(tiled - tiled.mean())
    correlation = np.fft.ifft2(np.abs(spectrum) ** 2).real
    assert correlation[100, 0] > 0.99 * correlation[0, 0]


def test_paint_has_less_than_one_percent_contrast() -> None:
    albedo = make("paint").albedo.astype(float)
    contrast = albedo.std(axis=(0, 1)) / albedo.mean(axis=(0, 1))
    assert (contrast < 0.01).all()
    assert (contrast > 0.0).any()
    assert 0.35 < albedo.mean() / 255.0 < 0.6


def test_markers_are_printed_to_the_texel() -> None:
    plain = make("noise")
    printed = print_markers(plain, [MarkerPrint(7, row=40, col=100, cell_texels=5)]).albedo
    square = printed[40:80, 100:140]
    wanted = np.where(draw_marker(7, 5) == 255, MARKER_WHITE, MARKER_BLACK)
    assert np.array_equal(square, np.repeat(wanted[..., None], 3, axis=2))
    margin = np.ones((50, 50), dtype=bool)
    margin[5:45, 5:45] = False
    assert (printed[35:85, 95:145][margin] == MARKER_WHITE).all()
    changed = np.any(printed != plain.albedo, axis=2)
    changed[35:85, 95:145] = False
    assert not changed.any()


@pytest.mark.parametrize(("row", "col"), [(3, 100), (100, 3), (556, 100), (100, 706)])
def test_a_marker_must_lie_on_the_sheet_with_its_margin(row: int, col: int) -> None:
    with pytest.raises(InputError, match="marker 7 with its margin"):
        print_markers(make("noise"), [MarkerPrint(7, row, col, 5)])


@pytest.mark.parametrize(
    ("size_mm", "texel_mm"), [((0.0, 10.0), 1.0), ((10.0, -1.0), 1.0), ((10.0, 10.0), 0.0)]
)
def test_sizes_must_be_positive(size_mm: tuple[float, float], texel_mm: float) -> None:
    with pytest.raises(InputError, match="need positive numbers"):
        textures.make_noise(np.random.default_rng(0), size_mm, texel_mm)


@pytest.mark.parametrize("name", [*RICH, "paint"])
def test_a_texture_may_be_one_texel_thin(name: str) -> None:
    maker = getattr(textures, f"make_{name}")
    assert maker(np.random.default_rng(0), (20.0, 0.5), 1.0).albedo.shape == (1, 20, 3)
