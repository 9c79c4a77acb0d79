import pytest

from lifcal.camera import NO_SCALE, PARAMETERS, unit_of
from lifcal.camera.camera_file import _UNITS
from lifcal.camera.parameters import format_unit, format_value
from lifcal.camera.pinhole_array import ARRAY_PARAMETERS, PHYSICAL_PARAMETERS
from lifcal.camera.tilt import TILT_PARAMETERS


def test_the_table_has_every_parameter_of_a_camera():
    assert {*ARRAY_PARAMETERS, *PHYSICAL_PARAMETERS, *TILT_PARAMETERS} <= set(PARAMETERS)
    assert {name for name, unit in _UNITS.items() if unit == "1"} == {"alpha", "g"}


def test_lengths_have_no_unit_without_a_scale():
    assert unit_of("B") == unit_of("beta") == "mm"
    assert unit_of("B", metric=False) == unit_of("beta", metric=False) == NO_SCALE
    assert unit_of("F", metric=False) == "px"
    assert unit_of("alpha") == unit_of("inverse_plane_0") == unit_of("k0") == ""


@pytest.mark.parametrize(
    ("value", "sigma", "text"),
    [
        (16.74981, 0.0018, "16.7498 ± 0.0018"),
        (2958.3, 12.0, "2958 ± 12"),
        (-5.982e-9, 4.2e-11, "(-5.982 ± 0.042) × 10⁻⁹"),
        (0.0, 3e-6, "(0.0 ± 3.0) × 10⁻⁶"),
        (1.5, 0.0, "1.5"),
        (1.5, None, "1.5"),
        (None, None, "unknown"),
    ],
)
def test_values(value, sigma, text):
    assert format_value(value, sigma) == text


def test_units_have_superscripts():
    assert format_unit("px^-2") == "px⁻²"
    assert format_unit("mm") == "mm"
