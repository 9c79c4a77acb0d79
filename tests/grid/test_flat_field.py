"""Vignetting maps, from white images and from the overlap discs."""

import numpy as np
import pytest

from benchmarks.grid import make_optics
from lifcal.camera import OverlapDiscs
from lifcal.errors import InputError
from lifcal.grid.flat_field import devignette, vignetting_from_discs, vignetting_from_white
from lifcal.simulate import Renderer


@pytest.fixture(scope="module")
def camera():
    optics = make_optics("hexagonal-columns", 0.02, (2.5, 3.1, 4.2), size=(200, 160))
    return optics.camera.grid, Renderer(optics, 256).render_white(1)


def test_discs_predict_the_white_image(camera):
    grid, white = camera
    predicted = vignetting_from_discs(grid, darkest=1e-6)
    rendered = white / white.max()
    # 256 rays leave 0.01 of noise where half of them are lost.
    assert np.abs(predicted - rendered).max() < 0.06
    assert np.sqrt(np.mean((predicted - rendered) ** 2)) < 0.01
    wrong = OverlapDiscs(1.1 * grid.discs.main_px, grid.discs.micro_px)
    assert np.sqrt(np.mean((vignetting_from_discs(grid, wrong) - rendered) ** 2)) > 0.03


def test_dividing_by_it_flattens_white(camera):
    grid, white = camera
    noisy = white * 0.5
    for vignetting in (vignetting_from_white(white), vignetting_from_discs(grid)):
        flat = devignette(noisy, vignetting)
        lit = vignetting > 0.3
        assert np.isnan(flat[vignetting == 0]).all()
        assert np.std(flat[lit]) < 0.05 * np.mean(flat[lit])
    color = devignette(np.repeat(noisy[:, :, None], 3, axis=2), vignetting, outside=0.0)
    assert color.shape == (160, 200, 3)
    assert (color[vignetting == 0] == 0.0).all()


def test_what_is_too_dark_is_zero(camera):
    _, white = camera
    vignetting = vignetting_from_white(white, darkest=0.4)
    assert vignetting.dtype == np.float32
    assert vignetting[vignetting > 0].min() >= 0.4
    assert (vignetting == 0).any()


def test_arguments_are_checked(camera):
    grid, white = camera
    with pytest.raises(InputError, match="darkest is 2"):
        vignetting_from_white(white, darkest=2)
    with pytest.raises(InputError, match="black"):
        vignetting_from_white(np.zeros((4, 4)))
    with pytest.raises(InputError, match="needs \\(height, width\\)"):
        vignetting_from_white(np.zeros((4, 4, 3)))
    with pytest.raises(InputError, match="1 micro discs for 3 lens types"):
        vignetting_from_discs(grid, OverlapDiscs(5.0, (2.0,)))
    with pytest.raises(InputError, match="but the vignetting map"):
        devignette(np.zeros((4, 5)), vignetting_from_white(white))
