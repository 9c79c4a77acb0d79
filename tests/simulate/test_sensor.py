import numpy as np
import pytest

from lifcal.errors import InputError
from lifcal.simulate import SensorOptions, expose

FLAT = np.full((400, 500), 0.5, np.float32)


@pytest.mark.parametrize(("bits", "dtype"), [(8, np.uint8), (10, np.uint16), (16, np.uint16)])
def test_levels_and_noise(bits, dtype):
    options = SensorOptions(bits=bits, exposure=0.8, full_well_e=10_000, read_noise_e=12)
    image = expose(FLAT, options, np.random.default_rng(0))
    assert image.dtype == dtype
    full = 255 if bits == 8 else 65535
    signal = image / full
    assert signal.mean() == pytest.approx(0.4, abs=2e-3)
    # shot, read and quantisation noise
    step = 1 / (2**bits - 1)
    expected = np.sqrt(0.4 / 10_000 + (12 / 10_000) ** 2 + step**2 / 12)
    assert signal.std() == pytest.approx(expected, rel=0.02)


def test_read_noise_is_what_a_dark_sensor_shows():
    options = SensorOptions(bits=16, read_noise_e=50)
    dark = np.zeros((300, 300), np.float32)
    image = expose(dark, options, np.random.default_rng(0)) / 65535
    # Half of a normal distribution is cut off at zero.
    assert np.sqrt(np.mean(image**2)) == pytest.approx(50 / 10_000 / np.sqrt(2), rel=0.02)


def test_ten_bits_leave_gaps_of_64():
    options = SensorOptions(bits=10)
    image = expose(FLAT, options, np.random.default_rng(0))
    assert (image % 64 == 0).all()


def test_over_exposure_clips():
    image = expose(FLAT, SensorOptions(exposure=3.0), np.random.default_rng(0))
    assert (image == 255).mean() > 0.99


def test_without_noise():
    options = SensorOptions(exposure=0.8, full_well_e=0.0, read_noise_e=0.0)
    assert (expose(FLAT, options, np.random.default_rng(0)) == 102).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 7}, "bits is 7"),
        ({"bits": 17}, "bits is 17"),
        ({"exposure": 0.0}, "exposure is 0"),
        ({"read_noise_e": -1.0}, "zero or positive"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        SensorOptions(**options)
