"""The micro-lens grid in images: search, fit, check, overlap discs, flat-fielding.

`fit_grid_to_white`, `fit_grid_to_frames` and `refine_grid` fit lattice, bend, lens types and
overlap discs; `check_grid`, `measure_offset` and `follow_grid` compare a grid with raws;
`check_plenoptic` tells whether an image is a raw at all; `vignetting_from_white`,
`vignetting_from_discs` and `vignetting_from_frames` make the maps by which `devignette` divides
raws; `draw_grid_fit` draws a fit. The record of a grid, `MicroLensGrid`, is in `lifcal.camera`.
"""

from lifcal.grid.check import (
    GridOffset,
    check_grid,
    check_lens_types,
    follow_grid,
    measure_offset,
    move_grid,
)
from lifcal.grid.fit import (
    FrameAverage,
    GridFit,
    LensFlag,
    average_frames,
    fit_grid_to_frames,
    fit_grid_to_white,
    refine_grid,
)
from lifcal.grid.flat_field import (
    devignette,
    vignetting_from_discs,
    vignetting_from_frames,
    vignetting_from_white,
)
from lifcal.grid.picture import draw_grid_fit
from lifcal.grid.plenoptic import check_plenoptic

__all__ = [
    "FrameAverage",
    "GridFit",
    "GridOffset",
    "LensFlag",
    "average_frames",
    "check_grid",
    "check_lens_types",
    "check_plenoptic",
    "devignette",
    "draw_grid_fit",
    "fit_grid_to_frames",
    "fit_grid_to_white",
    "follow_grid",
    "measure_offset",
    "move_grid",
    "refine_grid",
    "vignetting_from_discs",
    "vignetting_from_frames",
    "vignetting_from_white",
]
