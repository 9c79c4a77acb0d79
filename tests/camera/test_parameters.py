from lifcal.camera import NO_SCALE, PARAMETERS, unit_of
from lifcal.camera.camera_file import _UNITS
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
