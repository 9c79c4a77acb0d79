"""Structure from motion with pycolmap: features, matches and mapping, with one shared camera.

This is the only module that imports pycolmap. COLMAP has pixel centers at half-integers, lifcal at
integers; only `_to_raw` converts between them.
"""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, read_only
from lifcal.camera import BrownDistortion
from lifcal.diagnostics import Finding, explain_failure
from lifcal.errors import ConfigError, DataError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.imaging.files import write_png
from lifcal.sfm.depth_check import agree_with_depth
from lifcal.sfm.engine import SfmViews
from lifcal.sfm.model import SfmModel
from lifcal.sfm.motion import describe_motion
from lifcal.sfm.retrieval import find_similar_pairs
from lifcal.sfm.rigidity import (
    FOCAL_RANGE,
    PairMatches,
    RigidityScan,
    find_backdrop,
    find_rest,
    find_strangers,
    scan_focal_length,
)

_DepthReader: TypeAlias = Callable[[int], Float32Array]


MATCHING = ("auto", "sequential", "exhaustive", "retrieval")
"""Ways to choose the pairs of frames that are matched."""
_MOST_EXHAUSTIVE = 16
"""Number of frames up to which 'auto' matches all pairs. So few frames may be single pictures in no
order, and matching all pairs takes little time."""
_MOST_IN_PAIRS = 60
"""Number of frames above which 'auto' matches only pairs that look alike instead of all pairs."""
_MODEL = "SIMPLE_RADIAL"
"""COLMAP's camera model: one focal length and one radial term. Tracks in focused images do not
determine more parameters well."""
_INIT_ANGLES_DEG = (16.0, 6.0, 2.0)
"""Smallest angles between the rays of the first two views, which are tried in turn: first COLMAP's
own default, then smaller ones for small motions."""
_ENOUGH = 0.8
"""Fraction of the images that a model must register. If it registers fewer, mapping is started
again from a pair of views that are nearer to each other."""
_PLAUSIBLE = 2.0
"""Misfit of virtual depths (`VirtualStart.misfit`) above which a reconstruction is doubted, and
another first pair is tried. Right reconstructions have 0.4; wrong ones, with all images registered,
had 4.8 and more. They occur with a narrow field of view, where a first pair with a large angle can
lead to a wrong minimum."""
_INIT_ANGLE_WITH_DEPTH_DEG = 0.7
"""Smallest angle between the rays of the first two views if the matches were checked by virtual
depth. It can be smaller than without this check, because such matches are confirmed by more than
their parallax."""
_GROWTH = 1.4
"""Factor by which a model grows between two global bundle adjustments. COLMAP's default is 1.1, for
large scenes; here 1.4 gives the same poses in half the time."""
_RESTING = 0.9
"""If more than this fraction of the pairs of images show no motion, the camera rests. A turntable
that stands still for some frames has a smaller fraction; a fixed camera in front of moving objects
has 1."""
_WEAK = 0.15
"""Standard deviation of log F above which mapping is tried with several values of F."""
_FARTHEST = 0.7
"""Largest difference in log F between the most likely value and the others that are then tried; it
is a factor of two."""
_SAME_FOCAL = 0.1
"""Values of F whose logarithms differ by less than this give the same poses."""
_MOST_BACKDROP = 0.15
"""Largest fraction of the image that may rest while the scene moves. The value is between those of
two real recordings: a turntable that fills the frame (0.00 to 0.01), and moving figures in front of
books and a wall (0.24)."""
_MANY_STRANGERS = 0.02
"""If more than this fraction of the matches do not follow the motion of the majority, a finding
reports it."""
_GUESS = 1.2
"""Start value of F for COLMAP if nothing is known, relative to the longer side of the image. It is
COLMAP's own default."""
_SIGMA_SHARE = 0.01
"""Relative standard deviation of virtual depths if none is given. Only the ratios between matches
matter, because the overall size of the noise is estimated."""
_SPACE, _SPACE_AN_IMAGE = 32 << 20, 1 << 20
"""Upper limits of the bytes that features and matches take on the disk, in addition to images and
masks: a constant part, and a part for each image."""


@dataclass(frozen=True)
class SfmOptions:
    """Options of structure from motion.

    Parameters
    ----------
    matching : 'auto', 'sequential', 'exhaustive' or 'retrieval'
        'sequential' matches each frame with those around it and with some far ones (2, 4, 8 ...
        frames later), for videos and other ordered recordings. 'retrieval' matches each frame with
        those that look most similar, for large unordered sets. 'exhaustive' matches all pairs.
        'auto' uses 'sequential' for more than 16 frames; if frames remain unregistered, it then
        uses 'exhaustive', or 'retrieval' for more than 60 frames.
    overlap : int
        Number of frames on each side with which sequential matching compares a frame.
    neighbors : int
        Number of similar frames with which retrieval compares each frame.
    max_features : int
        Largest number of features in each image.
    min_frames : int
        Smallest number of registered frames; fewer raise an error.
    seed : int
    """

    matching: str = "auto"
    overlap: int = 8
    neighbors: int = 20
    max_features: int = 1500
    min_frames: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.matching not in MATCHING:
            raise ConfigError.unknown("matching", self.matching, MATCHING)
        if self.overlap < 1 or self.neighbors < 1:
            raise InputError("overlap and neighbors need 1 or more")
        if not 0 <= self.seed < 1 << 31:
            raise InputError(f"seed is {self.seed}, needs 0 to {(1 << 31) - 1}")
        if self.max_features < 100 or self.min_frames < 2:
            raise InputError("max_features needs 100 or more, min_frames 2 or more")


@dataclass(frozen=True)
class ColmapEngine:
    """COLMAP's incremental mapping, helped by virtual depths: the engine that is used by default.

    Parameters
    ----------
    options : SfmOptions
    """

    options: SfmOptions = SfmOptions()

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends, besides the views."""
        return {"engine": "colmap", **asdict(self.options)}

    def reconstruct(
        self,
        views: SfmViews,
        *,
        judge: Callable[[SfmModel], float] | None = None,
        on_stage: Callable[[str], None] | None = None,
        scratch: Path | None = None,
    ) -> SfmModel:
        """Find poses and points from totally focused images of one camera.

        With virtual depths, F is found from the rigidity of the scene between pairs of images
        (`scan_focal_length`) and held fixed during mapping, with c in the middle of the image.
        Without them COLMAP estimates F itself, which some motions (such as a turntable's) do not
        determine.

        Parameters
        ----------
        views : SfmViews
            The images. If they have `read_depth`, matches that contradict virtual depth are left
            out, views may be nearer to each other, and F is found. `focal_px` is used as a start
            value if virtual depths do not determine F.
        judge : callable, optional
            Function that returns the misfit of virtual depths to a model (`VirtualStart.misfit`). A
            model with a misfit of 2 or more is rejected, and others are computed. Among the models
            that are not rejected, the one with most images is returned, and among those with
            equally many images the one with the smallest misfit. Without `judge`, the reprojection
            error is used instead, and no model is rejected.
        on_stage : callable, optional
            Called with the name of each stage as it begins: 'features', 'matching', 'mapping'.
        scratch : Path, optional
            Folder for intermediate files of COLMAP, which is emptied before and removed afterwards.
            Without it, a temporary folder of the system is used.

        Raises
        ------
        EstimationError
            If too few images can be registered; the message says how many were matched.
        """
        if len(views.images) < self.options.min_frames:
            raise EstimationError(
                f"{len(views.images)} usable frames are too few (need {self.options.min_frames}): "
                "record the scene from more places",
                stage="sfm",
                evidence={"frames": len(views.images)},
            )
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)  # files of a run that was killed
        folder = scratch or Path(tempfile.mkdtemp(prefix="lifcal-sfm-"))
        try:
            _check_space(folder, views.images)
            return _reconstruct(folder, views, self.options, judge, on_stage or (lambda _: None))
        except RuntimeError as error:  # an error message of COLMAP
            raise DataError(f"{folder}: COLMAP cannot work there: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_space(folder: Path, images: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Raise DataError if the disk is nearly full, in which case COLMAP would crash."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    needed = _SPACE + sum(2 * image.size + _SPACE_AN_IMAGE for image in images)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DataError(
            f"{place}: {free >> 20} MB of the disk are free, COLMAP needs {needed >> 20} MB"
        )


def _import_pycolmap() -> Any:
    """Import and return pycolmap, and restore the signal handlers that the import replaces."""
    before = signal.getsignal(signal.SIGTERM)
    import pycolmap

    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    return pycolmap


def _reconstruct(
    folder: Path,
    views: SfmViews,
    options: SfmOptions,
    judge: Callable[[SfmModel], float] | None,
    on_stage: Callable[[str], None],
) -> SfmModel:
    images, masks, scale, focal_px = views.images, views.masks, views.scale, views.focal_px
    depths = None if views.read_depth is None else (views.read_depth, views.read_sigma)
    pycolmap = _import_pycolmap()
    pycolmap.logging.minloglevel = int(pycolmap.logging.FATAL)
    pycolmap.set_random_seed(options.seed)
    names = [f"{index:06d}.png" for index in range(len(images))]
    for index, name in enumerate(names):
        write_png(folder / "images" / name, images[index])
        if masks is not None:
            write_png(folder / "masks" / f"{name}.png", masks[index].astype(np.uint8) * 255)
    database = folder / "database.db"
    shape = images[0].shape
    on_stage("features")
    _extract(pycolmap, folder, names, shape, masks is not None, scale, options, focal_px)
    keypoints = None if depths is None else _sample_depths(pycolmap, database, names, *depths)
    best: _Mapped | None = None
    enough = max(math.ceil(_ENOUGH * len(images)), options.min_frames)
    for matching in _list_ways(options, len(images)):
        on_stage("matching")
        _match(pycolmap, database, names, matching, options)
        plan = _Plan((), ())
        if keypoints is not None:
            _check_by_depth(pycolmap, database, keypoints)
            plan = _plan(pycolmap, database, keypoints, scale, shape, focal_px, options.seed)
        on_stage("mapping")
        for focal in (*plan.focals_px, None):
            if focal is None and best is not None and best.n_images >= options.min_frames:
                break  # the model is good, so COLMAP need not estimate F
            if plan.focals_px:
                _set_focal(pycolmap, database, None if focal is None else focal * scale, shape)
            for found in _map(
                pycolmap, folder, options, depths is not None, hold=focal is not None
            ):
                model = replace(_collect(found, names, scale), findings=plan.findings)
                mapped = _Mapped.of(model, judge)
                if best is None or mapped.rank(enough) > best.rank(enough):
                    best = mapped
                if mapped.plausible and mapped.n_images >= enough:
                    break
        if best is not None and best.plausible and best.n_images == len(images):
            break
    n_registered = 0 if best is None else best.n_images
    if best is None or n_registered < options.min_frames:
        error = EstimationError(
            _say_too_few(pycolmap, database, len(images), n_registered, options.min_frames),
            stage="sfm",
            evidence={"frames": len(images), "registered": n_registered},
        )
        raise explain_failure(error, plan.findings)
    return best.model


class _Mapped(NamedTuple):
    """A reconstruction, and the misfit of virtual depths to it."""

    model: SfmModel
    misfit: float
    plausible: bool

    @classmethod
    def of(cls, model: SfmModel, judge: Callable[[SfmModel], float] | None) -> _Mapped:
        if judge is None:
            return cls(model, model.mean_error_px, True)
        misfit = judge(model)
        return cls(model, misfit, misfit < _PLAUSIBLE)

    @property
    def n_images(self) -> int:
        """Number of registered images."""
        return int(self.model.registered.sum())

    def rank(self, enough: int) -> tuple[bool, int, float]:
        """Return a sort key, larger for better models.

        Plausible models with enough images come first, then those with more images, then those with
        less misfit.
        """
        return self.plausible and self.n_images >= enough, self.n_images, -self.misfit


class _Plan(NamedTuple):
    """Values of F to try in mapping, the most likely first, and findings."""

    focals_px: tuple[float, ...]
    findings: tuple[Finding, ...]


def _plan(
    pycolmap: Any,
    database: Path,
    keypoints: dict[int, _Keypoints],
    scale: float,
    shape: tuple[int, ...],
    focal_px: float | None,
    seed: int,
) -> _Plan:
    """Find F from the matches, and leave out matches that do not follow the majority's motion.

    Raises
    ------
    EstimationError
        If the camera rests.
    """
    size = (round(shape[1] / scale), round(shape[0] / scale))
    with pycolmap.Database.open(database) as opened:
        ids, geometries = opened.read_two_view_geometries()
        views = [pycolmap.pair_id_to_image_pair(pair_id) for pair_id in ids]
        matches = [np.asarray(geometry.inlier_matches).reshape(-1, 2) for geometry in geometries]
        pairs = [_pair_up(keypoints, views[i], matches[i], scale) for i in range(len(views))]
        _check_motion(pairs)
        findings = describe_motion(pairs, size)
        try:
            scan = scan_focal_length(pairs, size, seed=seed)
        except EstimationError:  # too few virtual depths: COLMAP must find F from the images alone
            return _Plan((), tuple(findings))
        strange = find_strangers(pairs, scan, size)
        backdrop, resting = find_backdrop(pairs, strange, size)
        _check_backdrop(backdrop)
        strange = [odd | still for odd, still in zip(strange, resting, strict=True)]
        for i in range(len(views)):
            if strange[i].any():
                geometries[i].inlier_matches = matches[i][~strange[i]]
                opened.update_two_view_geometry(*views[i], geometries[i])
    findings += _describe_strangers(strange, backdrop)
    return _Plan(_list_focals(scan, size[0], focal_px), tuple(findings))


def _pair_up(
    keypoints: dict[int, _Keypoints],
    views: tuple[int, int],
    matches: npt.NDArray[np.uint32],
    scale: float,
) -> PairMatches:
    points, sigmas = [], []
    for side, view in enumerate(views):
        found = keypoints[view]
        chosen = matches[:, side]
        places = _to_raw(found.places_px[chosen], scale)
        points.append(np.column_stack([places, found.u[chosen]]))
        sigmas.append(found.sigma[chosen])
    return PairMatches(views[0], views[1], points[0], points[1], sigmas[0], sigmas[1])


def _check_motion(pairs: Sequence[PairMatches]) -> None:
    resting, moving = find_rest(pairs)
    if resting < _RESTING:
        return
    scene = (
        f"{100.0 * moving:.0f} % of the features move: objects move in front of a static camera"
        if moving > _MANY_STRANGERS
        else "the camera does not move"
    )
    raise EstimationError(
        f"in {100.0 * resting:.0f} % of the pairs of frames most features stay where they are in "
        f"the image, and {scene}. Move the camera around a static scene, or turn the scene as a "
        "whole",
        stage="sfm",
        evidence={"resting_pairs": resting, "moving_features": moving},
    )


def _list_focals(scan: RigidityScan, width: int, hint_px: float | None) -> tuple[float, ...]:
    """Return the values of F to try: one if rigidity determines it well, else several around it."""
    wanted: list[float] = []
    for hypothesis in scan.hypotheses:
        wanted.append(hypothesis.focal_px)
        if hypothesis.sigma_log_focal > _WEAK:
            factor = math.exp(min(hypothesis.sigma_log_focal, _FARTHEST))
            wanted += [hypothesis.focal_px * factor, hypothesis.focal_px / factor]
    if hint_px is not None and scan.hypotheses[0].sigma_log_focal > _WEAK:
        wanted.append(hint_px)
    found: list[float] = []
    for focal in wanted:
        focal = min(max(focal, FOCAL_RANGE[0] * width), FOCAL_RANGE[1] * width)
        if all(abs(math.log(focal / other)) > _SAME_FOCAL for other in found):
            found.append(focal)
    return tuple(found)


def _check_backdrop(share: float) -> None:
    if share > _MOST_BACKDROP:
        raise EstimationError(
            f"{100.0 * share:.0f} % of the image rests while the rest moves: objects move in front "
            "of a static camera. Move the camera around a static scene; or, with a turntable, "
            "cover the backdrop, so that the turning objects fill the image",
            stage="sfm",
            evidence={"resting_image": share},
        )


def _describe_strangers(strange: Sequence[BoolArray], backdrop: float) -> list[Finding]:
    flags = np.concatenate([np.zeros(0, np.bool_), *strange])
    share = float(flags.mean()) if len(flags) else 0.0
    findings = []
    if backdrop > 0.0:
        findings.append(
            Finding.of(
                "backdrop-resting",
                f"{100.0 * backdrop:.0f} % of the image rests while the scene moves, as a backdrop "
                "behind a turntable does: it is left out",
                share=backdrop,
            )
        )
    if share > _MANY_STRANGERS:
        findings.append(
            Finding.of(
                "matches-strange",
                f"{100.0 * share:.0f} % of the matches between frames do not follow the motion of "
                "the majority and are left out",
                share=share,
            )
        )
    return findings


def _set_focal(pycolmap: Any, database: Path, focal: float | None, shape: tuple[int, ...]) -> None:
    """Set the camera's F in px of the images (None for COLMAP's guess), with c in the middle."""
    rows, cols = shape[:2]
    with pycolmap.Database.open(database) as opened:
        (camera,) = opened.read_all_cameras()
        guess = _GUESS * max(rows, cols) if focal is None else focal
        camera.params = [guess, 0.5 * cols, 0.5 * rows, 0.0]
        camera.has_prior_focal_length = focal is not None
        opened.update_camera(camera)


def _extract(
    pycolmap: Any,
    folder: Path,
    names: list[str],
    shape: tuple[int, ...],
    masked: bool,
    scale: float,
    options: SfmOptions,
    focal_px: float | None,
) -> None:
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = _MODEL
    if masked:
        reader.mask_path = folder / "masks"
    if focal_px is not None:
        rows, cols = shape[:2]
        reader.camera_params = f"{focal_px * scale},{cols / 2},{rows / 2},0"
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.use_gpu = False
    extraction.sift.max_num_features = options.max_features
    # The finest detail of a focused image has the size of |u| raw pixels, so the image is already
    # oversampled, and COLMAP need not enlarge it first.
    extraction.sift.first_octave = 0
    # Register the images in order, before threads extract features in any order. COLMAP breaks ties
    # by the ids of images, so the result would depend on the order.
    pycolmap.Database.open(folder / "database.db").close()
    pycolmap.import_images(
        folder / "database.db",
        folder / "images",
        camera_mode=pycolmap.CameraMode.SINGLE,
        image_names=names,
        options=reader,
    )
    pycolmap.extract_features(
        folder / "database.db",
        folder / "images",
        image_names=names,
        camera_mode=pycolmap.CameraMode.SINGLE,
        reader_options=reader,
        extraction_options=extraction,
    )


def _list_ways(options: SfmOptions, n_images: int) -> list[str]:
    """Return the ways of matching, to be tried until a plausible model contains all images."""
    if options.matching != "auto":
        return [options.matching]
    if n_images <= _MOST_EXHAUSTIVE:
        return ["exhaustive"]
    return ["sequential", "exhaustive" if n_images <= _MOST_IN_PAIRS else "retrieval"]


def _match(pycolmap: Any, database: Path, names: list[str], way: str, options: SfmOptions) -> None:
    matching = pycolmap.FeatureMatchingOptions()
    matching.use_gpu = False
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = options.seed
    if way == "sequential":
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap = options.overlap
        pairing.quadratic_overlap = True
        pycolmap.match_sequential(database, matching, pairing, verification)
    elif way == "retrieval":
        with pycolmap.Database.open(database) as opened:
            ids = [opened.read_image_with_name(name).image_id for name in names]
            descriptors = [np.asarray(opened.read_descriptors(i).data, np.float32) for i in ids]
        pairs = find_similar_pairs(descriptors, options.neighbors, options.seed)
        pairing = pycolmap.ImportedPairingOptions()
        pairing.match_list_path = database.with_name("pairs.txt")
        lines = [f"{names[i]} {names[j]}" for i, j in pairs]
        pairing.match_list_path.write_text("\n".join(lines) + "\n")
        pycolmap.match_image_pairs(database, matching, pairing, verification)
    else:
        pycolmap.match_exhaustive(database, matching, verification_options=verification)


@dataclass(frozen=True, eq=False)
class _Keypoints:
    """Features of an image, with the virtual depth and its sigma there; NaN where unknown."""

    places_px: FloatArray
    u: FloatArray
    sigma: FloatArray


def _sample_depths(
    pycolmap: Any,
    database: Path,
    names: list[str],
    depths: _DepthReader,
    sigmas: _DepthReader | None,
) -> dict[int, _Keypoints]:
    found = {}
    with pycolmap.Database.open(database) as opened:
        for index, name in enumerate(names):
            image_id = opened.read_image_with_name(name).image_id
            places = np.asarray(opened.read_keypoints(image_id), np.float64)[:, :2]
            u = _sample(depths(index), places)
            sigma = _SIGMA_SHARE * np.abs(u) if sigmas is None else _sample(sigmas(index), places)
            found[image_id] = _Keypoints(places, u, sigma)
    return found


def _sample(image: Float32Array, places_px: FloatArray) -> FloatArray:
    cols, rows = np.floor(places_px).astype(np.int64).T
    rows = np.clip(rows, 0, image.shape[0] - 1)
    cols = np.clip(cols, 0, image.shape[1] - 1)
    return np.asarray(image[rows, cols], np.float64)


def _check_by_depth(pycolmap: Any, database: Path, keypoints: dict[int, _Keypoints]) -> None:
    """Remove verified matches that contradict virtual depth."""
    with pycolmap.Database.open(database) as opened:
        for pair_id, geometry in zip(*opened.read_two_view_geometries(), strict=True):
            matches = np.asarray(geometry.inlier_matches)
            if not len(matches):
                continue
            first, second = (keypoints[i] for i in pycolmap.pair_id_to_image_pair(pair_id))
            a, b = matches[:, 0], matches[:, 1]
            agree = agree_with_depth(first.places_px[a], first.u[a], second.places_px[b])
            agree &= agree_with_depth(second.places_px[b], second.u[b], first.places_px[a])
            if not agree.all():
                geometry.inlier_matches = matches[agree]
                opened.update_two_view_geometry(*pycolmap.pair_id_to_image_pair(pair_id), geometry)


def _map(
    pycolmap: Any, folder: Path, options: SfmOptions, with_depth: bool, *, hold: bool
) -> Iterator[Any]:
    """Yield reconstructions; each starts with a pair of images nearer to each other than the last.

    If `hold`, F and c are held fixed.
    """
    for angle in (*_INIT_ANGLES_DEG, *([_INIT_ANGLE_WITH_DEPTH_DEG] if with_depth else [])):
        mapping = pycolmap.IncrementalPipelineOptions()
        mapping.random_seed = mapping.mapper.random_seed = options.seed
        mapping.triangulation.random_seed = options.seed
        mapping.multiple_models = False
        mapping.num_threads = mapping.mapper.num_threads = 1  # so that the result is reproducible
        mapping.extract_colors = False
        mapping.min_model_size = 2
        mapping.mapper.init_min_tri_angle = angle
        mapping.ba_global_frames_ratio = mapping.ba_global_points_ratio = _GROWTH
        mapping.ba_refine_focal_length = not hold
        out = Path(tempfile.mkdtemp(dir=folder))
        models = pycolmap.incremental_mapping(
            folder / "database.db", folder / "images", out, mapping
        )
        best = max(models.values(), key=lambda model: model.num_reg_images(), default=None)
        if best is None:
            continue
        if not hold:
            refinement = pycolmap.BundleAdjustmentOptions()
            refinement.refine_principal_point = True
            refinement.print_summary = False
            chosen = pycolmap.BundleAdjustmentConfig()
            for image_id in best.reg_image_ids():
                chosen.add_image(image_id)
            chosen.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
            pycolmap.create_default_bundle_adjuster(refinement, chosen, best).solve()
            best.update_point_3d_errors()
        yield best


def _say_too_few(pycolmap: Any, database: Path, n: int, registered: int, needed: int) -> str:
    with pycolmap.Database.open(database) as opened:
        _, geometries = opened.read_two_view_geometries()
    counts = sorted(len(geometry.inlier_matches) for geometry in geometries)
    middle = counts[len(counts) // 2] if counts else 0
    return (
        f"only {registered} of {n} focused images were registered (need {needed}); {len(counts)} "
        f"pairs of images match, with a median of {middle} points. Move the camera sideways, not "
        "only around its axis, by a tenth of the distance or more, slower or with more frames, in "
        "front of a scene with texture"
    )


def _collect(model: Any, names: list[str], scale: float) -> SfmModel:
    (camera,) = model.cameras.values()
    focal, cx, cy, radial = camera.params
    focal_raw = float(focal) / scale
    places = {name: index for index, name in enumerate(names)}
    poses: list[RigidTransform | None] = [None] * len(names)
    view_of: dict[int, int] = {}
    keypoints: dict[int, list[FloatArray]] = {}
    for image in model.images.values():
        index = places[image.name]
        if image.has_pose:
            matrix = image.cam_from_world().matrix()
            poses[index] = RigidTransform(matrix[:, :3], matrix[:, 3])
            view_of[image.image_id] = index
            keypoints[image.image_id] = [point.xy for point in image.points2D]
    ids = sorted(model.points3D)
    rows: list[tuple[int, int, float, float]] = []
    for index, point_id in enumerate(ids):
        seen: dict[int, tuple[float, float]] = {}
        for element in model.points3D[point_id].track.elements:
            xy = keypoints[element.image_id][element.point2D_idx]
            seen[view_of[element.image_id]] = (float(xy[0]), float(xy[1]))
        rows += [(index, view, *seen[view]) for view in sorted(seen)]
    table = np.array(rows, np.float64).reshape(-1, 4)
    points = np.array([model.points3D[i].xyz for i in ids], np.float64).reshape(-1, 3)
    return SfmModel(
        focal_raw,
        read_only(_to_raw(np.array([cx, cy]), scale)),
        BrownDistortion(k0=float(radial) / focal_raw**2),
        tuple(poses),
        read_only(points),
        read_only(table[:, 0].astype(np.int64)),
        read_only(table[:, 1].astype(np.int64)),
        read_only(_to_raw(table[:, 2:], scale)),
        float(model.compute_mean_reprojection_error()),
    )


def _to_raw(xy_colmap: FloatArray, scale: float) -> FloatArray:
    """Convert COLMAP's pixels of a scaled image (centers at .5) to raw pixels (at integers)."""
    return np.asarray(xy_colmap / scale - 0.5)
