"""Pictures of depth: one direction of colors, and a place for what is unknown."""

import numpy as np

from lifcal.imaging import preview

UNKNOWN = (205, 205, 205)


def is_red(color):
    return int(color[0]) > int(color[2])


def test_near_is_red_for_distances_and_for_virtual_depth():
    depth = np.array([[500.0, 1000.0, np.nan]])
    near, far, unknown = preview.colorize_depth(depth, 500.0, 1000.0)[0]
    assert is_red(near)
    assert not is_red(far)
    assert tuple(unknown) == UNKNOWN
    # virtual depth grows toward the camera
    virtual = preview.colorize(2.0 + 700.0 / depth, 2.7, 3.4)[0]
    np.testing.assert_array_equal(virtual, [near, far, unknown])


def test_a_map_has_its_scale_and_a_legend_for_unknown():
    depth = np.linspace(500.0, 1000.0, 400)[None].repeat(50, axis=0)
    drawn = preview.draw_map(depth, 500.0, 1000.0, "{:.0f} mm", near_is_low=True)
    np.testing.assert_array_equal(drawn[:50], preview.colorize_depth(depth, 500.0, 1000.0))
    bar = drawn[-1]
    assert drawn.shape[1] == 400
    assert is_red(bar[0])
    assert not is_red(bar[300])
    assert (bar[-80:] == UNKNOWN).all()
    assert not (bar[:-80] == UNKNOWN).all(axis=-1).any()
    # a narrow map has no room for it
    narrow = preview.draw_map(depth[:, :100], 500.0, 1000.0, "{:.0f} mm", near_is_low=True)
    assert not (narrow[-1] == UNKNOWN).all(axis=-1).any()
    # the other way round for virtual depth
    assert is_red(preview.draw_map(depth, 500.0, 1000.0, "{:.2f}")[-1][300])


def test_bars():
    bar = preview.color_bar(500.0, 1000.0, "mm", 110, 200, near_is_low=True)
    assert not is_red(bar[20, 10])  # far is on top
    assert is_red(bar[-20, 10])
    assert is_red(preview.color_bar(500.0, 1000.0, "mm", 110, 200)[20, 10])


def test_tables():
    image = preview.draw_table([("a", "b"), ("", "d")], (4, 100), 200)
    assert image.shape[1] == 200
    dark = (image < 128).any(axis=(0, 2))
    assert dark[:60].any()
    assert dark[100:].any()
    assert not dark[60:100].any()
