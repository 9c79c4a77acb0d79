"""Headers of image files, and whether a file is complete.

Decoders fill missing parts with gray without an error, so a file that was cut off while it was
copied would be accepted. The headers also give sizes without decoding.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_TIFF_LENGTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 16: 8}


class ImageHeader(NamedTuple):
    """Format in words, size in px, bits per channel, and whether the file is complete."""

    kind: str
    width: int
    height: int
    bits: int
    complete: bool
    problem: str = ""


def read_header(content: bytes) -> ImageHeader | None:
    """Return the header of a PNG, JPEG, BMP or TIFF file; None for other files.

    A file whose header itself is cut off has size 0.
    """
    readers = (
        (_PNG[:4], _read_png),
        (b"\xff\xd8", _read_jpeg),
        (b"BM", _read_bmp),
        (b"II*\x00", _read_tiff),
        (b"MM\x00*", _read_tiff),
    )
    for start, reader in readers:
        if content.startswith(start):
            try:
                return reader(content)
            except (struct.error, IndexError):
                name = reader.__name__.removeprefix("_read_").upper()
                return ImageHeader(name, 0, 0, 0, False, "its header is cut off")
    return None


def _read_png(content: bytes) -> ImageHeader:
    width, height, depth, color = struct.unpack(">IIBB", content[16:26])
    bits = 8 if color == 3 else max(8, depth)  # a palette has 8-bit colors
    at = len(_PNG)
    problem = f"it ends after {len(content)} bytes, before its end mark"
    while at + 12 <= len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        end = at + 12 + length
        if end > len(content):
            break
        check = struct.unpack(">I", content[end - 4 : end])[0]
        if zlib.crc32(content[at + 4 : end - 4]) != check:
            problem = f"its {kind.decode('latin-1')} block at byte {at} is damaged"
            break
        if kind == b"IEND":
            return ImageHeader("PNG", width, height, bits, True)
        at = end
    return ImageHeader("PNG", width, height, bits, False, problem)


def _read_jpeg(content: bytes) -> ImageHeader:
    width = height = bits = 0
    at = 2
    while at + 4 <= len(content):
        if content[at] != 0xFF:
            at += 1
            continue
        marker = content[at + 1]
        if marker in (0xFF, 0x01) or 0xD0 <= marker <= 0xD8:  # fill bytes and marks without length
            at += 1 if marker == 0xFF else 2
            continue
        length = struct.unpack(">H", content[at + 2 : at + 4])[0]
        if marker in _JPEG_SIZES:
            bits, height, width = struct.unpack(">BHH", content[at + 4 : at + 9])
        if marker == 0xDA:  # the compressed pixels follow, up to the end mark
            complete = content.rfind(b"\xff\xd9") > at
            problem = f"it ends after {len(content)} bytes, before its end mark"
            return ImageHeader("JPEG", width, height, bits, complete, "" if complete else problem)
        at += 2 + length
    return ImageHeader("JPEG", width, height, bits, False, "it ends before the picture begins")


def _read_bmp(content: bytes) -> ImageHeader:
    start, header = struct.unpack("<II", content[10:18])
    if header == 12:
        width, height, _, depth = struct.unpack("<HHHH", content[18:26])
        packing = 0
    else:
        width, height, _, depth, packing = struct.unpack("<iiHHI", content[18:34])
    height = abs(height)
    needed = start + (width * depth + 31) // 32 * 4 * height if packing in (0, 3) else 0
    complete = len(content) >= needed
    problem = f"it has {len(content)} of {needed} bytes"
    return ImageHeader("BMP", width, height, 8, complete, "" if complete else problem)


def _read_tiff(content: bytes) -> ImageHeader:
    order = "<" if content[:1] == b"I" else ">"
    (directory,) = struct.unpack(order + "I", content[4:8])
    (n_entries,) = struct.unpack(order + "H", content[directory : directory + 2])
    tags: dict[int, tuple[int, ...]] = {}
    for entry in range(n_entries):
        at = directory + 2 + 12 * entry
        tag, kind, count = struct.unpack(order + "HHI", content[at : at + 8])
        if kind not in (1, 3, 4, 16) or tag not in (256, 257, 258, 273, 279, 324, 325):
            continue
        size = _TIFF_LENGTHS[kind] * count
        place = at + 8 if size <= 4 else struct.unpack(order + "I", content[at + 8 : at + 12])[0]
        letter = {1: "B", 3: "H", 4: "I", 16: "Q"}[kind]
        tags[tag] = struct.unpack(f"{order}{count}{letter}", content[place : place + size])
    width, height = tags.get(256, (0,))[0], tags.get(257, (0,))[0]
    bits = max(8, *tags.get(258, (8,)), 8)
    offsets, lengths = tags.get(273) or tags.get(324, ()), tags.get(279) or tags.get(325, ())
    needed = max(
        (start + length for start, length in zip(offsets, lengths, strict=False)), default=0
    )
    complete = len(content) >= needed > 0
    problem = f"it has {len(content)} of {needed} bytes"
    return ImageHeader("TIFF", width, height, bits, complete, "" if complete else problem)
