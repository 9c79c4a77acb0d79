import numpy as np
import pytest

from lifcal.camera import GridBend, Lattice, MicroLensGrid
from lifcal.errors import ConfigError, InputError

LAYOUTS = ["hexagonal-rows", "hexagonal-columns", "square"]
SIZE = (400, 300)


def make_grid(layout, **options):
    lattice = Lattice.regular(layout, 17.3, (201.2, 149.6), n_types=3, **options)
    return MicroLensGrid.from_lattice(lattice, SIZE)


@pytest.fixture(params=[*LAYOUTS, "sheared", "explicit"])
def grid(request, rng):
    if request.param == "sheared":
        return make_grid("hexagonal-rows", rotation_rad=0.3, aspect=1.02, shear=0.01)
    if request.param == "explicit":
        whole = make_grid("square", rotation_rad=0.1)
        keep = rng.uniform(size=len(whole)) > 0.3  # dirty lenses: holes of several pitches
        centers = whole.centers_raw_px[keep] + rng.normal(scale=0.3, size=(keep.sum(), 2))
        return MicroLensGrid.from_centers(
            centers, SIZE, radius_px=8.0, lens_types=whole.lens_types[keep]
        )
    return make_grid(request.param, rotation_rad=-0.02)


@pytest.mark.parametrize(("layout", "n_neighbors"), list(zip(LAYOUTS, [6, 6, 4], strict=True)))
def test_neighbors_are_at_the_pitch_and_of_other_types(layout, n_neighbors):
    grid = make_grid(layout, rotation_rad=0.05)
    middle = int(grid.nearest([[200.0, 150.0]])[0])
    found = grid.neighbors([middle]).of(0)
    assert len(found) == n_neighbors
    distances = np.linalg.norm(grid.centers_raw_px[found] - grid.centers_raw_px[middle], axis=1)
    np.testing.assert_allclose(distances, 17.3, rtol=1e-12)
    assert (grid.lens_types[found] != grid.lens_types[middle]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotation", [0.0, 0.2, -0.4])
def test_lattice_describes_itself(layout, rotation):
    lattice = Lattice.regular(layout, 17.3, (0, 0), rotation_rad=rotation)
    assert lattice.pitch_px == pytest.approx(17.3)
    assert lattice.layout == layout.split("-")[0]
    period = np.pi / 2 if layout == "square" else np.pi / 3
    base = np.pi / 6 if layout == "hexagonal-columns" else 0.0
    difference = (lattice.rotation_rad - rotation - base) / period
    assert difference == pytest.approx(round(difference), abs=1e-9)
    assert -period / 2 < lattice.rotation_rad <= period / 2 + 1e-12


def test_a_long_basis_of_the_same_lattice_has_the_same_pitch():
    short = Lattice.regular("hexagonal-rows", 20.0, (0, 0))
    a, b = short.basis_px
    skewed = Lattice(np.zeros(2), np.array([a + 1 * b, a + 2 * b]))
    assert skewed.pitch_px == pytest.approx(20.0)
    assert skewed.layout == "hexagonal"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_types_are_equally_many(layout):
    counts = np.bincount(make_grid(layout).lens_types, minlength=3)
    assert counts.min() > 0.9 * counts.max()  # a row at the rim may be of one type


def test_aspect_and_shear():
    lattice = Lattice.regular("square", 10.0, (0, 0), aspect=1.1, shear=0.05)
    np.testing.assert_allclose(lattice.basis_px, [[10.0, 0.0], [0.55, 11.0]])


def test_every_lens_that_touches_the_image_is_there():
    grid = make_grid("hexagonal-rows", rotation_rad=0.3)
    q, r = np.mgrid[-60:60, -60:60]
    centers = grid.lattice.centers(np.stack([q.ravel(), r.ravel()], axis=1))
    outside = np.maximum(np.maximum(-0.5 - centers, centers - [399.5, 299.5]), 0.0)
    assert len(grid) == (outside.max(axis=1) <= grid.radius_px).sum()


def test_nearest_is_the_nearest(grid, rng):
    points = rng.uniform([-60, -60], [460, 360], (2000, 2))
    distances = np.linalg.norm(points[:, None] - grid.centers_raw_px[None], axis=2)
    np.testing.assert_array_equal(grid.nearest(points), distances.argmin(axis=1))
    assert grid.nearest([[np.nan, 1.0]])[0] == -1
    assert grid.nearest([[1e7, 1e7]])[0] >= 0


def test_seeing_is_every_lens_whose_image_is_inside(grid, rng):
    points = np.column_stack(
        [rng.uniform([-20, -20], [420, 320], (300, 2)), rng.uniform(1, 7, 300)]
    )
    points[::3, 2] *= -1.0
    found = grid.seeing(points)
    for i, (x, y, u) in enumerate(points):
        images = grid.centers_raw_px + ([x, y] - grid.centers_raw_px) / u
        near = np.linalg.norm(images - grid.centers_raw_px, axis=1)
        clear = np.abs(near - grid.radius_px) > 1e-9
        seen = np.flatnonzero((near <= grid.radius_px) & clear)
        np.testing.assert_array_equal(np.intersect1d(found.of(i), np.flatnonzero(clear)), seen)
        assert (np.diff(found.of(i)) > 0).all()
    np.testing.assert_array_equal(found.owners(), np.repeat(np.arange(300), np.diff(found.offsets)))
    assert len(grid.seeing([[np.nan, 0.0, 3.0]]).indices) == 0


def test_pixels_and_labels_agree(grid):
    labels = grid.label_image()
    assert labels.shape == (300, 400)
    for lens in (0, len(grid) // 2, len(grid) - 1):
        pixels = grid.pixels(lens)
        distances = np.linalg.norm(pixels - grid.centers_raw_px[lens], axis=1)
        assert (distances <= grid.radius_px).all()
        mine = labels[pixels[:, 1], pixels[:, 0]] == lens
        nearest = grid.nearest(pixels.astype(float)) == lens
        np.testing.assert_array_equal(mine, nearest)
    rows, cols = np.nonzero(labels >= 0)
    distances = np.linalg.norm(
        np.stack([cols, rows], 1) - grid.centers_raw_px[labels[rows, cols]], axis=1
    )
    assert distances.max() <= grid.radius_px


def test_pixels_stay_in_the_image():
    grid = MicroLensGrid.from_centers([[0.2, 0.1], [9.0, 9.0]], (10, 10), radius_px=2.0)
    expected = [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [0, 2]]
    near = [(x - 0.2) ** 2 + (y - 0.1) ** 2 <= 4.0 for x, y in [*expected, [1, 2]]]
    assert near == [True] * 6 + [False]
    assert grid.pixels(0).tolist() == expected
    assert grid.pixels(1).max() == 9


def test_pitch_of_an_explicit_grid():
    whole = make_grid("hexagonal-rows")
    grid = MicroLensGrid.from_centers(whole.centers_raw_px, SIZE, radius_px=8.0)
    assert grid.pitch_px == pytest.approx(17.3)
    assert grid.lattice is None
    assert grid.n_types == 1


def test_arrays_cannot_be_changed(grid):
    with pytest.raises(ValueError, match="read-only"):
        grid.centers_raw_px[0, 0] = 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Lattice.regular("hexagon", 20, (0, 0)), "unknown grid layout"),
        (lambda: Lattice.regular("square", 0.5, (0, 0)), "pitch_px is 0.5"),
        (lambda: Lattice.regular("square", 20, (0, 0), n_types=4), "n_types is 4"),
        (lambda: Lattice(np.zeros(2), np.array([[20.0, 0.0], [40.0, 0.01]])), "nearly parallel"),
        (lambda: MicroLensGrid.from_centers([[1.0, 1.0]], (0, 5), radius_px=5), "image_size is 0"),
        (lambda: MicroLensGrid.from_centers([[1.0, 1.0]], (5, 5), radius_px=0), "radius_px is 0"),
        (
            lambda: MicroLensGrid.from_centers(np.empty((0, 2)), (5, 5), radius_px=5),
            "no micro image",
        ),
        (
            lambda: MicroLensGrid.from_centers([[1.0, 1.0]], (5, 5), radius_px=5, lens_types=[5]),
            "6 types",
        ),
        (
            lambda: MicroLensGrid.from_centers(
                [[1.0, 1.0]], (5, 5), radius_px=5, lens_types=[0, 1]
            ),
            "2 lens types for 1 centers",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises((InputError, ConfigError), match=message):
        call()


# Bend and deviations


@pytest.fixture
def bend(rng):
    half = rng.normal(scale=0.01, size=(21, 21))
    return GridBend(SIZE, rng.normal(scale=0.5, size=(18, 2)), half @ half.T)


def test_bend_is_orthogonal_to_a_lattice(bend):
    x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    places = np.stack([x.ravel(), y.ravel()], axis=1).astype(float)
    field = bend.at(places)
    assert bend.order == 5
    # Sums over pixels stand for integrals over the image: equal to about (order / size)^2.
    assert np.sqrt(np.mean(np.sum(field**2, axis=1))) == pytest.approx(bend.rms_px, rel=1e-3)
    design = np.column_stack([np.ones(len(places)), places])
    linear = design @ np.linalg.lstsq(design, field, rcond=None)[0]
    assert np.abs(linear).max() < 2e-3
    assert np.hypot(*field.T).max() < bend.largest_px
    # Beyond the border (by 5 % of half the width) the field stays what it is there.
    np.testing.assert_allclose(bend.at([[-80.0, 100.0]]), bend.at([[-10.5, 100.0]]), atol=1e-12)


def test_sigma_of_the_bend(bend, rng):
    places = rng.uniform(0.0, 300.0, size=(5, 2))
    draws = rng.multivariate_normal(np.zeros(21), bend.covariance_px2, size=20000)
    unit = (2.0 * places + 1.0) / np.array(SIZE) - 1.0
    terms = [(n - j, j) for n in range(6) for j in range(n + 1)]
    values = np.array(
        [
            [
                np.polynomial.Legendre.basis(i)(x) * np.polynomial.Legendre.basis(j)(y)
                for i, j in terms
            ]
            for x, y in unit
        ]
    )
    # 20,000 draws: the standard deviation is known to 0.5 %.
    np.testing.assert_allclose((draws @ values.T).std(axis=0), bend.sigma_at(places), rtol=0.025)
    assert np.isnan(GridBend(SIZE, bend.coefficients_px).sigma_at(places)).all()


def test_errors_of_a_bend_add_up_to_its_sigma(bend, rng):
    places = rng.uniform((0.0, 0.0), SIZE, (200, 2))
    errors = bend.list_errors(places, 0.0)
    np.testing.assert_allclose((errors**2).sum(axis=0), bend.sigma_at(places) ** 2, rtol=1e-9)
    rms = np.sqrt((errors**2).mean(axis=1))
    assert (np.diff(rms) <= 0.0).all()
    large = bend.list_errors(places, float(rms[2]) * 1.001)
    np.testing.assert_allclose(large, errors[:2], rtol=1e-12, atol=1e-15)  # a shorter sum
    assert len(GridBend(SIZE, bend.coefficients_px).list_errors(places, 0.0)) == 0


def test_lenses_are_in_the_image_by_their_bent_centers(bend):
    lattice = Lattice.regular("square", 17.3, (201.2, 149.6), n_types=2)
    grid = MicroLensGrid.from_lattice(lattice, SIZE, radius_px=5.0, bend=bend)
    wide = lattice.inside(SIZE, 40.0)
    places = lattice.centers(wide)
    centers = places + bend.at(places)
    inside = ((centers >= -5.5) & (centers <= np.array(SIZE) - 0.5 + 5.0)).all(axis=1)
    np.testing.assert_array_equal(grid.indices_qr, wide[inside])
    np.testing.assert_allclose(grid.centers_raw_px, centers[inside], atol=1e-12)
    assert grid.pitch_px == lattice.pitch_px


def test_a_grid_on_another_lattice_keeps_bend_and_deviations(bend, rng):
    lattice = Lattice.regular("hexagonal-rows", 17.3, (201.2, 149.6), n_types=3)
    count = len(MicroLensGrid.from_lattice(lattice, SIZE, bend=bend))
    deviations = rng.normal(scale=0.1, size=(count, 2))
    grid = MicroLensGrid.from_lattice(lattice, SIZE, bend=bend, deviations_px=deviations)
    # Rounded to 0.001 px.
    assert np.abs(grid.deviations_px - deviations).max() < 0.000501
    moved = grid.on_lattice(
        Lattice(lattice.origin_px + np.array([8.0, 5.0]), lattice.basis_px, 3, lattice.type_rule),
        bend,
    )
    where = {(q, r): n for n, (q, r) in enumerate(grid.indices_qr.tolist())}
    rows = [where.get((q, r)) for q, r in moved.indices_qr.tolist()]
    assert None in rows
    for new, old in enumerate(rows):
        expected = np.zeros(2) if old is None else grid.deviations_px[old]
        np.testing.assert_allclose(moved.deviations_px[new], expected, atol=1e-12)
    assert moved.bend is bend
    smaller = grid.on_lattice(lattice, bend, radius_px=4.0)
    assert smaller.radius_px == 4.0
    assert len(smaller) < len(grid)
    same = [where[q, r] for q, r in smaller.indices_qr.tolist()]
    np.testing.assert_array_equal(smaller.centers_raw_px, grid.centers_raw_px[same])


def test_impossible_bends(bend):
    lattice = Lattice.regular("square", 17.3, (201.2, 149.6))
    for make, part in (
        (lambda: GridBend(SIZE, np.zeros((4, 2))), "4 coefficients"),
        (lambda: GridBend(SIZE, np.full((3, 2), np.nan)), "NaN"),
        (lambda: GridBend(SIZE, np.full((3, 2), 100.0)), "half its shorter side"),
        (lambda: GridBend(SIZE, np.zeros((3, 2)), np.zeros((3, 3))), "needs \\(6, 6\\)"),
        (lambda: MicroLensGrid.from_lattice(lattice, (410, 300), bend=bend), "bend is for"),
        (
            lambda: MicroLensGrid.from_lattice(lattice, SIZE, deviations_px=[[0.0, 0.1]]),
            "deviations_px has shape",
        ),
        (
            lambda: MicroLensGrid(SIZE, np.ones((1, 2)), np.zeros(1, int), 5.0, 1, bend=bend),
            "no bend and no deviations",
        ),
        (
            lambda: MicroLensGrid.from_centers([[5.0, 5.0]], SIZE, radius_px=3.0).on_lattice(
                lattice, None
            ),
            "cannot be put on another lattice",
        ),
    ):
        with pytest.raises(InputError, match=part):
            make()


def test_pitch_of_a_list_with_jitter_and_gaps(rng):
    lattice = Lattice.regular("hexagonal-rows", 12.57, (150.0, 100.0), rotation_rad=0.01)
    regular = MicroLensGrid.from_lattice(lattice, SIZE).centers_raw_px
    centers = regular + rng.normal(scale=0.05, size=regular.shape)
    for share in (1.0, 0.3):
        kept = centers[rng.random(len(centers)) < share]
        found = MicroLensGrid.from_centers(kept, SIZE, radius_px=6.0).pitch_px
        # the nearest of six neighbors alone would be 0.7 % nearer
        assert found == pytest.approx(12.57, rel=0.004)
