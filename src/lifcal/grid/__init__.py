"""The micro-lens grid: search, fit, check, overlap discs, flat-fielding.

`lattice_search` finds a lattice in an image without prior knowledge; `fit` fits centers, bend,
lens types and overlap discs; `check` compares a grid with raws; `plenoptic` tells whether an image
is a raw at all; `flat_field` evens out the brightness inside micro images; `picture` draws a fit.
The record itself, `MicroLensGrid`, is in `lifcal.camera`.
"""
