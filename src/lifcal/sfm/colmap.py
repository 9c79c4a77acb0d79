"""The door for pycolmap: features, matches, mapping, with one shared pinhole.

COLMAP puts pixel centers at half-integers: `_to_raw` is the only place that knows.
"""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray, read_only
from lifcal.camera import BrownDistortion
from lifcal.errors import ConfigError, DataError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.imaging.files import write_png
from lifcal.sfm.depth_check import agree_with_depth
from lifcal.sfm.retrieval import find_similar_pairs

MATCHING = ("auto", "sequential", "exhaustive", "retrieval")
_MOST_EXHAUSTIVE = 16
"""Frames up to which 'auto' matches all pairs: they may be a set, and it costs little."""
_MOST_IN_PAIRS = 60
"""Frames beyond which 'auto' does not match all pairs, but those that look alike."""
_MODEL = "SIMPLE_RADIAL"
_INIT_ANGLES_DEG = (16.0, 6.0, 2.0)
"""Least angle between the rays of the first two views: COLMAP's own, then for small motion."""
_ENOUGH = 0.8
"""Of the images: with fewer, a start from nearer views is tried."""
_INIT_ANGLE_WITH_DEPTH_DEG = 0.7
"""With matches that depth has checked, views may be this near to each other."""
_GROWTH = 1.4
"""Of a model between two adjustments of all of it. COLMAP's own is 1.1, for large scenes; here it
gives the same poses after half the time."""
_SPACE, _SPACE_AN_IMAGE = 32 << 20, 1 << 20
"""Bytes that COLMAP's files may take besides images and masks: features and matches."""


@dataclass(frozen=True)
class SfmOptions:
    """How poses are found.

    Parameters
    ----------
    matching : 'auto', 'sequential', 'exhaustive' or 'retrieval'
        Sequential matches each frame with those around it and with some far ones (2, 4, 8 ...
        frames on): for videos and other recordings in order. Retrieval matches each frame with
        those that look most like it: for large sets in no order. Auto takes sequential beyond 16
        frames, and if that leaves frames out, all pairs or beyond 60 frames retrieval.
    overlap : int
        Frames on each side that sequential matching takes.
    neighbors : int
        Frames that retrieval takes for each.
    max_features : int
        Of each image.
    min_frames : int
        Fewer registered frames are an error.
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


@dataclass(frozen=True, eq=False)
class SfmModel:
    """Poses, points and tracks in a frame of arbitrary scale.

    Parameters
    ----------
    focal_px : float
        F of the virtual image, in raw pixels.
    principal_px : (2,) float64
        c, raw pixels.
    distortion : BrownDistortion
        One radial term.
    cam_from_sfm : tuple of RigidTransform or None
        One for each image; None where it was not registered.
    points_sfm : (n_points, 3) float64
    point_indices, view_indices : (n_tracked,) int64
        Which point was found in which image, sorted by point and image.
    points_virt_px : (n_tracked, 2) float64
        Where, in the recorded virtual image, raw pixels.
    mean_error_px : float
        Mean reprojection error, pixels of the images.
    """

    focal_px: float
    principal_px: FloatArray
    distortion: BrownDistortion
    cam_from_sfm: tuple[RigidTransform | None, ...]
    points_sfm: FloatArray
    point_indices: IntArray
    view_indices: IntArray
    points_virt_px: FloatArray
    mean_error_px: float

    @property
    def registered(self) -> BoolArray:
        """Which images have a pose, (n_images,)."""
        return np.array([pose is not None for pose in self.cam_from_sfm], np.bool_)


def reconstruct(
    images: Sequence[npt.NDArray[np.uint8]],
    masks: Sequence[BoolArray] | None,
    scale: float,
    options: SfmOptions | None = None,
    *,
    scratch: Path | None = None,
    depths: Callable[[int], Float32Array] | None = None,
    focal_px: float | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> SfmModel:
    """Find poses and points from totally focused images of one camera.

    Parameters
    ----------
    images : sequence of (rows, cols) uint8
    masks : sequence of (rows, cols) bool, or None
        Where images are valid.
    scale : float
        Size of the images relative to the raw.
    options : SfmOptions, optional
    scratch : Path, optional
        Folder for what COLMAP writes on the way, emptied before and removed afterwards; else one
        of the system's.
    depths : callable, optional
        Returns the virtual depth of an image, NaN where unknown, (rows, cols): matches that
        contradict it are left out, and views may be nearer to each other.
    focal_px : float, optional
        F roughly, in raw pixels: a start.
    on_stage : callable, optional
        Told what begins.

    Raises
    ------
    EstimationError
        If too few images can be registered; it says how many matched.
    """
    options = options or SfmOptions()
    if len(images) < options.min_frames:
        raise EstimationError(
            f"{len(images)} usable frames are too few (need {options.min_frames}): record the "
            "scene from more places",
            stage="sfm",
            evidence={"frames": len(images)},
        )
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
    folder = scratch or Path(tempfile.mkdtemp(prefix="lifcal-sfm-"))
    try:
        _check_space(folder, images)
        return _reconstruct(
            folder, images, masks, scale, options, depths, focal_px, on_stage or (lambda _: None)
        )
    except RuntimeError as error:  # what COLMAP says
        raise DataError(f"{folder}: COLMAP cannot work there: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_space(folder: Path, images: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Raise DataError if a disk is nearly full: COLMAP would not end with an error but crash."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    needed = _SPACE + sum(2 * image.size + _SPACE_AN_IMAGE for image in images)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DataError(
            f"{place}: {free >> 20} MB of the disk are free, COLMAP needs {needed >> 20} MB"
        )


def _import_pycolmap() -> Any:
    """Return pycolmap, which takes the signals that end a process: give them back."""
    before = signal.getsignal(signal.SIGTERM)
    import pycolmap

    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    return pycolmap


def _reconstruct(
    folder: Path,
    images: Sequence[npt.NDArray[np.uint8]],
    masks: Sequence[BoolArray] | None,
    scale: float,
    options: SfmOptions,
    depths: Callable[[int], Float32Array] | None,
    focal_px: float | None,
    on_stage: Callable[[str], None],
) -> SfmModel:
    pycolmap = _import_pycolmap()
    pycolmap.logging.minloglevel = int(pycolmap.logging.FATAL)
    pycolmap.set_random_seed(options.seed)
    names = [f"{index:06d}.png" for index in range(len(images))]
    for index, name in enumerate(names):
        write_png(folder / "images" / name, images[index])
        if masks is not None:
            write_png(folder / "masks" / f"{name}.png", masks[index].astype(np.uint8) * 255)
    database = folder / "database.db"
    on_stage("features")
    _extract(pycolmap, folder, names, images[0].shape, masks is not None, scale, options, focal_px)
    virtual_depths = None if depths is None else _sample_depths(pycolmap, database, names, depths)
    found: Any = None
    for matching in _list_ways(options, len(images)):
        on_stage("matching")
        _match(pycolmap, database, names, matching, options)
        if virtual_depths is not None:
            _check_by_depth(pycolmap, database, virtual_depths)
        on_stage("mapping")
        found = _map(pycolmap, folder, options, found, depths is not None)
        if found is not None and found.num_reg_images() == len(images):
            break
    n_registered = 0 if found is None else found.num_reg_images()
    if n_registered < options.min_frames:
        raise EstimationError(
            _say_too_few(pycolmap, database, len(images), n_registered, options.min_frames)
            + (
                ""
                if focal_px is None
                else f". Or the focal length that was given ({focal_px:.0f} px) is not theirs: "
                "check it and the pixel size"
            ),
            stage="sfm",
            evidence={"frames": len(images), "registered": n_registered},
        )
    return _collect(found, names, scale)


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
    # A focused image holds detail of the size of |u| raw pixels: it is oversampled already.
    extraction.sift.first_octave = 0
    # In order, before threads extract them in any: the numbers of images decide about ties.
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
    """Return the ways of pairing images, to be tried until all are registered."""
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
    """Features of an image, and the virtual depth there, NaN where unknown."""

    places_px: FloatArray
    u: FloatArray


def _sample_depths(
    pycolmap: Any, database: Path, names: list[str], depths: Callable[[int], Float32Array]
) -> dict[int, _Keypoints]:
    found = {}
    with pycolmap.Database.open(database) as opened:
        for index, name in enumerate(names):
            image_id = opened.read_image_with_name(name).image_id
            places = np.asarray(opened.read_keypoints(image_id), np.float64)[:, :2]
            u_map = depths(index)
            cols, rows = np.floor(places).astype(np.int64).T
            rows = np.clip(rows, 0, u_map.shape[0] - 1)
            cols = np.clip(cols, 0, u_map.shape[1] - 1)
            found[image_id] = _Keypoints(places, u_map[rows, cols].astype(np.float64))
    return found


def _check_by_depth(pycolmap: Any, database: Path, keypoints: dict[int, _Keypoints]) -> None:
    """Leave out the verified matches that virtual depth contradicts."""
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


def _map(pycolmap: Any, folder: Path, options: SfmOptions, before: Any, with_depth: bool) -> Any:
    """Return the largest reconstruction, of this try or the one before."""
    best = before
    with pycolmap.Database.open(folder / "database.db") as opened:
        enough = math.ceil(_ENOUGH * opened.num_images())
    for angle in (*_INIT_ANGLES_DEG, *([_INIT_ANGLE_WITH_DEPTH_DEG] if with_depth else [])):
        mapping = pycolmap.IncrementalPipelineOptions()
        mapping.random_seed = mapping.mapper.random_seed = options.seed
        mapping.triangulation.random_seed = options.seed
        mapping.multiple_models = False
        mapping.num_threads = mapping.mapper.num_threads = 1  # sums in one order: one result
        mapping.extract_colors = False
        mapping.min_model_size = 2
        mapping.mapper.init_min_tri_angle = angle
        mapping.ba_global_frames_ratio = mapping.ba_global_points_ratio = _GROWTH
        out = Path(tempfile.mkdtemp(dir=folder))
        models = pycolmap.incremental_mapping(
            folder / "database.db", folder / "images", out, mapping
        )
        for model in models.values():
            if best is None or model.num_reg_images() > best.num_reg_images():
                best = model
        if best is not None and best.num_reg_images() >= max(enough, options.min_frames):
            break
    if best is not None and best is not before:
        refinement = pycolmap.BundleAdjustmentOptions()
        refinement.refine_principal_point = True
        refinement.print_summary = False
        chosen = pycolmap.BundleAdjustmentConfig()
        for image_id in best.reg_image_ids():
            chosen.add_image(image_id)
        chosen.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        pycolmap.create_default_bundle_adjuster(refinement, chosen, best).solve()
        best.update_point_3d_errors()
    return best


def _say_too_few(pycolmap: Any, database: Path, n: int, registered: int, needed: int) -> str:
    with pycolmap.Database.open(database) as opened:
        _, geometries = opened.read_two_view_geometries()
    counts = sorted(len(geometry.inlier_matches) for geometry in geometries)
    middle = counts[len(counts) // 2] if counts else 0
    return (
        f"only {registered} of {n} focused images were registered (need {needed}); {len(counts)} "
        f"pairs of images match, the median of them in {middle} points. Move the camera sideways, "
        "not only around its axis, by a tenth of the distance and more, slower or with more "
        "frames, over a scene with texture"
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
    """COLMAP's pixels of a scaled image (centers at .5) to raw pixels (centers at integers)."""
    return np.asarray(xy_colmap / scale - 0.5)
