"""Observations: what is refused, how they are sorted, the CSV."""

import numpy as np
import pytest

from lifcal.errors import DataError, InputError
from lifcal.reconstruction import Observations, read_observations, write_observations
from tests.bundle import cases

HEADER = "view,point,center_x,center_y,x,y\n"
GOOD = HEADER + "3,7,10,10,11.5,9\n3,7,30,10,29,9\n1,7,10,10,12,9\n"


def arrays(n=6):
    views, points = np.repeat([5, 2], n // 2), np.arange(n)[::-1].copy()
    centers = np.column_stack([20.0 * np.arange(n), np.full(n, 10.0)])
    return views, points, centers, centers + 1.5


def test_sorted_by_point_then_view():
    observations = Observations.from_arrays(*arrays())
    order = observations.point_indices * 10 + observations.view_indices
    assert (np.diff(order) > 0).all()
    assert observations.view_ids.tolist() == [2, 5]
    np.testing.assert_allclose(
        observations.points_raw_px - observations.centers_raw_px, 1.5
    )  # rows stay together


def test_pairs_cover_all(rng):
    observations = cases.small_scene("mini", rng, 10, 3).observations
    points, views, offsets = observations.pairs
    assert offsets[0] == 0
    assert offsets[-1] == len(observations)
    for i in range(len(points)):
        rows = slice(offsets[i], offsets[i + 1])
        assert set(observations.point_indices[rows]) == {points[i]}
        assert set(observations.view_indices[rows]) == {views[i]}
    assert len(set(zip(points.tolist(), views.tolist(), strict=True))) == len(points)


def broken(**changes):
    values = dict(zip(("views", "points", "centers", "xy"), arrays(), strict=True))
    options = {k: changes.pop(k) for k in list(changes) if k not in values}
    values.update(changes)
    return (values["views"], values["points"], values["centers"], values["xy"]), options


NAN = np.array([[1.0, 2.0]] * 5 + [[np.nan, 1.0]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"xy": NAN}, "finite"),
        ({"centers": NAN}, "finite"),
        ({"views": np.zeros(6)}, "integers"),
        ({"points": np.zeros(3, int)}, "point needs 6"),
        ({"xy": np.zeros((5, 2))}, "shape"),
        ({"sigma_px": np.array([1.0, 1, 1, 0, 1, 1])}, "sigma"),
        ({"sigma_px": -np.ones(6)}, "sigma"),
        ({"lens_types": np.array([0, 0, 0, 0, 0, 3])}, "lens_type"),
        ({"lens_types": np.array([0, 0, 0, 0, 0, -1])}, "lens_type"),
        ({"covariances_px2": -np.tile(np.eye(2), (6, 1, 1))}, "positive definite"),
        ({"sigma_px": np.ones(6), "covariances_px2": np.tile(np.eye(2), (6, 1, 1))}, "not both"),
    ],
)
def test_refused(changes, words):
    values, options = broken(**changes)
    with pytest.raises(InputError, match=words):
        Observations.from_arrays(*values, **options)


def test_duplicates_are_refused():
    views, points, centers, xy = arrays()
    with pytest.raises(InputError, match="duplicate"):
        Observations.from_arrays(
            np.append(views, views[0]),
            np.append(points, points[0]),
            np.vstack([centers, centers[:1]]),
            np.vstack([xy, xy[:1] + 0.1]),
        )


def test_csv_round_trip(tmp_path, rng):
    observations = cases.small_scene("mini", rng, 10, 3).observations
    path = tmp_path / "new" / "observations.csv"
    write_observations(path, observations)
    again = read_observations(path)
    for name in ("view_indices", "point_indices", "centers_raw_px", "points_raw_px", "lens_types"):
        np.testing.assert_array_equal(getattr(again, name), getattr(observations, name))


def test_csv_without_options(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(GOOD)
    observations = read_observations(path)
    assert len(observations) == 3
    assert observations.view_ids.tolist() == [1, 3]
    path.write_text("x,y,view,point,center_y,center_x\n1,2,3,4,5,6\n")
    assert read_observations(path).centers_raw_px.tolist() == [[6.0, 5.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header"),
        (HEADER, "no observations"),
        ("view,point,x,y\n1,2,3,4\n", "header"),
        ("view,point,center_x,center_y,x,y,z\n1,2,3,4,5,6,7\n", "header"),
        (GOOD + "1,2,3\n", "line 5: 3 values for 6 columns"),
        (GOOD + "1,2,3,4,5,oops\n", "line 5: y is 'oops'"),
        (GOOD + "1.5,2,3,4,5,6\n", "view is 1.5"),
        (GOOD + "1,2,3,4,nan,6\n", "finite"),
        (GOOD + "3,7,10,10,11,9\n", "duplicate"),
        (HEADER.strip() + ",sigma\n1,2,3,4,5,6,-1\n", "sigma"),
    ],
)
def test_bad_csv_is_one_line(tmp_path, text, words):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as info:
        read_observations(path)
    assert str(path) in str(info.value)
    assert "\n" not in str(info.value)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_observations(tmp_path / "none.csv")
