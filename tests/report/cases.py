"""Small adjustments to report on."""

from dataclasses import replace

import numpy as np

from lifcal.bundle import AdjustOptions, adjust
from lifcal.report import FrameEntry
from tests.bundle import cases

OPTIONS = AdjustOptions(distortion="brown", fixed={"k1": 0.0, "k2": 0.0})


def run(rng, *, scale=True, magnified=None, outliers=0.02, options=OPTIONS):
    """Adjust a simulated scene; the micro images of one lens type may be magnified by 3 %."""
    scene = cases.small_scene("mini", rng, n_points=50, n_views=8)
    observations, _ = scene.noisy(cases.NOISE_PX, rng, outliers=outliers)
    if magnified is not None:
        chosen = observations.lens_types == magnified
        offsets = observations.points_raw_px - observations.centers_raw_px
        limits = np.array(scene.camera.image_size) - 0.5
        moved = observations.points_raw_px + 0.03 * offsets * chosen[:, None]
        observations = replace(observations, points_raw_px=np.clip(moved, -0.5, limits))
    return adjust(
        observations,
        scene.truth,
        scene.camera.pixel_size_mm,
        scene.camera.grid,
        options,
        distances=cases.distances_of(scene, [[0, 1], [2, 3]]) if scale else None,
    )


def frames_of(adjustment):
    ids = adjustment.problem.observations.view_ids.tolist()
    return [FrameEntry(f"frame{i}.png", i, True, float(i)) for i in ids]
