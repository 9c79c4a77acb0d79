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
    cloud, triangles = _read(Path(path))
    if triangles is not None:
        raise DataError(f"{path}: not a point cloud that lifcal depth wrote")
    return cloud


def read_mesh(path: str | Path) -> tuple[PointCloud, npt.NDArray[np.int32]]:
    """Read a mesh that `write_cloud` wrote: its corners, and its triangles, (n, 3).

    Raises
    ------
    DataError
        If the file is missing, cut off, or of another kind.
    """
    cloud, triangles = _read(Path(path))
    if triangles is None:
        raise DataError(f"{path}: not a mesh that lifcal depth wrote")
    return cloud, triangles


def _read(path: Path) -> tuple[PointCloud, npt.NDArray[np.int32] | None]:
    content = read_bytes(path, limit=1 << 32)
    head, _, body = content.partition(b"end_header\n")
    counts = {
        kind: [
            line.split()[-1] for line in head.splitlines() if line.startswith(b"element " + kind)
        ]
        for kind in (b"vertex", b"face")
    }
    numbers = [int(word) for words in counts.values() for word in words if word.isdigit()]
    n_points, n_faces = (*numbers, None, None)[:2]
    if (
        n_points is None
        or len(counts[b"vertex"]) != 1
        or content[: len(content) - len(body)] != _make_header(n_points, n_faces)
    ):
        raise DataError(f"{path}: not a point cloud that lifcal depth wrote")
    dtype, face = np.dtype(_VERTEX), np.dtype(_FACE)
    size = n_points * dtype.itemsize
    if len(body) != size + (n_faces or 0) * face.itemsize:
        raise DataError(f"{path}: cut off: {len(body)} bytes for {n_points} points")
    rows = np.frombuffer(body[:size], dtype)
    normals = np.stack([rows[name] for name in ("nx", "ny", "nz")], axis=1)
    normals[(normals == 0.0).all(axis=1)] = np.nan
    cloud = PointCloud(
        np.stack([rows[name] for name in "xyz"], axis=1) * np.float32(1000.0),
        np.stack([rows[name] for name in ("red", "green", "blue")], axis=1),
        normals,
        rows["sigma"] * np.float32(1000.0),
    )
    if n_faces is None:
        return cloud, None
    triangles = np.frombuffer(body[size:], face)["corners"].astype(np.int32)
    if len(triangles) and not 0 <= triangles.min() <= triangles.max() < n_points:
        raise DataError(f"{path}: a triangle has a corner that is not there")
    return cloud, triangles
