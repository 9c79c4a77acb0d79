"""Reading images, and writing them atomically (whole or not at all) in common formats."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, ImageArray
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, write_bytes
from lifcal.image_headers import read_header

_FLOAT_TIFF = [cv2.IMWRITE_TIFF_COMPRESSION, 8, 317, 3]
"""Lossless compression of TIFF files: Deflate (8), and the predictor (tag 317) for floating point
(3). Depth maps shrink to about 60 % of their size. The numbers are those of the TIFF standard, for
which older versions of OpenCV have no names."""


def write_png(path: str | Path, image: ImageArray) -> None:
    """Write a gray (height, width) or red-green-blue (height, width, 3) image, 8 or 16 bit."""
    _write(Path(path), ".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 3])


def encode_jpeg(image: npt.NDArray[np.uint8], quality: int = 85) -> bytes:
    """Return a gray or red-green-blue image as the content of a JPEG file."""
    return _encode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])


def encode_png(image: ImageArray) -> bytes:
    """Return a gray or red-green-blue image as the content of a PNG file."""
    return _encode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 6])


def write_float_tiff(path: str | Path, image: Float32Array) -> None:
    """Write a (height, width) float32 image, compressed without loss; NaN is kept."""
    _write(Path(path), ".tiff", image, _FLOAT_TIFF)


def _write(path: Path, suffix: str, image: npt.NDArray[np.generic], options: list[int]) -> None:
    try:
        content = _encode(suffix, image, options)
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    write_bytes(path, content)


def _encode(suffix: str, image: npt.NDArray[np.generic], options: list[int]) -> bytes:
    if image.ndim == 3:
        image = image[:, :, ::-1]  # OpenCV stores blue first
    done, encoded = cv2.imencode(suffix, np.ascontiguousarray(image), options)
    if not done:
        raise InputError(f"OpenCV cannot encode {image.dtype} {image.shape}")
    return encoded.tobytes()


def read_image(path: str | Path) -> npt.NDArray[np.generic]:
    """Return the stored values of a gray (height, width) or red-green-blue image (with axis 3)."""
    path = Path(path)
    return decode_image(path, read_bytes(path, limit=1 << 30))


def decode_image(path: Path, content: bytes) -> npt.NDArray[np.generic]:
    """Decode the content of an image file; `path` is used in error messages only.

    Raises
    ------
    DataError
        If it is no image, or if it is incomplete. (Decoders fill missing parts with gray instead of
        reporting an error.)
    """
    header = read_header(content)
    if header is not None and not header.complete:
        raise DataError(f"{path}: cut off or damaged {header.kind}: {header.problem}")
    image = None
    if content:
        try:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error as error:
            raise DataError(f"{path}: OpenCV cannot decode it: {error.err}") from None
    if image is None:
        raise DataError(f"{path}: not an image that can be read, or cut off")
    if image.ndim == 3 and image.shape[2] >= 3:
        image = np.ascontiguousarray(image[:, :, 2::-1])
    return np.asarray(image)
