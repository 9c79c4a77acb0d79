"""A camera as a table for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lifcal.camera.parameters import NO_SCALE, PARAMETERS, format_unit, format_value, unit_of
from lifcal.camera.pinhole_array import ARRAY_PARAMETERS, PHYSICAL_PARAMETERS
from lifcal.camera.tilt import TILT_PARAMETERS

if TYPE_CHECKING:
    from lifcal.camera.model import PlenopticCamera


def format_camera_html(camera: PlenopticCamera) -> str:
    """Return the parameters with their standard deviations, units and meanings as HTML."""
    values = dict(zip(ARRAY_PARAMETERS, camera.array.as_vector().tolist(), strict=True))
    values |= dict(zip(PHYSICAL_PARAMETERS, camera.parameters.as_vector().tolist(), strict=True))
    units = {name: unit_of(name, metric=camera.scale_source is not None) for name in values}
    # The physical parameters come first. c_x and c_y belong to both forms and are listed once.
    names = list(dict.fromkeys([*PHYSICAL_PARAMETERS, *ARRAY_PARAMETERS]))
    distortion = camera.distortion
    for name, value, unit in zip(
        distortion.parameter_names(), distortion.parameters.tolist(), distortion.units, strict=True
    ):
        names.append(name)
        values[name], units[name] = value, unit
    if camera.tilt is not None:
        for name, value in zip(TILT_PARAMETERS, camera.tilt.as_vector().tolist(), strict=True):
            names.append(name)
            values[name], units[name] = value, unit_of(name)
    sigmas = camera.sigmas()
    rows = []
    for name in names:
        shown = f"{format_value(values[name], sigmas.get(name))} {format_unit(units[name])}"
        if units[name] == NO_SCALE:
            shown = NO_SCALE
        meaning = PARAMETERS[name].meaning if name in PARAMETERS else "distortion"
        cells = "".join(f"<td>{escape(text.strip())}</td>" for text in (name, shown, meaning))
        rows.append(f"<tr>{cells}</tr>")
    width, height = camera.image_size
    facts = (
        f"{width} x {height} px of {1000.0 * camera.pixel_size_mm:.4g} µm, {len(camera.grid)} "
        f"micro lenses, distortion {distortion.name!r}, scale from "
        f"{camera.scale_source or 'nothing: lengths have no metric meaning'}"
    )
    head = "<tr><th>parameter</th><th>value ± σ</th><th></th></tr>"
    return f"<p>{escape(facts)}</p><table>{head}{''.join(rows)}</table>"
