"""Elements of simulated scenes: textured parallelograms and balls, and printed markers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.errors import InputError


@dataclass(frozen=True, eq=False)
class Texture:
    """A printed surface.

    Parameters
    ----------
    albedo : (rows, cols, 3) uint8
        Linear red, green, blue; 255 reflects everything.
    """

    albedo: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        albedo = np.ascontiguousarray(self.albedo)
        if albedo.dtype != np.uint8 or albedo.ndim != 3 or albedo.shape[2] != 3:
            raise InputError(
                f"albedo is {albedo.dtype} {albedo.shape}, needs uint8 (rows, cols, 3)"
            )
        object.__setattr__(self, "albedo", read_only(albedo))


@dataclass(frozen=True, eq=False)
class Quad:
    """A textured parallelogram, seen from both sides.

    The texture covers it: its columns run along `edge_u`, its rows along `edge_v`, and the outer
    corner of texel (0, 0) is at `origin`.

    Parameters
    ----------
    origin_world_mm, edge_u_world_mm, edge_v_world_mm : (3,) float64
    texture : Texture
    shade : float
        Factor by which the albedo is multiplied: the light that falls on this face.
    """

    origin_world_mm: FloatArray
    edge_u_world_mm: FloatArray
    edge_v_world_mm: FloatArray
    texture: Texture
    shade: float = 1.0

    def __post_init__(self) -> None:
        for name in ("origin_world_mm", "edge_u_world_mm", "edge_v_world_mm"):
            value = check_array(getattr(self, name), name, (3,), finite=True)
            object.__setattr__(self, name, read_only(value.copy()))
        if not np.linalg.norm(np.cross(self.edge_u_world_mm, self.edge_v_world_mm)) > 0:
            raise InputError("edge_u_world_mm and edge_v_world_mm are parallel")


@dataclass(frozen=True, eq=False)
class Ball:
    """A textured sphere. A row of the texture is a circle around the world's y axis (which points
    down).

    The middle column faces the nominal camera (-z); the first and the last meet at the back.

    Parameters
    ----------
    center_world_mm : (3,) float64
    radius_mm : float
    texture : Texture
    shade : float
        Factor by which the albedo is multiplied.
    """

    center_world_mm: FloatArray
    radius_mm: float
    texture: Texture
    shade: float = 1.0

    def __post_init__(self) -> None:
        center = check_array(self.center_world_mm, "center_world_mm", (3,), finite=True)
        object.__setattr__(self, "center_world_mm", read_only(center.copy()))
        if not self.radius_mm > 0:
            raise InputError(f"radius_mm is {self.radius_mm}, needs a positive number")


@dataclass(frozen=True, eq=False)
class Marker:
    """A printed ArUco marker.

    Parameters
    ----------
    id : int
        Number of the marker in the dictionary DICT_6X6_250.
    corners_world_mm : (4, 3) float64
        Corners of the black square in OpenCV's order: as printed, top left, top right, bottom
        right, bottom left.
    """

    id: int
    corners_world_mm: FloatArray

    def __post_init__(self) -> None:
        corners = check_array(self.corners_world_mm, "corners_world_mm", (4, 3), finite=True)
        object.__setattr__(self, "corners_world_mm", read_only(corners.copy()))


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene. The axes of its world are those of the nominal camera: x right, y down, z forward.

    Parameters
    ----------
    name : str
    quads, balls, markers : tuple
    background : (3,) float64
        Radiance (red, green, blue in 0..1) where a ray meets nothing.
    look_at_world_mm : (3,) float64
        Point that the nominal camera looks at, along +z.
    distance_mm : float
        Distance from this point to the nominal camera if its field of view is `FIELD_OF_VIEW_RAD`.
    min_distance_mm : float
        Smallest distance from this point to the nominal camera, for any field of view.
    """

    name: str
    quads: tuple[Quad, ...]
    balls: tuple[Ball, ...]
    markers: tuple[Marker, ...]
    background: FloatArray
    look_at_world_mm: FloatArray
    distance_mm: float
    min_distance_mm: float

    def __post_init__(self) -> None:
        for name in ("background", "look_at_world_mm"):
            value = check_array(getattr(self, name), name, (3,), finite=True)
            object.__setattr__(self, name, read_only(value.copy()))

    def scaled(self, factor: float) -> Scene:
        """Return the scene with every length multiplied by `factor` (about the world's origin)."""
        if not factor > 0:
            raise InputError(f"the scene scale is {factor}, needs a positive number")
        return replace(
            self,
            quads=tuple(
                replace(
                    quad,
                    origin_world_mm=quad.origin_world_mm * factor,
                    edge_u_world_mm=quad.edge_u_world_mm * factor,
                    edge_v_world_mm=quad.edge_v_world_mm * factor,
                )
                for quad in self.quads
            ),
            balls=tuple(
                replace(
                    ball,
                    center_world_mm=ball.center_world_mm * factor,
                    radius_mm=ball.radius_mm * factor,
                )
                for ball in self.balls
            ),
            markers=tuple(
                replace(marker, corners_world_mm=marker.corners_world_mm * factor)
                for marker in self.markers
            ),
            look_at_world_mm=self.look_at_world_mm * factor,
            distance_mm=self.distance_mm * factor,
            min_distance_mm=self.min_distance_mm * factor,
        )


FIELD_OF_VIEW_RAD = 0.663
"""Field of view (38 degrees) to which `Scene.distance_mm` refers: that of the R5 with 16 mm."""
