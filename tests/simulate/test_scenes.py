"""Scenes: what the nominal camera sees, and markers that are where they are said to be."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import pytest

from lifcal.errors import ConfigError
from lifcal.geometry.rigid import RigidTransform
from lifcal.simulate.scene import FIELD_OF_VIEW_RAD, Quad, Scene
from lifcal.simulate.scenes import SCENES, build_scene
from tests.reference.raycast import (
    cast_pinhole,
    cast_rays,
    pinhole_directions_cam,
    project_pinhole,
)

WIDE_RAD = np.deg2rad(61.0)
SEED = 5
N_PX = 800

# Depths in mm that the nominal camera must and may see: nearest below, farthest above; then bounds.
DEPTHS_MM = {
    "desk": (420.0, 1350.0, 300.0, 1500.0),
    "room": (950.0, 3700.0, 800.0, 4000.0),
    "bare": (950.0, 3700.0, 800.0, 4000.0),
    "cube": (1200.0, 1800.0, 1000.0, 2000.0),
    "wall": (1000.001, 999.999, 999.999, 1000.001),
}
SIDES_MM = {"desk": 40.0, "room": 120.0, "bare": 120.0, "cube": 96.0, "wall": 80.0}
MARKERS_IN_VIEW = {"desk": 12, "room": 6, "bare": 2, "cube": 12, "wall": 5}


@cache
def scene_of(name: str) -> Scene:
    return build_scene(name, SEED)


def nominal(scene: Scene, distance_mm: float) -> RigidTransform:
    return RigidTransform(np.eye(3), scene.look_at_world_mm - [0.0, 0.0, distance_mm])


def texture_bytes(scene: Scene) -> int:
    textures = {shape.texture for shape in (*scene.quads, *scene.balls)}
    return sum(texture.albedo.nbytes for texture in textures)


def host_of(scene: Scene, corners_world_mm: np.ndarray) -> tuple[Quad, np.ndarray]:
    """Return the quad that the corners lie on, and where, as (x, y) in texels."""
    found = []
    for quad in scene.quads:
        u, v = quad.edge_u_world_mm, quad.edge_v_world_mm
        normal = np.cross(u, v) / np.linalg.norm(np.cross(u, v))
        relative = corners_world_mm - quad.origin_world_mm
        # The edges of all quads are perpendicular, see below.
        place = np.stack([relative @ u / (u @ u), relative @ v / (v @ v)], axis=1)
        inside = (place > 0.0).all() and (place < 1.0).all()
        if inside and np.abs(relative @ normal).max() < 0.01:
            rows, cols, _ = quad.texture.albedo.shape
            found.append((quad, place * [cols, rows]))
    assert len(found) == 1
    return found[0]


def detect_markers(image: np.ndarray) -> dict[int, np.ndarray]:
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    parameters.cornerRefinementWinSize = 3
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_6X6_250)
    corners, ids, _ = cv2.aruco.ArucoDetector(dictionary, parameters).detectMarkers(image)
    if ids is None:
        return {}
    return {int(item): place[0] for item, place in zip(ids.ravel(), corners, strict=True)}


def photograph_markers(
    scene: Scene, camera: RigidTransform, field_of_view_rad: float
) -> np.ndarray:
    """Take a grey image (N_PX, N_PX) of the surroundings of the markers; the rest stays dark."""
    fine = 2 * N_PX
    wanted = np.zeros((fine, fine), dtype=bool)
    for marker in scene.markers:
        corners = project_pinhole(marker.corners_world_mm, camera, fine, field_of_view_rad)
        low, high = corners.min(axis=0), corners.max(axis=0)
        reach = 0.3 * (high - low).max()
        x0, y0 = np.clip(low - reach, 0, fine).astype(int)
        x1, y1 = np.clip(high + reach, 0, fine).astype(int)
        wanted[y0:y1, x0:x1] = True
    directions = pinhole_directions_cam(fine, field_of_view_rad)[wanted.ravel()]
    hits = cast_rays(scene, camera.translation_mm, directions @ camera.rotation.T)
    image = np.zeros((fine, fine))
    image[wanted] = hits.radiance.mean(axis=1)
    small = image.reshape(N_PX, 2, N_PX, 2).mean(axis=(1, 3))
    return np.clip(255.0 * small, 0.0, 255.0).astype(np.uint8)


def overlap_in_plane(first: Quad, second: Quad) -> bool:
    """Whether a point well inside the first quad lies in the second quad, too."""
    normals = [np.cross(quad.edge_u_world_mm, quad.edge_v_world_mm) for quad in (first, second)]
    normals = [normal / np.linalg.norm(normal) for normal in normals]
    if abs(normals[0] @ normals[1]) < np.cos(np.deg2rad(0.05)):
        return False
    steps = np.linspace(0.02, 0.98, 25)
    across, down = (axis.ravel() for axis in np.meshgrid(steps, steps))
    points = (
        first.origin_world_mm
        + across[:, None] * first.edge_u_world_mm
        + down[:, None] * first.edge_v_world_mm
    )
    u, v = second.edge_u_world_mm, second.edge_v_world_mm
    relative = points - second.origin_world_mm
    place = np.stack([relative @ u / (u @ u), relative @ v / (v @ v)], axis=1)
    inside = ((place > 0.002) & (place < 0.998)).all(axis=1)
    return bool(np.any(inside & (np.abs(relative @ normals[1]) < 0.5)))


def test_unknown_scene_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown scene 'dekc'.*Did you mean 'desk'"):
        build_scene("dekc", 0)


def test_same_seed_same_scene() -> None:
    first, again = scene_of("bare"), build_scene("bare", SEED)
    for one, two in zip((*first.quads, *first.balls), (*again.quads, *again.balls), strict=True):
        assert np.array_equal(one.texture.albedo, two.texture.albedo)
        assert one.shade == two.shade
    for quad, twin in zip(first.quads, again.quads, strict=True):
        assert np.array_equal(quad.origin_world_mm, twin.origin_world_mm)
        assert np.array_equal(quad.edge_u_world_mm, twin.edge_u_world_mm)


def test_other_seed_other_scene() -> None:
    first, other = scene_of("bare"), build_scene("bare", SEED + 1)
    moved = [
        np.abs(one.origin_world_mm - two.origin_world_mm).max()
        for one, two in zip(first.quads, other.quads, strict=True)
    ]
    assert 1.0 < max(moved) < 200.0


@pytest.mark.parametrize("name", SCENES)
def test_scene_is_small_enough(name: str) -> None:
    scene = scene_of(name)
    assert scene.name == name
    assert len(scene.quads) + len(scene.balls) <= 60
    assert texture_bytes(scene) < 250e6


@pytest.mark.parametrize("name", SCENES)
def test_quads_are_rectangles_lit_from_a_fixed_side(name: str) -> None:
    scene = scene_of(name)
    for quad in scene.quads:
        u, v = quad.edge_u_world_mm, quad.edge_v_world_mm
        assert abs(u @ v) < 1e-9 * np.linalg.norm(u) * np.linalg.norm(v)
        assert 0.55 <= quad.shade <= 1.0
    shades = [quad.shade for quad in scene.quads]
    assert name == "wall" or max(shades) - min(shades) > 0.2


@pytest.mark.parametrize("name", SCENES)
def test_no_two_quads_share_a_piece_of_a_plane(name: str) -> None:
    quads = scene_of(name).quads
    for number, first in enumerate(quads):
        for other, second in enumerate(quads):
            assert number == other or not overlap_in_plane(first, second), (number, other)


def test_overlap_is_seen() -> None:
    quad = scene_of("wall").quads[0]
    shifted = Quad(
        quad.origin_world_mm + 0.3 * quad.edge_u_world_mm + [0.0, 0.0, 0.1],
        quad.edge_u_world_mm,
        quad.edge_v_world_mm,
        quad.texture,
    )
    assert overlap_in_plane(quad, shifted)


@pytest.mark.parametrize("name", SCENES)
def test_depths_in_view(name: str) -> None:
    scene = scene_of(name)
    hits = cast_pinhole(scene, nominal(scene, scene.distance_mm), 160, FIELD_OF_VIEW_RAD)
    near, far, low, high = DEPTHS_MM[name]
    assert (hits.surface >= 0).all()
    assert low < hits.depth.min() < near
    assert far < hits.depth.max() < high


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("field_of_view_deg", [40.0, 61.0])
def test_view_is_filled(name: str, field_of_view_deg: float) -> None:
    scene = scene_of(name)
    distance_mm = scene.distance_mm if field_of_view_deg < 45.0 else scene.min_distance_mm
    camera = nominal(scene, distance_mm)
    assert (cast_pinhole(scene, camera, 120, np.deg2rad(field_of_view_deg)).surface >= 0).all()


@pytest.mark.parametrize("name", ["desk", "room"])
def test_things_hide_things(name: str) -> None:
    scene = scene_of(name)
    hits = cast_pinhole(scene, nominal(scene, scene.distance_mm), 200, FIELD_OF_VIEW_RAD)
    depth = hits.depth.reshape(200, 200)
    steps = np.abs(np.diff(depth, axis=1)) > 0.08 * scene.distance_mm
    assert len(np.unique(hits.surface)) > 25
    assert steps.any(axis=1).mean() > 0.5


@pytest.mark.parametrize("name", SCENES)
def test_markers_are_exact_squares_on_whole_texels(name: str) -> None:
    scene = scene_of(name)
    ids = [marker.id for marker in scene.markers]
    assert len(set(ids)) == len(ids) >= MARKERS_IN_VIEW[name]
    for marker in scene.markers:
        corners = marker.corners_world_mm
        sides = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
        assert sides == pytest.approx(np.full(4, SIDES_MM[name]), abs=1e-9)
        assert np.linalg.norm(corners[2] - corners[0]) == pytest.approx(
            np.sqrt(2.0) * SIDES_MM[name], abs=1e-9
        )
        quad, texels = host_of(scene, corners)
        assert texels == pytest.approx(np.round(texels), abs=1e-6)
        # In the order of the corners, columns then rows: as printed, not mirrored.
        (x0, y0), (x1, _), (_, y1), _ = np.round(texels).astype(int)
        assert x1 > x0
        assert y1 > y0
        albedo = quad.texture.albedo
        # Just inside its outline a marker is black, just outside white.
        assert albedo[y0, x0:x1].max() < 40 < 200 < albedo[y0 - 1, x0:x1].min()
        assert albedo[y1 - 1, x0:x1].max() < 40 < 200 < albedo[y1, x0:x1].min()
        assert albedo[y0:y1, x0].max() < 40 < 200 < albedo[y0:y1, x0 - 1].min()
        assert albedo[y0:y1, x1 - 1].max() < 40 < 200 < albedo[y0:y1, x1].min()
        assert np.linalg.norm(quad.edge_u_world_mm) / albedo.shape[1] == pytest.approx(
            np.linalg.norm(quad.edge_v_world_mm) / albedo.shape[0], rel=1e-12
        )


@pytest.mark.parametrize("name", SCENES)
def test_markers_are_detected_where_they_are(name: str) -> None:
    scene = scene_of(name)
    camera = nominal(scene, scene.distance_mm)
    found = detect_markers(photograph_markers(scene, camera, FIELD_OF_VIEW_RAD))
    truth = {
        marker.id: project_pinhole(marker.corners_world_mm, camera, N_PX, FIELD_OF_VIEW_RAD)
        for marker in scene.markers
    }
    assert set(found) <= set(truth)
    assert len(found) >= MARKERS_IN_VIEW[name]
    # In the half-size image the centre of a pixel is the mean of four finer ones: no shift.
    for item, corners in found.items():
        assert np.abs(corners - truth[item]).max() < 1.0, item


def test_desk_has_its_markers_on_two_sheets_seen_by_a_wide_lens_too() -> None:
    scene = scene_of("desk")
    hosts = {id(host_of(scene, marker.corners_world_mm)[0]) for marker in scene.markers}
    assert len(hosts) == 2
    camera = nominal(scene, scene.min_distance_mm)
    assert len(detect_markers(photograph_markers(scene, camera, WIDE_RAD))) >= 8


def test_cube_has_three_perpendicular_faces_of_one_metre() -> None:
    scene = scene_of("cube")
    hosts = {host_of(scene, marker.corners_world_mm)[0] for marker in scene.markers}
    assert len(hosts) == 3
    normals = []
    for quad in hosts:
        assert np.linalg.norm(quad.edge_u_world_mm) == pytest.approx(1000.0, abs=1e-9)
        assert np.linalg.norm(quad.edge_v_world_mm) == pytest.approx(1000.0, abs=1e-9)
        normals.append(np.cross(quad.edge_u_world_mm, quad.edge_v_world_mm) / 1e6)
    assert np.abs(np.array(normals) @ np.array(normals).T - np.eye(3)).max() < 1e-12


def test_bare_has_next_to_no_features_where_room_is_full_of_them() -> None:
    features_per_px = {}
    for name in ("room", "bare"):
        scene = scene_of(name)
        hits = cast_pinhole(scene, nominal(scene, scene.distance_mm), 300, FIELD_OF_VIEW_RAD)
        grey = (255.0 * hits.radiance.mean(axis=1)).astype(np.uint8).reshape(300, 300)
        features_per_px[name] = len(cv2.SIFT_create().detect(grey)) / grey.size
    assert features_per_px["room"] > 8e-3
    assert features_per_px["bare"] < 1e-3
