"""The derivative checker: right on known derivatives, and able to fail in every way it claims."""

from __future__ import annotations

import numpy as np
import pytest

from tests.derivatives.checker import (
    central_difference,
    check_block,
    check_columns,
    complex_step,
)


def function(x):
    return np.array([x[0] ** 2 * x[1], np.sin(x[1]) + x[2] ** 3, np.exp(x[0]) / x[2]])


def jacobian(x):
    return np.array(
        [
            [2 * x[0] * x[1], x[0] ** 2, 0.0],
            [0.0, np.cos(x[1]), 3 * x[2] ** 2],
            [np.exp(x[0]) / x[2], 0.0, -np.exp(x[0]) / x[2] ** 2],
        ]
    )


X = np.array([0.7, -1.2, 1.9])


def test_complex_step_is_exact_to_rounding():
    # rounding only: the step's square is far below the last digit
    np.testing.assert_allclose(complex_step(function, X), jacobian(X), rtol=1e-14, atol=1e-15)


def test_central_difference_is_good_to_the_square_of_the_step():
    numeric = central_difference(function, X, 1e-5)
    np.testing.assert_allclose(numeric, jacobian(X), rtol=1e-9, atol=1e-9)
    # larger steps must be worse, by the square of their size: else the steps are not what is said
    coarse = np.abs(central_difference(function, X, 1e-2) - jacobian(X)).max()
    finer = np.abs(central_difference(function, X, 1e-3) - jacobian(X)).max()
    assert 50 < coarse / finer < 200


def test_central_difference_takes_a_step_for_each_input():
    def badly_scaled(x):
        return np.array([x[0] ** 3 + (1e8 * x[1]) ** 3])

    x = np.array([2.0, 2e-8])
    numeric = central_difference(badly_scaled, x, [1e-4, 1e-12])
    check_columns(["large", "small"], [[12.0, 12e8]], numeric, 1e-6)


def test_shapes_follow_the_output():
    assert complex_step(lambda x: x[0] * x[1], X).shape == (3,)
    assert complex_step(lambda x: np.outer(x, x), X).shape == (3, 3, 3)
    assert central_difference(lambda x: np.outer(x, x)[:2], X, 1e-4).shape == (2, 3, 3)


def test_a_lost_step_is_reported():
    with pytest.raises(AssertionError, match="complex step lost"):
        complex_step(lambda x: x.real**2, X)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
def test_right_block_passes(tolerance):
    check_block("right", jacobian(X), complex_step(function, X), tolerance)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_scaled_column_is_caught(column, tolerance):
    wrong = jacobian(X)
    wrong[:, column] *= 1.001
    row = int(np.argmax(np.abs(wrong[:, column])))
    with pytest.raises(AssertionError, match=rf"pose: worst entry \({row}, {column}\): analytic"):
        check_block("pose", wrong, complex_step(function, X), tolerance)


def test_message_gives_both_values():
    with pytest.raises(AssertionError, match=r"analytic 2\.5, numeric 2, difference 0\.25"):
        check_block("focal", [1.0, 2.5], [1.0, 2.0], 1e-6)


@pytest.mark.parametrize(
    ("analytic", "numeric", "side"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), "numeric"),
        (np.ones((2, 3)), np.zeros((2, 3)), "numeric"),
        (np.zeros((2, 3)), np.ones((2, 3)), "analytic"),
    ],
)
def test_dead_block_is_reported(analytic, numeric, side):
    # at any tolerance: also where zero and zero agree, or where one would allow anything
    with pytest.raises(AssertionError, match=f"tangential: dead block: all {side}"):
        check_block("tangential", analytic, numeric, 10.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["analytic", "numeric"])
def test_not_finite_is_reported(side, value):
    blocks = {"analytic": jacobian(X), "numeric": jacobian(X)}
    blocks[side][1, 2] = value
    with pytest.raises(AssertionError, match=rf"depth: {side} block .* at \(1, 2\): {value}"):
        check_block("depth", blocks["analytic"], blocks["numeric"], 1e-6)


@pytest.mark.parametrize("shape", [(3, 2), (9,), (1, 3, 3), ()])
def test_wrong_shape_is_reported(shape):
    # (3, 3) against (1, 3, 3) or () would broadcast and pass
    with pytest.raises(AssertionError, match="point: wrong shape"):
        check_block("point", np.ones(shape), np.ones((3, 3)), 1e-6)


def test_empty_block_is_reported():
    with pytest.raises(AssertionError, match="empty block"):
        check_block("nothing", np.ones((2, 0)), np.ones((2, 0)), 1e-6)


def test_complex_block_is_reported():
    with pytest.raises(AssertionError, match="numeric block is complex"):
        check_block("imaginary", np.ones(2), np.ones(2) + 1j, 1e-6)


def test_small_column_hides_in_a_block_but_not_in_columns():
    right = jacobian(X) * np.array([1.0, 1e-12, 1.0])
    wrong = right * np.array([1.0, 1.001, 1.0])
    check_block("mixed", wrong, right, 1e-10)  # this is why blocks hold like parameters only
    with pytest.raises(AssertionError, match="k1: worst entry"):
        check_columns(["k0", "k1", "k2"], wrong, right, 1e-10)


def test_dead_column_is_reported():
    right = jacobian(X)
    wrong = right * np.array([1.0, 0.0, 1.0])
    with pytest.raises(AssertionError, match="k1: dead block: all analytic"):
        check_columns(["k0", "k1", "k2"], wrong, right, 1e-10)


def test_columns_want_a_name_each():
    with pytest.raises(AssertionError, match="wrong shape"):
        check_columns(["k0", "k1"], jacobian(X), jacobian(X), 1e-10)
