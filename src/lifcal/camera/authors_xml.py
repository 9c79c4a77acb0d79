"""`CameraModel.xml`, the result file of the LiFCal code published with the paper.

The file has this layout, below a root node of any name::

    ImageSize/Width, ImageSize/Height     px of the totally focused image: half the raw
    PixelSize                             mm, of the raw
    PrincipalPoint/x, PrincipalPoint/y    px of the totally focused image
    FocalLength                           mm, f_L
    MainLensMlaDistance                   mm, b_L0
    SensorMlaDistance                     mm, B
    RadialDistortion/A0, A1, ...          mm^-2, mm^-4, ...; absent if they were not estimated
    TangentialDistortion/B0, B1           mm^-1; absent if they were not estimated
    MicroLensCenterAdjustment             true if micro-lens and micro-image centers differ

Pixel centers are integers in both images, so `raw = (focused + 0.5) * 2 - 0.5`. The distortion acts
on raw coordinates in mm about the principal point; with the pixel size s, `k0 = A0 s^2`,
`k1 = A1 s^4`, `k2 = A2 s^6`, `p0 = B0 s`, `p1 = B1 s`. The file holds no micro-lens grid, and does
not say where its scale comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from lifcal.camera._safe_xml import (
    optional_float,
    optional_pair,
    parse_xml,
    require_float,
    shorten,
)
from lifcal.camera.distortion import BrownDistortion, NoDistortion
from lifcal.camera.grid import MicroLensGrid, check_image_size
from lifcal.camera.model import PlenopticCamera
from lifcal.camera.pinhole_array import PhysicalParameters
from lifcal.errors import DataError, InputError
from lifcal.files import write_text

FOCUSED_SCALE = 2
"""Width of a pixel of the totally focused image, in raw pixels."""


@dataclass(frozen=True)
class CameraModelFile:
    """Content of `CameraModel.xml`, in raw pixels and lifcal's units.

    Parameters
    ----------
    parameters : PhysicalParameters
    pixel_size_mm : float
        Size of a pixel of the raw image.
    image_size : (int, int)
        Size of the raw image, twice that of the focused image. A raw with an odd size has one pixel
        more.
    distortion : BrownDistortion
    center_adjustment : bool
        Whether micro-lens centers were distinguished from micro-image centers, as in the paper.
    """

    parameters: PhysicalParameters
    pixel_size_mm: float
    image_size: tuple[int, int]
    distortion: BrownDistortion
    center_adjustment: bool = True

    def camera(self, grid: MicroLensGrid, *, scale_source: str | None = None) -> PlenopticCamera:
        """Return the camera with the given grid; the file itself holds no grid.

        Raises
        ------
        InputError
            If the grid is for an image of another size, or the calibration was made without the
            adjustment of micro-lens centers, which is a different camera model.
        """
        if not self.center_adjustment:
            raise InputError(
                "the calibration was made with MicroLensCenterAdjustment false, a model that "
                "takes micro-image centers for micro-lens centers; calibrate again with it true"
            )
        half = tuple(length // FOCUSED_SCALE for length in self.image_size)
        if tuple(length // FOCUSED_SCALE for length in grid.image_size) != half:
            width, height = self.image_size
            raise InputError(
                f"the calibration is for raw images of {width} x {height} px, the grid for "
                f"{grid.image_size[0]} x {grid.image_size[1]} px"
            )
        return PlenopticCamera(
            self.parameters, self.pixel_size_mm, grid, self.distortion, scale_source
        )


def read_authors_xml(path: str | Path) -> CameraModelFile:
    """Read `CameraModel.xml`.

    Raises
    ------
    DataError
        If the file is not XML, a node is missing or holds no number, or the values are impossible.
    """
    path = Path(path)
    root = parse_xml(path)
    pixel_size = require_float(path, root, "PixelSize")
    size = tuple(
        _whole_number(path, root, f"ImageSize/{name}") * FOCUSED_SCALE
        for name in ("Width", "Height")
    )
    center = [
        (require_float(path, root, f"PrincipalPoint/{name}") + 0.5) * FOCUSED_SCALE - 0.5
        for name in ("x", "y")
    ]
    lengths = [
        require_float(path, root, name)
        for name in ("FocalLength", "MainLensMlaDistance", "SensorMlaDistance")
    ]
    radial = _radial_terms(path, root)
    tangential = optional_pair(path, root, "TangentialDistortion", ("B0", "B1")) or (0.0, 0.0)
    adjustment = (root.findtext("MicroLensCenterAdjustment") or "true").strip().lower()
    if adjustment not in ("true", "false"):
        raise DataError(
            f"{path}: node MicroLensCenterAdjustment is {shorten(repr(adjustment))}, "
            "needs true or false"
        )
    if not 0.0 < pixel_size < 1.0:
        raise DataError(f"{path}: node PixelSize is {pixel_size} mm, needs 0 to 1 mm")
    s = pixel_size
    try:
        return CameraModelFile(
            PhysicalParameters(lengths[0], lengths[1], lengths[2], center[0], center[1]),
            pixel_size,
            check_image_size(size),
            BrownDistortion(
                radial[0] * s**2,
                radial[1] * s**4,
                radial[2] * s**6,
                tangential[0] * s,
                tangential[1] * s,
            ),
            adjustment == "true",
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None


def describe_lost(camera: PlenopticCamera) -> tuple[str, ...]:
    """Return a sentence for each property that affects depth and that the file cannot hold."""
    if camera.tilt is None or not camera.tilt.as_vector().any():
        return ()
    x, y = camera.tilt_angles_deg()[0].tolist()
    return (
        f"CameraModel.xml cannot hold the tilt of the micro-lens array, ({x:.3f}, {y:.3f}) deg: "
        "depths that are computed from the file are wrong toward the image's border",
    )


def write_authors_xml(path: str | Path, camera: PlenopticCamera) -> None:
    """Write `CameraModel.xml`.

    The file has no place for the grid, the tilt, the source of the scale and standard deviations.

    Raises
    ------
    InputError
        If the distortion is of a model that the file cannot hold.
    """
    distortion = camera.distortion
    if isinstance(distortion, NoDistortion):
        distortion = BrownDistortion()
    if not isinstance(distortion, BrownDistortion):
        raise InputError(
            f"CameraModel.xml holds distortion of the model 'brown', not {distortion.name!r}"
        )
    s = camera.pixel_size_mm
    p = camera.parameters
    width, height = (length // FOCUSED_SCALE for length in camera.image_size)
    x, y = ((value + 0.5) / FOCUSED_SCALE - 0.5 for value in (p.principal_x_px, p.principal_y_px))
    radial = {"A0": distortion.k0 / s**2, "A1": distortion.k1 / s**4}
    if distortion.k2 != 0.0:
        radial["A2"] = distortion.k2 / s**6
    tangential = {"B0": distortion.p0 / s, "B1": distortion.p1 / s}
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<Root>",
        "\t<CalibrationModel>Plenoptic</CalibrationModel>",
        *_branch("ImageSize", "pix", {"Width": width, "Height": height}),
        _leaf("PixelSize", "mm", s),
        *_branch("PrincipalPoint", "pix", {"x": x, "y": y}),
        _leaf("FocalLength", "mm", p.focal_length_mm),
        _leaf("MainLensMlaDistance", "mm", p.lens_to_array_mm),
        _leaf("SensorMlaDistance", "mm", p.array_to_sensor_mm),
        *_branch("RadialDistortion", "mm", radial),
        *_branch("TangentialDistortion", "mm", tangential),
        "\t<MicroLensCenterAdjustment>true</MicroLensCenterAdjustment>",
        "</Root>",
    ]
    write_text(Path(path), "\n".join(lines) + "\n")


def _radial_terms(path: Path, root: Element) -> tuple[float, float, float]:
    """Return A0, A1, A2, zero where absent. Further terms that are not zero raise a DataError."""
    terms = [optional_float(path, root, f"RadialDistortion/A{i}") or 0.0 for i in range(5)]
    for i in (3, 4):
        if terms[i] != 0.0:
            raise DataError(
                f"{path}: node RadialDistortion/A{i} is {terms[i]}; lifcal has three radial terms"
            )
    return terms[0], terms[1], terms[2]


def _whole_number(path: Path, root: Element, place: str) -> int:
    value = require_float(path, root, place)
    if value != int(value) or value < 1:
        raise DataError(f"{path}: node {place} is {value:g}, needs a positive whole number")
    return int(value)


def _leaf(name: str, unit: str, value: float) -> str:
    return f'\t<{name} units="{unit}">{_number(value)}</{name}>'


def _branch(name: str, unit: str, values: dict[str, float]) -> list[str]:
    inner = [f"\t\t<{key}>{_number(value)}</{key}>" for key, value in values.items()]
    return [f'\t<{name} units="{unit}">', *inner, f"\t</{name}>"]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
