"""Scenes for calibration: a desk, a room, a corner target of one meter, and two that must fail.

Each scene is described in a local frame (x right, y away from the camera, z up), as one would
measure it with a tape, and then transformed to the world frame, in which the nominal camera looks
along +z.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.errors import ConfigError
from lifcal.imaging.markers import CELLS_PER_SIDE
from lifcal.simulate.scene import Ball, Marker, Quad, Scene, Texture
from lifcal.simulate.textures import (
    MarkerPrint,
    make_brick,
    make_dots,
    make_noise,
    make_page,
    make_paint,
    make_plaster,
    make_poster,
    make_speckle,
    make_wood,
    print_markers,
)

Maker: TypeAlias = Callable[[np.random.Generator, tuple[float, float], float], Texture]
"""Makes a texture from a generator, a size (width, height) in mm and a texel size in mm."""

_Vector: TypeAlias = tuple[float, float, float]
_LIGHT_LOCAL = np.array([-0.45, -0.6, 0.66])
_SHADE_DARKEST = 0.55
_BOX_MAKERS: tuple[Maker, ...] = (make_poster, make_noise, make_speckle, make_wood, make_page)
_BALL_MAKERS: tuple[Maker, ...] = (make_noise, make_speckle, make_poster)
_PAINT_TEXEL_MM = 6.0


class _Stage:
    """Collects the quads, balls and markers of a scene that is laid out in its own frame.

    Parameters
    ----------
    name : str
    rng : numpy.random.Generator
    look_at_local_mm : (3,) float64
        Point that the nominal camera looks at.
    pitch_rad : float
        Angle by which the nominal camera looks down.
    distance_mm, min_distance_mm : float
        The distances of `Scene`; the world's origin is the nominal camera at `distance_mm`.
    """

    def __init__(
        self,
        name: str,
        rng: np.random.Generator,
        *,
        look_at_local_mm: _Vector = (0.0, 0.0, 0.0),
        pitch_rad: float = 0.0,
        distance_mm: float,
        min_distance_mm: float,
    ) -> None:
        self.name = name
        self.rng = rng
        self.distance_mm = distance_mm
        self.min_distance_mm = min_distance_mm
        self.quads: list[Quad] = []
        self.balls: list[Ball] = []
        self.markers: list[Marker] = []
        cos, sin = np.cos(pitch_rad), np.sin(pitch_rad)
        self._world_from_local = np.array([[1.0, 0.0, 0.0], [0.0, -sin, -cos], [0.0, cos, -sin]])
        self._look_at_local_mm = np.array(look_at_local_mm)
        self._look_at_world_mm = np.array([0.0, 0.0, distance_mm])
        # These are positions that a camera may have on any path. A face that is visible from none
        # of them is left out.
        standoffs = np.array([min_distance_mm, distance_mm, 2.5 * distance_mm])
        around = np.subtract(_grid_around(0.2), [0.0, 0.0, 1.0]) @ self._world_from_local
        eyes = (standoffs[:, None, None] * around).reshape(-1, 3)
        self._eyes_local_mm = self._look_at_local_mm + eyes

    def finish(self) -> Scene:
        """Return the scene."""
        return Scene(
            name=self.name,
            quads=tuple(self.quads),
            balls=tuple(self.balls),
            markers=tuple(self.markers),
            background=np.full(3, 0.02),
            look_at_world_mm=self._look_at_world_mm,
            distance_mm=self.distance_mm,
            min_distance_mm=self.min_distance_mm,
        )

    def add_face(
        self,
        origin: npt.ArrayLike,
        edge_u: npt.ArrayLike,
        edge_v: npt.ArrayLike,
        maker: Maker,
        texel_mm: float,
    ) -> None:
        """Add a quad given in the local frame, in mm, by its top left corner and its two edges."""
        size_mm = (float(np.linalg.norm(edge_u)), float(np.linalg.norm(edge_v)))
        self._add_quad(origin, edge_u, edge_v, maker(self.rng, size_mm, texel_mm))

    def add_box(
        self,
        foot: _Vector,
        size_mm: _Vector,
        makers: Sequence[Maker],
        texel_mm: float,
        yaw_deg: float = 0.0,
    ) -> None:
        """Add a box without its bottom, and without the sides that no camera can see.

        Parameters
        ----------
        foot : (3,) float
            Center of the bottom.
        size_mm : (width, depth, height)
        makers : sequence of Maker
            One maker for all faces, or one for the top and one for the sides.
        texel_mm, yaw_deg : float
        """
        turn = np.deg2rad(yaw_deg)
        right = np.array([np.cos(turn), np.sin(turn), 0.0])
        away = np.array([-np.sin(turn), np.cos(turn), 0.0])
        up = np.array([0.0, 0.0, 1.0])
        width, depth, height = size_mm
        top = np.array(foot) + height * up
        # For each face: the outward normal and its distance, then the directions of the texture's
        # columns and rows.
        faces = (
            (up, top, right, width, -away, depth, makers[0]),
            (-away, top - 0.5 * depth * away, right, width, -up, height, makers[-1]),
            (away, top + 0.5 * depth * away, -right, width, -up, height, makers[-1]),
            (-right, top - 0.5 * width * right, -away, depth, -up, height, makers[-1]),
            (right, top + 0.5 * width * right, away, depth, -up, height, makers[-1]),
        )
        for normal, place, along, length, down, drop, maker in faces:
            if not np.any((self._eyes_local_mm - place) @ normal > 0.0):
                continue
            origin = place - 0.5 * length * along
            if normal is up:
                origin = origin - 0.5 * drop * down
            self.add_face(origin, length * along, drop * down, maker, texel_mm)

    def add_ball(
        self, center: _Vector, radius_mm: float, maker: Maker, texel_mm: float, shade: float = 0.9
    ) -> None:
        """Add a ball given in the local frame."""
        size_mm = (2.0 * np.pi * radius_mm, np.pi * radius_mm)
        texture = maker(self.rng, size_mm, texel_mm)
        self.balls.append(Ball(self._to_world(np.array(center)), radius_mm, texture, shade))

    def add_sheet(
        self,
        origin: npt.ArrayLike,
        along: npt.ArrayLike,
        down: npt.ArrayLike,
        size_texels: tuple[int, int],
        prints: Sequence[MarkerPrint],
        maker: Maker,
        texel_mm: float,
    ) -> None:
        """Add a quad with printed markers, whose size is a whole number of texels.

        Parameters
        ----------
        origin : (3,) float64
            Upper left corner, in the local frame.
        along, down : (3,) float64
            Directions of the columns and of the rows, in the local frame.
        size_texels : (cols, rows)
        prints : sequence of MarkerPrint
        maker : Maker
            Maker of the texture around the markers.
        texel_mm : float
        """
        start = np.asarray(origin, dtype=np.float64)
        across_mm = texel_mm * _unit(along)
        down_mm = texel_mm * _unit(down)
        size_mm = (size_texels[0] * texel_mm, size_texels[1] * texel_mm)
        texture = print_markers(maker(self.rng, size_mm, texel_mm), prints)
        self._add_quad(start, size_texels[0] * across_mm, size_texels[1] * down_mm, texture)
        for item in prints:
            low = np.array([item.col, item.row])
            corners = low + item.side_texels * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
            corners_local_mm = start + corners @ np.stack([across_mm, down_mm])
            self.markers.append(Marker(item.id, self._to_world(corners_local_mm)))

    def jitter(self, reach: float) -> float:
        """Return a random number within `reach` of 0."""
        return float(self.rng.uniform(-reach, reach))

    def _add_quad(
        self,
        origin: npt.ArrayLike,
        edge_u: npt.ArrayLike,
        edge_v: npt.ArrayLike,
        texture: Texture,
    ) -> None:
        u, v = np.asarray(edge_u, dtype=np.float64), np.asarray(edge_v, dtype=np.float64)
        # On a print, columns run to the right and rows run down, so this normal points to the
        # viewer.
        normal = _unit(np.cross(v, u))
        lit = 0.5 + 0.5 * float(normal @ _unit(_LIGHT_LOCAL))
        shade = _SHADE_DARKEST + (1.0 - _SHADE_DARKEST) * lit
        turn = self._world_from_local
        corner = self._to_world(np.asarray(origin, dtype=np.float64))
        self.quads.append(Quad(corner, turn @ u, turn @ v, texture, shade))

    def _to_world(self, points_local_mm: FloatArray) -> FloatArray:
        turned: FloatArray = (points_local_mm - self._look_at_local_mm) @ self._world_from_local.T
        shifted: FloatArray = turned + self._look_at_world_mm
        return shifted


def build_scene(name: str, seed: int) -> Scene:
    """Build one of `SCENES`.

    Parameters
    ----------
    name : str
    seed : int
        Random seed of the textures and of small changes in the layout. The same seed gives the same
        scene.

    Raises
    ------
    ConfigError
        If there is no such scene.
    """
    if name not in SCENES:
        raise ConfigError.unknown("scene", name, SCENES)
    return SCENES[name](np.random.default_rng([seed, *name.encode()]))


def _build_desk(rng: np.random.Generator) -> Scene:
    """Build a desk in front of a wall, 0.4 to 1.5 m from the nominal camera."""
    stage = _Stage(
        "desk", rng, pitch_rad=np.deg2rad(27.0), distance_mm=850.0, min_distance_mm=700.0
    )
    back = 680.0
    stage.add_face((-900.0, -100.0, 0.0), (1800.0, 0, 0), (0, -640.0, 0), make_wood, 0.38)
    # Surfaces overlap slightly, so that no ray passes between them.
    stage.add_face((-1250.0, back, -1.0), (2500.0, 0, 0), (0, -120.0 - back, 0), make_wood, 0.6)
    stage.add_face((-1250.0, back - 1.0, 890.0), (2500.0, 0, 0), (0, 0, -900.0), make_brick, 0.6)
    for x in (-420.0, -130.0, 170.0):
        place = (x + stage.jitter(15.0), back - 8.0, 310.0 + stage.jitter(20.0))
        stage.add_face(place, (230.0, 0, 0), (0, 0, -290.0), make_poster, 0.5)

    texel_mm = 0.35

    def box(
        x: float,
        y: float,
        z: float,
        size_mm: _Vector,
        yaw: float,
        *makers: Maker,
        far: bool = False,
    ) -> None:
        foot = (x + stage.jitter(4.0), y + stage.jitter(4.0), z)
        skin = makers or (_choose(rng, _BOX_MAKERS),)
        texel = 0.5 if far else texel_mm
        stage.add_box(foot, size_mm, skin, texel, yaw + stage.jitter(4.0))

    def ball(x: float, y: float, radius: float) -> None:
        center = (x + stage.jitter(4.0), y + stage.jitter(4.0), radius)
        stage.add_ball(center, radius, _choose(rng, _BALL_MAKERS), texel_mm)

    # In front there are a tin, a ball and a page; the tin's lid is the nearest object in view.
    box(-112.0, -440.0, 0.0, (72.0, 72.0, 150.0), 22.0, make_speckle, make_poster)
    ball(128.0, -335.0, 42.0)
    page_turn = np.deg2rad(14.0 + stage.jitter(5.0))
    along = np.array([np.cos(page_turn), np.sin(page_turn), 0.0])
    down = np.array([np.sin(page_turn), -np.cos(page_turn), 0.0])
    stage.add_face((-90.0, -190.0, 2.0), 148.0 * along, 170.0 * down, make_page, 0.3)
    # In the middle there are a stack of books, a small box and the markers.
    box(-205.0, -130.0, 0.0, (165.0, 120.0, 32.0), 18.0, make_poster, make_page)
    box(-205.0, -130.0, 32.0, (140.0, 105.0, 26.0), -8.0, make_noise, make_page)
    box(-32.0, -30.0, 0.0, (55.0, 40.0, 48.0), -30.0)
    ball(-5.0, 215.0, 36.0)
    box(-190.0, 262.0, 0.0, (210.0, 80.0, 165.0), 0.0, make_noise)
    _add_marker_sheet(stage, (-290.0, 205.0, 129.0), lean_deg=66.0, first_id=0)
    _add_marker_sheet(stage, (35.0, -10.0, 76.0), lean_deg=32.0, first_id=6)
    # Behind them, boxes of different height stand in front of the wall.
    box(95.0, 330.0, 0.0, (120.0, 100.0, 235.0), 28.0, far=True)
    ball(215.0, 190.0, 62.0)
    box(315.0, 400.0, 0.0, (190.0, 90.0, 150.0), -24.0, make_wood, far=True)
    box(-25.0, 520.0, 0.0, (110.0, 110.0, 130.0), 40.0, make_speckle, far=True)
    box(-395.0, 470.0, 0.0, (130.0, 130.0, 300.0), 33.0, far=True)
    box(420.0, 130.0, 0.0, (40.0, 150.0, 210.0), 38.0, make_page, make_poster)
    return stage.finish()


def _add_marker_sheet(stage: _Stage, origin: _Vector, *, lean_deg: float, first_id: int) -> None:
    """Add a sheet with 3 by 2 markers of 40 mm, 60 mm apart, leaning back from its lower edge."""
    texel_mm, cell_texels, pitch_texels, margin_texels = 0.3125, 16, 192, 64
    prints = [
        MarkerPrint(
            first_id + 3 * row + col,
            margin_texels + pitch_texels * row,
            margin_texels + pitch_texels * col,
            cell_texels,
        )
        for row in range(2)
        for col in range(3)
    ]
    last = prints[-1]
    size_texels = (
        last.col + last.side_texels + margin_texels,
        last.row + last.side_texels + margin_texels,
    )
    turn = np.deg2rad(lean_deg)
    down = (0.0, -np.cos(turn), -np.sin(turn))
    stage.add_sheet(origin, (1.0, 0.0, 0.0), down, size_texels, prints, make_noise, texel_mm)


def _build_room(rng: np.random.Generator) -> Scene:
    """Build a furnished room, 0.8 to 4 m from the nominal camera."""
    return _furnish(_room_stage("room", rng), None).finish()


def _build_bare(rng: np.random.Generator) -> Scene:
    """Build the same room with freshly painted surfaces, which have almost no texture to match."""
    return _furnish(_room_stage("bare", rng), make_paint).finish()


def _room_stage(name: str, rng: np.random.Generator) -> _Stage:
    return _Stage(
        name,
        rng,
        look_at_local_mm=(0.0, 1980.0, 970.0),
        pitch_rad=np.deg2rad(8.0),
        distance_mm=2000.0,
        min_distance_mm=1700.0,
    )


def _furnish(stage: _Stage, paint: Maker | None) -> _Stage:
    """Add walls and furniture; if a paint is given, all of them are painted with it."""
    rng = stage.rng
    side, back, height = 1350.0, 3780.0, 2500.0

    def face(origin: _Vector, u: _Vector, v: _Vector, maker: Maker, texel_mm: float) -> None:
        if paint is None:
            stage.add_face(origin, u, v, maker, texel_mm)
        else:
            stage.add_face(origin, u, v, paint, _PAINT_TEXEL_MM)

    def box(x: float, y: float, z: float, size_mm: _Vector, yaw: float, *makers: Maker) -> None:
        foot = (x + stage.jitter(12.0), y + stage.jitter(12.0), z)
        skin = makers or (_choose(rng, _BOX_MAKERS),)
        turn = yaw + (stage.jitter(4.0) if yaw else 0.0)
        if paint is None:
            stage.add_box(foot, size_mm, skin, 1.25, turn)
        else:
            stage.add_box(foot, size_mm, (paint,), _PAINT_TEXEL_MM, turn)

    def ball(center: _Vector, radius: float) -> None:
        maker = _choose(rng, _BALL_MAKERS)
        if paint is None:
            stage.add_ball(center, radius, maker, 1.25)
        else:
            stage.add_ball(center, radius, paint, _PAINT_TEXEL_MM)

    # The walls overlap by 10 mm, so that no ray passes between them. The near side is open.
    lap = 10.0
    near, length, width = 600.0, back + lap - 600.0, 2.0 * (side + lap)
    left, right, top, tall = -side - lap, side + lap, height + lap, height + 2.0 * lap
    face((left, back + lap, 0.0), (width, 0, 0), (0, -length, 0), make_wood, 1.5)
    face((left, near, height), (width, 0, 0), (0, length, 0), make_plaster, 2.0)
    face((left, back, top), (width, 0, 0), (0, 0, -tall), make_plaster, 1.25)
    face((-side, near, top), (0, length, 0), (0, 0, -tall), make_brick, 1.5)
    face((side, back + lap, top), (0, -length, 0), (0, 0, -tall), make_noise, 1.5)

    # A pedestal stands at the left, near the camera, with a box and a ball on it.
    box(-400.0, 980.0, 0.0, (400.0, 380.0, 900.0), 12.0, make_speckle, make_wood)
    box(-440.0, 1010.0, 900.0, (170.0, 130.0, 190.0), -25.0, make_page, make_poster)
    ball((-268.0, 925.0, 975.0), 75.0)
    # A sofa stands at the right.
    box(640.0, 1950.0, 0.0, (850.0, 520.0, 420.0), -24.0, make_noise)
    box(755.0, 2215.0, 0.0, (900.0, 130.0, 780.0), -24.0, make_noise)
    # A table with two boards as legs stands in the middle.
    box(-60.0, 2560.0, 660.0, (900.0, 520.0, 40.0), 0.0, make_wood)
    box(-420.0, 2560.0, 0.0, (60.0, 400.0, 659.0), 0.0, make_wood)
    box(300.0, 2560.0, 0.0, (60.0, 400.0, 659.0), 0.0, make_wood)
    box(160.0, 2640.0, 700.0, (240.0, 190.0, 260.0), 35.0)
    ball((-40.0, 2400.0, 770.0), 70.0)
    # A bookcase stands against the back wall: rows of books between boards.
    left, right, deep = -1180.0, -330.0, 300.0
    for x in (left, right):
        face((x, back - deep, 1900.0), (0, deep, 0), (0, 0, -1900.0), make_wood, 1.5)
    for level, rows in enumerate((make_poster, make_page, make_poster), start=1):
        z = 480.0 * level
        place = (left, back - 90.0 - 20.0 * level, z + 400.0 - 25.0 * level)
        spines = place[2] - z - 30.0
        face(place, (right - left, 0, 0), (0, 0, -spines), rows, 1.25)
        face((left, back, z + 30.0), (right - left, 0, 0), (0, -deep, 0), make_speckle, 1.25)
    face((left, back, 1900.0), (right - left, 0, 0), (0, -deep, 0), make_wood, 1.5)
    # A cabinet stands to the right of it.
    box(620.0, 3500.0, 0.0, (800.0, 450.0, 850.0), 0.0, make_wood, make_speckle)
    box(450.0, 3520.0, 850.0, (320.0, 260.0, 330.0), 30.0, make_page, make_poster)
    ball((800.0, 3480.0, 990.0), 140.0)
    if paint is None:
        face((-250.0, back - 10.0, 1980.0), (420.0, 0, 0), (0, 0, -600.0), make_poster, 1.25)
        face((-side + 10.0, 1700.0, 1900.0), (0, 900.0, 0), (0, 0, -700.0), make_poster, 1.25)
    else:
        stage.add_face((-60.0, back - 10.0, 1500.0), (90.0, 0, 0), (0, 0, -90.0), make_poster, 1.25)
        stage.add_face((side - 10.0, 2900.0, 900.0), (0, -80.0, 0), (0, 0, -80.0), make_noise, 1.25)

    def sheet(origin: _Vector, along: _Vector, down: _Vector, ids: tuple[int, ...]) -> None:
        # The markers have a side of 120 mm and are 160 mm apart.
        prints = [MarkerPrint(item, 16, 16 + 128 * place, 12) for place, item in enumerate(ids)]
        size_texels = (128 * len(ids), 128)
        stage.add_sheet(origin, along, down, size_texels, prints, make_noise, 1.25)

    ahead, drop = (1.0, 0.0, 0.0), (0.0, 0.0, -1.0)
    sheet((330.0, back - 10.0, 1470.0), ahead, drop, (20, 21))
    if paint is None:
        sheet((480.0, 3255.0, 835.0), ahead, drop, (22, 23))
        lean = (0.0, -np.cos(1.1), -np.sin(1.1))
        sheet((-445.0, 2480.0, 846.0), ahead, lean, (24, 25))
    return stage


def _build_cube(rng: np.random.Generator) -> Scene:
    """Build three faces of one meter that meet in a corner, seen from inside along the diagonal.

    Seen from inside, no face hides another, and faces are seen less obliquely toward the border of
    the image, not more.
    """
    stage = _Stage("cube", rng, distance_mm=1450.0, min_distance_mm=900.0)
    corner = np.array([0.0, 450.0, 0.0])
    texel_mm, side_texels, cell_texels = 0.4, 2500, 30
    turns = np.deg2rad([90.0, -30.0, -150.0])
    edges = np.stack([np.cos(turns), np.full(3, -np.sqrt(0.5)), np.sin(turns)], axis=1)
    up, right, left = edges * np.sqrt(2.0 / 3.0)
    # For each face: its origin, the directions of its columns and rows, and whether these run
    # towards the corner.
    faces = (
        (corner + 1000.0 * up, right, -up, False, True),
        (corner + 1000.0 * (up + left), -left, -up, True, True),
        (corner, right, left, False, False),
    )
    # Distances of a marker's nearest corner from the two edges that the face shares with the
    # others.
    places_mm = ((120.0, 120.0), (120.0, 420.0), (420.0, 120.0), (420.0, 420.0), (700.0, 700.0))
    for number, (origin, along, down, col_reversed, row_reversed) in enumerate(faces):
        prints = []
        for place, (x_mm, y_mm) in enumerate(places_mm):
            col, row = round(x_mm / texel_mm), round(y_mm / texel_mm)
            far = side_texels - CELLS_PER_SIDE * cell_texels
            col = far - col if col_reversed else col
            row = far - row if row_reversed else row
            prints.append(MarkerPrint(40 + 5 * number + place, row, col, cell_texels))
        size_texels = (side_texels, side_texels)
        stage.add_sheet(origin, along, down, size_texels, prints, make_dots, texel_mm)
    stage.add_face((-3000.0, 900.0, 3000.0), (6000.0, 0, 0), (0, 0, -6000.0), make_brick, 3.0)
    return stage.finish()


def _build_wall(rng: np.random.Generator) -> Scene:
    """Build one flat print in front of the camera. A plane alone does not determine a camera."""
    stage = _Stage("wall", rng, distance_mm=1000.0, min_distance_mm=550.0)
    texel_mm, side_texels, cell_texels = 0.5, 4200, 20
    first = side_texels // 2 - 4 * cell_texels
    places = ((-380, -380), (-380, 380), (0, 0), (380, -380), (380, 380))
    prints = [
        MarkerPrint(80 + number, first + row, first + col, cell_texels)
        for number, (row, col) in enumerate(places)
    ]
    half_mm = 0.5 * side_texels * texel_mm
    stage.add_sheet(
        (-half_mm, 0.0, half_mm),
        (1.0, 0.0, 0.0),
        (0.0, 0.0, -1.0),
        (side_texels, side_texels),
        prints,
        make_noise,
        texel_mm,
    )
    return stage.finish()


def _choose(rng: np.random.Generator, makers: Sequence[Maker]) -> Maker:
    return makers[int(rng.integers(len(makers)))]


def _unit(vector: npt.ArrayLike) -> FloatArray:
    array = np.asarray(vector, dtype=np.float64)
    unit: FloatArray = array / np.linalg.norm(array)
    return unit


def _grid_around(reach: float) -> FloatArray:
    """Return the 27 points whose coordinates are 0 or plus or minus `reach`."""
    steps = (-reach, 0.0, reach)
    return np.array([(x, y, z) for x in steps for y in steps for z in steps])


SCENES: Mapping[str, Callable[[np.random.Generator], Scene]] = MappingProxyType(
    {
        "desk": _build_desk,
        "room": _build_room,
        "cube": _build_cube,
        "wall": _build_wall,
        "bare": _build_bare,
    }
)
"""The scenes by name. With `wall` and `bare`, a calibration has to fail or to report a problem."""
