"""Binary PLY files of clouds and meshes in meters, which all common viewers read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.errors import DataError
from lifcal.files import read_bytes, write_bytes
from lifcal.metric.cloud import PointCloud
from lifcal.ply import PlyElement, format_header

_VERTEX = [
    *((name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")),
    *((name, "u1") for name in ("red", "green", "blue")),
    ("sigma", "<f4"),
]
"""Properties of a point in the file and their types."""
_NAMES = {"<f4": "float", "u1": "uchar"}
"""Names of NumPy's types in PLY files."""
_FACE = [("count", "u1"), ("corners", "<i4", 3)]
"""Properties of a triangle in the file: the number of corners, always 3, and the corners."""


def write_cloud(
    path: str | Path, cloud: PointCloud, triangles: npt.NDArray[np.int32] | None = None
) -> None:
    """Write a cloud, or with triangles (n, 3) a mesh, in meters; the file is written atomically.

    Normals that are not known are written as (0, 0, 0).
    """
    vertices = np.empty(len(cloud), np.dtype(_VERTEX))
    points = cloud.points_mm * np.float32(0.001)
    normals = np.nan_to_num(cloud.normals)
    for axis, name in enumerate("xyz"):
        vertices[name] = points[:, axis]
        vertices[f"n{name}"] = normals[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = cloud.colors[:, channel]
    vertices["sigma"] = cloud.sigma_mm * np.float32(0.001)
    header = _make_header(len(vertices), None if triangles is None else len(triangles))
    content = header + vertices.tobytes()
    if triangles is not None:
        faces = np.empty(len(triangles), np.dtype(_FACE))
        faces["count"] = 3
        faces["corners"] = triangles
        content += faces.tobytes()
    write_bytes(Path(path), content)


def _make_header(n_vertices: int, n_faces: int | None) -> bytes:
    elements = [
        PlyElement("vertex", n_vertices, [f"{_NAMES[kind]} {name}" for name, kind in _VERTEX])
    ]
    if n_faces is not None:
        elements.append(PlyElement("face", n_faces, ["list uchar int vertex_indices"]))
    comment = "made by lifcal; metres; sigma is the standard deviation along the viewing ray"
    return format_header(elements, comment=comment, binary=True).encode("ascii")


def read_cloud(path: str | Path) -> PointCloud:
    """Read a cloud that `write_cloud` wrote.

    Raises
    ------
    DataError
        If the file is missing, cut off, or of another kind.
    """
    path = Path(path)
    content = read_bytes(path, limit=1 << 32)
    head, _, body = content.partition(b"end_header\n")
    count = [line.split()[-1] for line in head.splitlines() if line.startswith(b"element vertex")]
    if not (len(count) == 1 and count[0].isdigit()) or (
        content[: len(content) - len(body)] != _make_header(int(count[0]), None)
    ):
        raise DataError(f"{path}: not a point cloud that lifcal depth wrote")
    dtype = np.dtype(_VERTEX)
    if len(body) != int(count[0]) * dtype.itemsize:
        raise DataError(f"{path}: cut off: {len(body)} bytes for {int(count[0])} points")
    rows = np.frombuffer(body, dtype)
    normals = np.stack([rows[name] for name in ("nx", "ny", "nz")], axis=1)
    normals[(normals == 0.0).all(axis=1)] = np.nan
    return PointCloud(
        np.stack([rows[name] for name in "xyz"], axis=1) * np.float32(1000.0),
        np.stack([rows[name] for name in ("red", "green", "blue")], axis=1),
        normals,
        rows["sigma"] * np.float32(1000.0),
    )
