"""Where millimetres come from: files, markers, picked points, trajectories."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.bundle import CameraPositions
from lifcal.calibration import CalibrateOptions
from lifcal.camera import BrownDistortion, PinholeArray, write_camera
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.geometry import RigidTransform, Trajectory, write_tum
from lifcal.imaging.markers import DICTIONARY, Marker, draw_marker
from lifcal.listener import Listener
from lifcal.reconstruction import Reconstruction, triangulate
from lifcal.scale import (
    EarlierOptics,
    KnownOptics,
    Markers,
    PickedDistance,
    ScaleKnowledge,
    ScaleOptions,
    find_scale,
    read_earlier_optics,
    read_marker_distances,
    read_picked_distances,
)
from lifcal.scale.markers import find_markers, place_markers
from lifcal.scale.picked import find_frame, place_picked
from lifcal.scale.trajectory import read_positions
from lifcal.simulate import build_camera

ARRAY = PinholeArray(1000.0, 320.0, 240.0, 0.5, 2000.0)
SCALE = 0.5


# Files


def test_marker_distances(tmp_path):
    path = tmp_path / "distances.txt"
    path.write_text("﻿# id1 id2 mm sigma\n\n3 14 250.5 0.1  # measured twice\n1,2,40,0.05\n")
    assert read_marker_distances(path) == ((3, 14, 250.5, 0.1), (1, 2, 40.0, 0.05))


def test_picked_distances(tmp_path):
    path = tmp_path / "picked.txt"
    path.write_text(
        "# frame x1 y1 x2 y2 mm sigma\nshot_7 10.5 20 30 40.25 123 0.5\n12 1 2 3 4 5 6\n"
    )
    assert read_picked_distances(path) == (
        PickedDistance("shot_7", (10.5, 20.0), (30.0, 40.25), 123.0, 0.5),
        PickedDistance("12", (1.0, 2.0), (3.0, 4.0), 5.0, 6.0),
    )


@pytest.mark.parametrize(
    ("read", "line", "words"),
    [
        (read_marker_distances, "1 2 40", "line 2: needs 'id1 id2 mm sigma', found '1 2 40'"),
        (read_marker_distances, "1 2 40 0.1 7", "line 2"),
        (read_marker_distances, "1.5 2 40 0.1", "line 2"),
        (read_marker_distances, "1 2 forty 0.1", "line 2"),
        (read_marker_distances, "1 2 -40 0.1", "needs positive"),
        (read_marker_distances, "1 2 40 0", "line 2: distance 40 +- 0 mm, needs positive"),
        (read_marker_distances, "1 2 nan 0.1", "needs positive"),
        (read_marker_distances, "1 2 40 inf", "needs positive"),
        (read_picked_distances, "a 1 2 3 4 5", "line 2: needs 'frame x1 y1 x2 y2 mm sigma'"),
        (read_picked_distances, "a 1 2 3 4 5 6 7", "line 2"),
        (read_picked_distances, "a 1 2 3 four 5 6", "line 2"),
        (read_picked_distances, "a 1 nan 3 4 5 6", "line 2"),
        (read_marker_distances, "7 7 40 0.1", "line 2: a distance from marker 7 to itself"),
        (read_picked_distances, "a 1 2 3 4 -5 6", "line 2: distance -5 +- 6 mm"),
        (read_picked_distances, "a 1 2 3 4 5 nan", "needs positive"),
    ],
)
def test_a_bad_line_is_named(read, line, words, tmp_path):
    path = tmp_path / "distances.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(DataError, match=r"distances\.txt: ") as caught:
        read(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_marker_distances, read_picked_distances])
def test_no_distances(read, tmp_path):
    (tmp_path / "empty.txt").write_text("# nothing yet\n\n")
    with pytest.raises(DataError, match="holds no distances"):
        read(tmp_path / "empty.txt")
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match=r"line [123]"):
        read(tmp_path / "binary")


def test_positions(tmp_path, rng):
    poses = [
        RigidTransform.from_rotation_vector(rng.normal(size=3), rng.normal(scale=100.0, size=3))
        for _ in range(10)
    ]
    path = tmp_path / "poses.txt"
    write_tum(path, Trajectory.from_poses(poses))
    indices = np.array([2, 5, 9, 14])
    found = read_positions(path, indices, indices.astype(float), 0.7)
    np.testing.assert_array_equal(found.view_ids, [2, 5, 9])
    wanted = [poses[index].translation_mm for index in (2, 5, 9)]
    np.testing.assert_allclose(found.positions_world_mm, wanted, atol=1e-6)
    np.testing.assert_array_equal(found.sigmas_mm, 0.7)
    with pytest.raises(DataError, match="position of 2 registered frames \\(need 3\\)"):
        read_positions(path, indices, indices + 1.0, 0.7)
    again = read_positions(path, indices - 2, indices.astype(float), 0.7)
    np.testing.assert_array_equal(again.view_ids, [0, 3, 7])
    np.testing.assert_array_equal(again.positions_world_mm, found.positions_world_mm)
    path.write_text("0 1 2 3\n")
    with pytest.raises(DataError, match="line 1"):
        read_positions(path, np.arange(3), np.arange(3.0), 0.7)


def test_positions_in_an_empty_file(tmp_path):
    (tmp_path / "poses.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match=r"0 registered frames|no poses"):
        read_positions(tmp_path / "poses.txt", np.arange(5), np.arange(5.0), 1.0)


# Geometry


@pytest.fixture
def geometry(rng):
    """Six views of what lies 800 mm ahead, from within 150 mm."""
    rotations = Rotation.from_rotvec(rng.normal(scale=0.08, size=(6, 3))).as_matrix()
    places = rng.uniform(-150.0, 150.0, (6, 3)) * [1.0, 1.0, 0.5]
    return Reconstruction(
        ARRAY,
        BrownDistortion(k0=3e-8, p0=1e-7),
        rotations,
        -np.einsum("nij,nj->ni", rotations, places),
        np.zeros((0, 3)),
    )


def see(geometry, points, views):
    """Where virtual images of views show one point each."""
    where = replace(geometry, points_world_mm=np.atleast_2d(points))
    cam = where.cam_points(np.arange(len(where.points_world_mm)), np.asarray(views))
    return where.virtual_points(cam)[0]


def square(center, side, rng):
    turn = Rotation.from_rotvec(rng.normal(scale=0.4, size=3)).as_matrix()
    corners = side / 2 * np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    return np.asarray(center) + corners @ turn.T


def sight(geometry, markers, views):
    """Detections of markers {id: corners} in the focused images of views."""
    return {
        view: [
            Marker(marker_id, (see(geometry, corners, [view] * 4) + 0.5) * SCALE - 0.5)
            for marker_id, corners in markers.items()
        ]
        for view in views
    }


def test_triangulate_is_exact(geometry, rng):
    for _ in range(10):
        point = np.array([*rng.uniform(-150.0, 150.0, 2), rng.uniform(600.0, 1000.0)])
        views = np.sort(rng.choice(6, 3, replace=False))
        xy = see(geometry, [point] * 3, views)
        found = triangulate(geometry, views, xy)
        # the inverse of the distortion is iterated
        np.testing.assert_allclose(found, point, atol=1e-5)


def test_markers_are_placed_exactly(geometry, rng):
    markers = {
        4: square((-60.0, 20.0, 800.0), 40.0, rng),
        9: square((80.0, -30.0, 700.0), 40.0, rng),
    }
    seen = sight(geometry, markers, range(6))
    options = Markers(40.0, distances=((4, 9, 170.0, 0.3),))
    found, findings = place_markers(geometry, seen, SCALE, options)
    wanted = np.vstack(list(markers.values()))
    np.testing.assert_allclose(found.points_world, wanted, atol=1e-4)
    sides = [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]]
    np.testing.assert_array_equal(found.ends[:8], np.repeat(np.array(sides)[:, :, None], 4, axis=2))
    # between centers: the means of the corners, at which nothing is measured
    np.testing.assert_array_equal(found.ends[8], [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert found.lengths_mm.tolist() == [40.0] * 8 + [170.0]
    # 0.2 % of a side, as people print
    assert found.sigmas_mm == pytest.approx([0.08] * 8 + [0.3])
    assert findings == []
    assert found.source == "markers"
    assert set(found.references.tolist()) == {3}
    # normals are across the sides
    corners = [[0, 1, 3]] * 4 + [[4, 5, 7]] * 4
    for normal, (a, b, c) in zip(found.normals_world, corners, strict=True):
        along = [wanted[b] - wanted[a], wanted[c] - wanted[a]]
        np.testing.assert_allclose(along @ normal, 0.0, atol=1e-4 * np.linalg.norm(normal))
    # every point has its place in all views
    assert len(found.seen_points) == 8 * 6
    for point, view, xy in zip(found.seen_points, found.seen_views, found.seen_px, strict=True):
        np.testing.assert_allclose(see(geometry, wanted[point], [view])[0], xy, atol=0.02)
    distances = found.distances(100)
    np.testing.assert_array_equal(distances.point_ids, found.ends + 100)
    given, _ = place_markers(geometry, seen, SCALE, Markers(40.0, 0.5))
    assert set(given.sigmas_mm.tolist()) == {0.5}


def test_a_wrong_sighting_is_left_out(geometry, rng):
    corners = square((10.0, 20.0, 800.0), 40.0, rng)
    seen = sight(geometry, {7: corners}, range(6))
    wrong = seen[4][0]
    seen[4] = [Marker(7, wrong.corners_px + np.array([25.0, -10.0]))]
    found, findings = place_markers(geometry, seen, SCALE, Markers(40.0))
    np.testing.assert_allclose(found.points_world, corners, atol=1e-4)
    assert 4 not in found.references
    assert sorted(set(found.seen_views.tolist())) == [0, 1, 2, 3, 5]
    assert [each.code for each in findings] == ["one-marker"]
    assert "rests on one marker (7)" in findings[0].text


def test_corners_in_another_order_are_a_wrong_sighting(geometry, rng):
    corners = square((10.0, 20.0, 800.0), 40.0, rng)
    seen = sight(geometry, {7: corners}, range(6))
    seen[1] = [Marker(7, np.roll(seen[1][0].corners_px, 1, axis=0))]
    found, _ = place_markers(geometry, seen, SCALE, Markers(40.0))
    np.testing.assert_allclose(found.points_world, corners, atol=1e-4)


def test_markers_that_are_missing(geometry, rng):
    markers = {i: square((60.0 * i, 0.0, 800.0), 40.0, rng) for i in (0, 1)}
    seen = sight(geometry, markers, range(6))
    known = ((0, 1, 60.0, 0.1), (0, 5, 300.0, 0.1))
    found, findings = place_markers(geometry, seen, SCALE, Markers(distances=known))
    # the corners, without what their sides are
    np.testing.assert_allclose(found.points_world, np.vstack(list(markers.values())), atol=1e-4)
    np.testing.assert_array_equal(found.ends, [[[0, 1, 2, 3], [4, 5, 6, 7]]])
    assert found.lengths_mm.tolist() == [60.0]
    assert [each.code for each in findings] == ["marker-missing"]
    assert findings[0].evidence == {"marker": 5}
    with pytest.raises(DataError, match=r"none of the marker distances.*\[0, 1\]"):
        place_markers(geometry, seen, SCALE, Markers(distances=known[1:]))
    once = {2: seen[2], 3: []}
    with pytest.raises(DataError, match=r"markers \[0, 1\] were found, but none in 2 views"):
        place_markers(geometry, once, SCALE, Markers(40.0))


def test_markers_without_a_distance_are_not_measured(geometry, rng):
    markers = {i: square((60.0 * i, 0.0, 800.0), 40.0, rng) for i in (0, 1, 2)}
    seen = sight(geometry, markers, range(6))
    options = Markers(distances=((0, 2, 120.0, 0.1),))
    found, _ = place_markers(geometry, seen, SCALE, options)
    wanted = np.vstack([markers[0], markers[2]])
    np.testing.assert_allclose(found.points_world, wanted, atol=1e-4)


def test_markers_and_picked_points_together(geometry, rng):
    seen = sight(geometry, {7: square((10.0, 20.0, 800.0), 40.0, rng)}, range(6))
    distances = (PickedDistance("c", (100.0, 80.0), (200.0, 150.0), 90.0, 0.4),)
    corners, _ = place_markers(geometry, seen, SCALE, Markers(40.0))
    images = [draw_plane(geometry, view) for view in range(6)]
    picked = place_picked(
        geometry, distances, lambda _: 0, lambda *_: 3.0, lambda view: images[view], SCALE
    )
    both = corners.join(picked)
    assert len(both.points_world) == 6
    np.testing.assert_array_equal(both.ends[:4], corners.ends)
    np.testing.assert_array_equal(both.ends[4], [[4] * 4, [5] * 4])
    np.testing.assert_array_equal(both.points_world[both.ends[4, :, 0]], picked.points_world)
    assert both.lengths_mm.tolist() == [40.0] * 4 + [90.0]
    assert both.source == "markers and distances"
    assert len(both.labels) == 5
    last = both.seen_points >= 4
    np.testing.assert_array_equal(both.seen_px[last], picked.seen_px)


PLANE_MM = 800.0


def draw_plane(geometry, view, rng_seed=5):
    """Return the focused image of a textured plane, z = PLANE_MM in the world, in a view."""
    rng = np.random.default_rng(rng_seed)
    rows, cols = np.mgrid[:240, :320]
    raw = (np.stack([cols.ravel(), rows.ravel()], axis=1) + 0.5) / SCALE - 0.5
    ideal = geometry.distortion.undistort(raw, geometry.principal_px)
    rays = np.column_stack([(ideal - geometry.principal_px) / ARRAY.focal_px, np.ones(len(raw))])
    rays = rays @ geometry.rotations[view]
    eye = -geometry.rotations[view].T @ geometry.translations_mm[view]
    xy = eye[:2] + rays[:, :2] * ((PLANE_MM - eye[2]) / rays[:, 2])[:, None]
    shown = np.zeros(len(xy))
    for _ in range(40):
        wave = rng.normal(scale=2.0 * np.pi / 40.0, size=2)
        shown += np.cos(xy @ wave + rng.uniform(0.0, 2.0 * np.pi))
    return np.clip(np.rint(128.0 + 8.0 * shown), 0, 255).astype(np.uint8).reshape(240, 320)


def test_picked_points(geometry):
    """The depth map is a little off: where the views agree is not."""
    ends = np.array([[-50.0, 10.0, PLANE_MM], [70.0, -20.0, PLANE_MM]])
    where = replace(geometry, points_world_mm=ends)
    cam = where.cam_points(np.arange(2), np.full(2, 3))
    xy, u = where.virtual_points(cam)
    pixels = (xy + 0.5) * SCALE - 0.5
    asked = []

    def sample_u(view, place):
        asked.append(view)
        return 1.01 * float(u[np.argmin(np.linalg.norm(xy - place, axis=1))])

    picked = PickedDistance("c", tuple(pixels[0]), tuple(pixels[1]), 130.0, 0.5)
    views = {"c": 3}.__getitem__

    def place(sample, read_view):
        return place_picked(geometry, [picked], views, sample, read_view, SCALE)

    found = place(sample_u, lambda view: draw_plane(geometry, view))
    # 300 mm between the views: half a pixel of the small images is 2 mm of depth
    np.testing.assert_allclose(found.points_world, ends, atol=2.0)
    assert asked == [3, 3]
    np.testing.assert_array_equal(found.references, [3, 3])
    np.testing.assert_array_equal(found.seen_views, [3, 3])
    np.testing.assert_allclose(found.seen_px, xy, atol=1e-9)
    np.testing.assert_array_equal(found.ends, [[[0] * 4, [1] * 4]])
    assert (found.lengths_mm[0], found.sigmas_mm[0], found.source) == (130.0, 0.5, "distances")
    # Without texture there is the depth map only: 1 % of u is 10 mm here.
    blank = np.full((240, 320), 99, np.uint8)
    rough = place(sample_u, lambda _: blank)
    off = np.linalg.norm(rough.points_world - ends, axis=1)
    assert (off > 5.0).all()
    assert (off < 25.0).all()
    for unknown in (np.nan, 0.1):
        with pytest.raises(DataError, match="of frame c has no known depth"):
            place(lambda *_, u=unknown: u, lambda _: blank)


# Markers in pictures


def make_picture(code):
    image = np.full((160, 200), 220, np.uint8)
    image[40:120, 60:140] = code
    return image


def test_find_markers():
    blank = np.full((160, 200), 200, np.uint8)
    pictures = [make_picture(draw_marker(17, 10)), blank]
    found = find_markers(2, pictures.__getitem__, DICTIONARY, Listener())
    assert [[marker.id for marker in image] for image in found] == [[17], []]
    with pytest.raises(DataError, match="give --dictionary DICT_6X6_250"):
        find_markers(1, pictures.__getitem__, "DICT_4X4_50", Listener())
    with pytest.raises(DataError, match="no marker of DICT_6X6_250 in any of 1 focused images"):
        find_markers(1, lambda _: blank, DICTIONARY, Listener())


# Options


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"marker_size_mm": 0.0}, InputError, "marker_size_mm is 0.0"),
        ({"marker_size_mm": float("nan")}, InputError, "marker_size_mm is nan"),
        ({"marker_sigma_mm": -1.0}, InputError, "marker_sigma_mm"),
        ({"trajectory_sigma_mm": 0.0}, InputError, "trajectory_sigma_mm"),
        ({"known": {"f_L": 16.0}}, InputError, "both f_L and B"),
        ({"known": {"f_L": 16.0, "b": 1.0}}, ConfigError, "'b'"),
        ({"known": {"f_L": 16.0, "B": -1.0}}, InputError, "known B is -1.0"),
        (
            {"known": {"f_L": 16.0, "B": 0.4}, "marker_size_mm": 40.0},
            InputError,
            "leave out markers",
        ),
    ],
)
def test_options_are_checked(options, kind, words):
    with pytest.raises(kind, match=words):
        ScaleOptions(**options)


def test_uses_markers():
    assert not ScaleOptions().uses_markers
    assert ScaleOptions(marker_size_mm=40.0).uses_markers
    assert ScaleOptions(marker_distances=((1, 2, 3.0, 0.1),)).uses_markers


def test_a_marker_that_moved_is_left_out(geometry, rng):
    """Views that disagree by far do not raise the limit for each other."""
    here, there = square((10.0, 20.0, 800.0), 40.0, rng), square((70.0, 20.0, 800.0), 40.0, rng)
    seen = sight(geometry, {3: here}, range(3)) | sight(geometry, {3: there}, range(3, 6))
    with pytest.raises(DataError, match="none in 2 views that agree"):
        place_markers(geometry, seen, SCALE, Markers(40.0))


def test_a_point_outside_the_image(geometry):
    blank = np.full((240, 320), 99, np.uint8)
    picked = PickedDistance("c", (10.0, 10.0), (330.0, 10.0), 30.0, 0.1)
    with pytest.raises(DataError, match=r"\(330, 10\) is outside the focused image of frame c"):
        place_picked(geometry, [picked], lambda _: 0, lambda *_: 3.0, lambda _: blank, SCALE)


def test_find_frame():
    names = ["0001", "0002", "0003", "right"]
    registered = ["0001", "0003", "right"]
    assert find_frame("0003", names, registered) == 1
    assert find_frame("0003.png", names, registered) == 1
    assert find_frame("2", names, registered) == 1  # no frame's name: an index
    assert find_frame("3", names, registered) == 2
    # a name is a name, even if the frame at that index was registered
    with pytest.raises(DataError, match=r"frame 0002, in which .* was not registered"):
        find_frame("0002", names, registered)
    with pytest.raises(DataError, match="there is no frame 0009"):
        find_frame("0009", names, registered)


# Sources together


class OwnSource:
    """A source that someone else wrote: a laser says how far the camera moved."""

    def describe(self):
        return {"source": "laser"}

    def find(self, views, listener):
        with listener.status("asking the laser"):
            places = np.arange(3.0 * views).reshape(-1, 3)
        positions = CameraPositions(np.arange(views), places, np.ones(views))
        return ScaleKnowledge(positions=positions)


def test_sources_of_others_are_asked_too():
    options = ScaleOptions(marker_size_mm=40.0, others=(OwnSource(),))
    assert [source.describe()["source"] for source in options.list_sources()] == [
        "markers",
        "laser",
    ]
    known = find_scale([OwnSource(), KnownOptics({"f_L": 16.0, "B": 0.4})], 5, Listener())
    assert known.fixed == {"f_L": 16.0, "B": 0.4}
    assert known.positions.view_ids.tolist() == [0, 1, 2, 3, 4]
    assert known.points is None
    with pytest.raises(InputError, match="two sources give camera positions"):
        find_scale([OwnSource(), OwnSource()], 5, Listener())


def test_options_with_a_source_of_others_are_plain():
    """The key of a finished calibration must not hold where an object is in memory."""
    options = CalibrateOptions(5.5, scale=ScaleOptions(others=(OwnSource(),)))
    again = CalibrateOptions(5.5, scale=ScaleOptions(others=(OwnSource(),)))
    assert options.as_dict() == again.as_dict()
    assert options.as_dict()["scale"]["others"] == [{"source": "laser"}]


def earlier_camera(**changes):
    camera = replace(build_camera("mini").camera, scale_source="markers")
    size = len(camera.parameter_names)
    root = np.random.default_rng(3).normal(size=(size, size))
    scales = np.array([1.0, 1.0, 1.0, 1e-3, 1.0, *np.full(size - 5, 1e-9)])
    covariance = (root @ root.T / size) * np.outer(scales, scales)
    return replace(camera, covariance=covariance, **changes)


def test_optics_of_an_earlier_calibration(tmp_path):
    """The priors have the covariance of the file, for f_L and B or for B alone."""
    camera = earlier_camera()
    write_camera(tmp_path / "camera.json", camera)
    earlier = read_earlier_optics(tmp_path / "camera.json")
    expected = camera.physical_covariance()[np.ix_([0, 2], [0, 2])]
    np.testing.assert_allclose(earlier.covariance_mm2, expected, rtol=1e-6)
    priors = earlier.find(None, Listener()).priors
    follows = priors["f_L"].follows
    assert (follows.name, follows.value) == ("B", priors["B"].value)
    # f_L = ... + slope B, with a sigma of its own
    found = np.array([[priors["f_L"].sigma ** 2, 0.0], [0.0, 0.0]]) + priors[
        "B"
    ].sigma ** 2 * np.outer([follows.slope, 1.0], [follows.slope, 1.0])
    np.testing.assert_allclose(found, expected, rtol=1e-6)

    alone = read_earlier_optics(tmp_path / "camera.json", ["B"]).find(None, Listener())
    assert set(alone.priors) == {"B"}
    assert alone.priors["B"].sigma == pytest.approx(expected[1, 1] ** 0.5, rel=1e-6)
    exact = replace(earlier, covariance_mm2=((0.0, 0.0), (0.0, 0.0))).find(None, Listener())
    assert set(exact.fixed) == {"f_L", "B"}  # held before, held again
    assert not exact.priors

    earlier.check_pixel_size(camera.pixel_size_mm)
    with pytest.raises(DataError, match=r"pixels of 17\.6 um, not 5\.5 um"):
        earlier.check_pixel_size(0.0055)


def test_earlier_calibrations_that_do_not_help(tmp_path):
    path = tmp_path / "camera.json"
    write_camera(path, earlier_camera(scale_source=None))
    with pytest.raises(DataError, match="without a scale"):
        read_earlier_optics(path)
    write_camera(path, replace(earlier_camera(), covariance=None))
    with pytest.raises(DataError, match=r"no covariance.*f_L=16\.748,B=0\.376"):
        read_earlier_optics(path)
    with pytest.raises(InputError, match="both f_L and B"):
        read_earlier_optics(path, ["f_L"])


def test_two_sources_of_one_length():
    earlier = EarlierOptics("a.json", 0.0055, ("B",), (0.4,), ((1e-6,),))
    with pytest.raises(InputError, match="two sources give B"):
        find_scale([earlier, KnownOptics({"B": 0.4})], None, Listener())
    with pytest.raises(InputError, match="not both"):
        ScaleOptions(known={"B": 0.4}, earlier=earlier)
    ScaleOptions(marker_size_mm=40.0, earlier=earlier)  # together they know more
