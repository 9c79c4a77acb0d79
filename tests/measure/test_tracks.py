"""Which points are measured, and in which views."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import NoDistortion, PinholeArray
from lifcal.measure import Tracks, choose_tracks, find_views, sample_map
from lifcal.reconstruction import Reconstruction

SIZE = (640, 480)
SCALE = 0.5
ARRAY = PinholeArray(1000.0, 320.0, 240.0, 0.5, 2000.0)
WINDOW_PX = 4.0


def make_geometry(rng, n_points=200, n_views=3, depth_mm=800.0):
    """Points apart on a plane that faces the cameras, which stand side by side."""
    rows = int(np.ceil(np.sqrt(0.72 * n_points)))
    lattice = np.stack(np.meshgrid(np.arange(-(-n_points // rows)), np.arange(rows)), axis=2)
    lattice = rng.permutation(lattice.reshape(-1, 2))[:n_points]
    places = 30.0 + 15.5 * lattice + rng.uniform(-1.5, 1.5, (n_points, 2))
    xy = (places - 320.0 * np.array([1.0, 0.75])) * depth_mm / ARRAY.focal_px
    return Reconstruction(
        ARRAY,
        NoDistortion(),
        np.broadcast_to(np.eye(3), (n_views, 3, 3)),
        np.arange(n_views)[:, None] * np.array([-10.0, 0.0, 0.0]),
        np.column_stack([xy, np.full(n_points, depth_mm)]),
    )


def flat_map(u):
    return np.full((240, 320), u, np.float32)


U = ARRAY.alpha + ARRAY.beta_mm / 800.0


def in_all_views(geometry):
    n_points, n_views = len(geometry.points_world_mm), len(geometry.rotations)
    return np.repeat(np.arange(n_points), n_views), np.tile(np.arange(n_views), n_points)


def choose(geometry, depth_map, count, tracked=None, window=WINDOW_PX, besides=None):
    points, views = in_all_views(geometry) if tracked is None else tracked
    return choose_tracks(geometry, points, views, depth_map, SIZE, window, count, besides)


def where(geometry, tracks):
    cam = geometry.cam_points(tracks.points, tracks.references)
    return geometry.virtual_points(cam)[0]


def test_a_depth_edge_is_left_out(rng):
    n = 1000
    geometry = make_geometry(rng, n)
    edge_px = 300.0

    def stepped(_view):
        u_map = flat_map(U)
        u_map[:, round(edge_px * SCALE) :] = 1.3 * U
        return u_map, SCALE

    tracks = choose(geometry, stepped, n)
    chosen = np.isin(np.arange(n), tracks.points)
    x = where(geometry, Tracks(np.arange(n), np.full(n, tracks.references[0])))[:, 0]
    reach = WINDOW_PX * U
    near = (x < edge_px) & (x > edge_px - reach + 2.0)
    assert near.sum() > 5
    assert chosen[x < edge_px - reach - 2.0].all()
    assert not chosen[near].any()
    # behind the edge the map has another depth than the points
    assert not chosen[x >= edge_px].any()
    assert len(choose(geometry, lambda _: (flat_map(U), SCALE), n)) == n


def test_unknown_depth_and_strong_curves_are_left_out(rng):
    geometry = make_geometry(rng, n_points=60)

    def unknown(_view):
        return flat_map(np.nan), SCALE

    assert len(choose(geometry, unknown, 100)) == 0
    x = (np.arange(320) - 159.5) / 3.0
    wavy = (flat_map(U) * (1.0 + 0.025 * np.sin(x))).astype(np.float32)
    assert len(choose(geometry, lambda _: (wavy, SCALE), 100)) < 30
    # a plane that leans is smooth
    leaning = (1.0 / (1.0 / U * (1.0 + 1e-4 * np.arange(-160, 160)) + np.zeros((240, 1)))).astype(
        np.float32
    )
    assert len(choose(geometry, lambda _: (leaning, SCALE), 100)) > 50


def test_tracks_of_one_view_are_left_out(rng):
    geometry = make_geometry(rng, n_points=30)
    points, views = in_all_views(geometry)
    short = points < 10
    keep = ~short | (views == 0)
    tracks = choose(geometry, lambda _: (flat_map(U), SCALE), 100, (points[keep], views[keep]))
    np.testing.assert_array_equal(tracks.points, np.arange(10, 30))


def test_the_reference_is_in_the_middle_of_the_distances(rng):
    geometry = make_geometry(rng, n_points=20, n_views=5)
    away = np.array([40.0, 0.0, 80.0, 20.0, 60.0])
    geometry = replace(geometry, translations_mm=away[:, None] * np.array([0.0, 0.0, 1.0]))

    def depth_map(view):
        return flat_map(ARRAY.alpha + ARRAY.beta_mm / (800.0 + away[view])), SCALE

    tracks = choose(geometry, depth_map, 100)
    assert len(tracks) == 20
    np.testing.assert_array_equal(tracks.references, 0)


def test_tracks_are_spread(rng):
    """A crowd in one corner does not push out the few elsewhere; the longest come first."""
    geometry = make_geometry(rng, n_points=400, n_views=4)
    crowd = 360  # the first ones; the few are last, so no order helps them
    points = geometry.points_world_mm.copy()
    points[:crowd, :2] = (rng.uniform(70.0, 120.0, (crowd, 2)) - [320.0, 240.0]) * 0.8
    geometry = replace(geometry, points_world_mm=points)
    indices, views = in_all_views(geometry)
    longest = np.arange(5, crowd, 36)
    keep = (views < 3) | np.isin(indices, longest)
    tracked = indices[keep], views[keep]
    tracks = choose(geometry, lambda _: (flat_map(U), SCALE), 60, tracked, window=0.01)
    assert len(tracks) == 60
    assert (np.diff(tracks.points) > 0).all()
    assert np.isin(np.arange(crowd, 400), tracks.points).mean() > 0.9
    assert np.isin(longest, tracks.points).mean() > 0.7


def test_tracks_are_apart(rng):
    """Of those that share their pixels the longest is left, and none at what is measured anyway."""
    geometry = make_geometry(rng, n_points=100)
    reach = WINDOW_PX * U * 800.0 / ARRAY.focal_px
    points = geometry.points_world_mm.copy()
    points[1] = points[0]  # one corner, found twice
    points[2] = points[0] + [0.9 * reach, 0.0, 0.0]
    points[3] = points[0] + [1.1 * reach, 0.0, 0.0]
    others = np.linalg.norm(points[4:] - points[0], axis=1) > 3.0 * reach
    geometry = replace(geometry, points_world_mm=points)
    indices, views = in_all_views(geometry)
    keep = (views < 2) | (indices != 0)  # the first is the shortest
    keep &= (indices < 4) | np.isin(indices - 4, np.flatnonzero(others))
    flat = flat_map(U)
    tracks = choose(geometry, lambda _: (flat, SCALE), 200, (indices[keep], views[keep]))
    assert set(range(4)) & set(tracks.points.tolist()) == {1, 3}
    assert len(tracks) == 2 + others.sum()
    marker = points[[1]] + [0.0, 0.3 * reach, 0.0]
    without = choose(
        geometry, lambda _: (flat, SCALE), 200, (indices[keep], views[keep]), besides=marker
    )
    # 1 and 2 are near the marker, and 0; 3 is not
    assert set(range(4)) & set(without.points.tolist()) == {3}


def test_tracks_of_one_corner_at_different_depths_are_one(rng):
    """Their depths differ by more than a window is wide, but all views see them at one place."""
    geometry = make_geometry(rng, n_points=100)
    points = geometry.points_world_mm.copy()
    reach = WINDOW_PX * U * 800.0 / ARRAY.focal_px
    points[1] = points[0] * (1.0 + 1.5 * reach / np.linalg.norm(points[0]))
    assert np.linalg.norm(points[1] - points[0]) > 1.4 * reach
    geometry = replace(geometry, points_world_mm=points)
    indices, views = in_all_views(geometry)
    keep = (indices < 2) & ((views < 2) | (indices == 1))  # the first is shorter
    tracks = choose(geometry, lambda _: (flat_map(U), SCALE), 200, (indices[keep], views[keep]))
    assert tracks.points.tolist() == [1]


def test_views_that_see_a_point(rng):
    geometry = make_geometry(rng, n_points=50, n_views=4)
    tracks = Tracks(np.arange(50), np.zeros(50, np.int64))
    x = [where(geometry, Tracks(np.arange(50), np.full(50, view)))[:, 0] for view in range(4)]

    def depth_map(view):
        u_map = flat_map(U)
        if view == 1:
            u_map[:, :160] = 1.2 * U  # something nearer hides the left half
        if view == 2:
            u_map[:, 160:] = np.nan
        return u_map, SCALE

    found_tracks, found_views = find_views(geometry, tracks, depth_map, SIZE, 10)
    pairs = set(zip(found_tracks.tolist(), found_views.tolist(), strict=True))
    for point in range(50):
        assert (point, 0) in pairs
        assert ((point, 1) in pairs) == (x[1][point] >= 319.5)
        assert ((point, 2) in pairs) == (x[2][point] < 319.5)
    np.testing.assert_array_equal(
        np.lexsort((found_views, found_tracks)), np.arange(len(found_tracks))
    )


def test_points_outside_or_behind_are_seen_by_none(rng):
    geometry = make_geometry(rng, n_points=6, n_views=1)
    points = geometry.points_world_mm.copy()
    points[0, 0] += 5000.0
    points[1, 1] -= 5000.0
    points[2] *= -1.0
    geometry = replace(geometry, points_world_mm=points)
    tracks = Tracks(np.arange(6), np.zeros(6, np.int64))
    found, _ = find_views(geometry, tracks, lambda _: (flat_map(U), SCALE), SIZE, 10)
    np.testing.assert_array_equal(found, [3, 4, 5])


@pytest.mark.parametrize("most", [2, 3, 7])
def test_many_views_are_thinned_out_evenly(most, rng):
    geometry = make_geometry(rng, n_points=5, n_views=21)
    geometry = replace(geometry, translations_mm=np.zeros((21, 3)))
    tracks = Tracks(np.arange(5), np.zeros(5, np.int64))
    found, views = find_views(geometry, tracks, lambda _: (flat_map(U), SCALE), SIZE, most)
    np.testing.assert_array_equal(found, np.repeat(np.arange(5), most))
    for track in range(5):
        of_track = views[found == track]
        assert of_track[0] == 0
        assert of_track[-1] == 20
        assert np.diff(of_track).max() <= -(-20 // (most - 1))


def test_sample_map_takes_the_nearest_pixel(rng):
    u_map = rng.uniform(2.0, 4.0, (24, 32)).astype(np.float32)
    u_map[3, 4] = np.nan
    for scale in (0.5, 0.25, 1.0):
        rows, cols = np.mgrid[:24, :32]
        # the middle of each map pixel in the raw, and a little off it
        raw = (np.stack([cols, rows], axis=-1) + 0.5) / scale - 0.5
        moved = raw + rng.uniform(-0.49, 0.49, raw.shape) / scale
        np.testing.assert_array_equal(sample_map(u_map, scale, raw), u_map.astype(np.float64))
        np.testing.assert_array_equal(sample_map(u_map, scale, moved), u_map.astype(np.float64))
    outside = sample_map(u_map, 1.0, np.array([[-5.0, -5.0], [100.0, 100.0]]))
    np.testing.assert_array_equal(outside, [u_map[0, 0], u_map[-1, -1]])
