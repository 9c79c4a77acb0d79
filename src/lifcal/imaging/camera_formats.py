"""Reading any file that describes a camera or its grid; the kind of file is recognized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from lifcal.camera import (
    MicroLensGrid,
    PlenopticCamera,
    read_authors_xml,
    read_camera,
    read_compote,
    read_grid,
)
from lifcal.camera._safe_xml import parse_xml
from lifcal.camera.authors_xml import CameraModelFile
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, read_json
from lifcal.imaging.raytrix import RaytrixCalibration, read_raytrix_xml
from lifcal.imaging.tspc import TspcCalibration, read_tspc_xml


@dataclass(frozen=True, eq=False)
class CameraFile:
    """Content of a file that describes a camera or a grid.

    Parameters
    ----------
    kind : str
        Kind of the file in words, for messages.
    content : PlenopticCamera, MicroLensGrid, RaytrixCalibration, TspcCalibration or CameraModelFile
    notes : tuple of str
        Messages to the user about content of the file that lifcal does not use.
    """

    kind: str
    content: (
        PlenopticCamera | MicroLensGrid | RaytrixCalibration | TspcCalibration | CameraModelFile
    )
    notes: tuple[str, ...] = ()

    def grid(self, image_size: tuple[int, int] | None = None) -> MicroLensGrid:
        """Return the grid that is in the file.

        Parameters
        ----------
        image_size : (int, int) or None
            Width and height of the raw. Needed for files of makers (Raytrix, TSPC), which do not
            contain it.
        """
        content = self.content
        if isinstance(content, PlenopticCamera):
            return content.grid
        if isinstance(content, MicroLensGrid):
            return content
        if isinstance(content, CameraModelFile):
            raise InputError(f"a {self.kind} holds no micro-lens grid")
        if image_size is None:
            raise InputError(f"a {self.kind} does not contain the image size: give image_size")
        return content.grid(image_size)

    def camera(self, grid: MicroLensGrid | None = None) -> PlenopticCamera:
        """Return the camera that is in the file.

        Parameters
        ----------
        grid : MicroLensGrid or None
            Needed for the CameraModel.xml of the paper's authors, which contains no grid.
        """
        content = self.content
        if isinstance(content, PlenopticCamera):
            return content
        if isinstance(content, CameraModelFile):
            if grid is None:
                raise InputError(f"a {self.kind} holds no micro-lens grid: give one")
            return content.camera(grid)
        raise InputError(f"a {self.kind} holds a micro-lens grid only, no calibrated camera")


def read_camera_file(path: Path) -> CameraFile:
    """Read a camera or grid file; its kind is recognized from its content.

    The folder of a calibration stands for the camera.json in it.

    Raises
    ------
    DataError
        If the file cannot be read, or its kind is not known.
    """
    if path.is_dir():
        path = path / "camera.json"
    start = read_bytes(path)[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"<", b"\xff\xfe", b"\xfe\xff")):
        root = parse_xml(path)
        if root.tag == "RayCalibData":
            found_grid = read_raytrix_xml(path)
            return CameraFile("Raytrix calibration", found_grid, _raytrix_notes(root))
        if root.tag == "TSPCCalibData":
            found_centers = read_tspc_xml(path)
            return CameraFile("TSPC calibration", found_centers, _tspc_notes(found_centers))
        if any(root.find(f".//{name}") is not None for name in ("FocalLength", "PixelSize")):
            return CameraFile("CameraModel.xml of the paper's authors", read_authors_xml(path))
    if start.startswith(b"{"):
        content = read_json(path)
        if content.get("format") == "lifcal-grid":
            return CameraFile("lifcal grid", read_grid(path))
        if "format" in content or "intrinsics" in content:
            return CameraFile("lifcal camera", read_camera(path))
        if "main_lens" in content or "mla" in content:
            found = read_compote(path)
            return CameraFile("COMPOTE calibration", found.camera(), found.notes)
    raise DataError(
        f"{path}: no camera file that lifcal knows: needs camera.json, grid.json, a Raytrix or "
        "TSPC XML, the authors' CameraModel.xml or COMPOTE JSON"
    )


def _raytrix_notes(root: Element) -> tuple[str, ...]:
    notes = []
    if root.find("lens_type") is None:
        notes.append("no lens_type in the file: all lenses are taken to be of one type")
    if root.find("isReal") is not None:
        notes.append(
            "isReal was not used: lifcal decides from the images whether a camera is Keplerian or "
            "Galilean"
        )
    return tuple(notes)


def _tspc_notes(found: TspcCalibration) -> tuple[str, ...]:
    return (
        f"the file's centers are {found.rms_off_px:.2g} px (rms) off the regular grid that was "
        "taken from them: fit the grid to the images, with this file as its start",
    )
