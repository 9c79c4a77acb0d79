"""The options of a calibration: those of its stages, held in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args, get_type_hints

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import AdjustOptions
from lifcal.distances import find_name
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.files import make_plain
from lifcal.measure import MeasureOptions
from lifcal.scale import ScaleOptions
from lifcal.sfm import SfmOptions
from lifcal.virtual import DepthOptions

_PIXEL_SIZES_UM = (0.5, 50.0)
"""Pixels of image sensors are between these; anything else is a slip of the unit."""
_OWN_ADJUST = {
    "focus": "it follows from the grid",
    "focus_strength": "it follows from the grid",
    "plane_error": "set `plane_error` of CalibrateOptions",
    "scale_error": "set `length_error` of ScaleOptions",
    "magnification_error": "set `magnification_error` of MeasureOptions",
    "clustered": "micro images of one point share a texture and always may err together",
}
"""Fields of `AdjustOptions` that a calibration fills in by itself, and why or from where."""
_STAGES = ("depth", "sfm", "measure", "adjust", "scale")
"""Fields of `CalibrateOptions` that hold the options of a stage."""


@dataclass(frozen=True, eq=False)
class CalibrateOptions:
    """How to calibrate: what holds for the whole, and the options of each stage.

    Parameters
    ----------
    pixel_size_um : float
        Pixel pitch of the sensor.
    focal_length_mm : float or None
        Nominal focal length: a hint where the images leave F open, and a check of the result.
    scale : ScaleOptions
        What is known of lengths.
    scales : tuple of ScaleOptions
        The same for each recording, where recordings differ in it; if empty, `scale` holds for all
        of them.
    depth : DepthOptions
        How virtual depth and focused images are made.
    sfm : SfmOptions
        How COLMAP finds the first poses.
    measure : MeasureOptions
        How points are chosen and measured in micro images.
    adjust : AdjustOptions
        How the bundle adjustment estimates the camera. The calibration itself chooses the focus
        term, the errors that observations have in common, and `clustered`. What it knows of the
        scale is added to `fixed`, and general knowledge of cameras (`priors`) to its `priors`.
    rounds : int
        Number of times that points are measured and the camera is adjusted, at most. Each round
        begins with the predictions of the adjustment before.
    priors : bool
        Whether to use what is known from how cameras are made: c is near the middle of the image,
        and tangential distortion is small. See `camera_priors`.
    plane_error : float
        Relative error of the focal planes that all lens types share. It widens the sigmas
        (docs/theory/virtual-depth.md).
    settled_sigmas : float
        The rounds end early if no parameter moved by more than this part of its sigma: what is
        left to gain is then small against the noise.
    timestamps : tuple of float or None
        Timestamps of all frames, for poses.txt and to find them in a known trajectory. None takes
        the indices of the frames.
    """

    pixel_size_um: float
    focal_length_mm: float | None = None
    scale: ScaleOptions = field(default_factory=ScaleOptions)
    depth: DepthOptions = field(default_factory=DepthOptions)
    sfm: SfmOptions = field(default_factory=SfmOptions)
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    adjust: AdjustOptions = field(default_factory=AdjustOptions)
    rounds: int = 3
    priors: bool = True
    plane_error: float = 0.01
    settled_sigmas: float = 0.3
    timestamps: tuple[float, ...] | None = None
    scales: tuple[ScaleOptions, ...] = ()

    def __post_init__(self) -> None:
        low, high = _PIXEL_SIZES_UM
        if not low <= self.pixel_size_um <= high:
            raise InputError(
                f"pixel size is {self.pixel_size_um} um, needs {low} to {high}: look it up in the "
                "sensor's data sheet"
            )
        if self.focal_length_mm is not None and not self.focal_length_mm > 0.0:
            raise InputError(f"focal length is {self.focal_length_mm} mm, needs a positive number")
        if self.rounds < 1:
            raise InputError(f"rounds is {self.rounds}, needs 1 or more")
        for name in ("plane_error", "settled_sigmas"):
            if not getattr(self, name) >= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}, needs 0 or a positive number")
        for scale in (self.scale, *self.scales):
            if scale.earlier is not None:
                scale.earlier.check_pixel_size(self.pixel_size_mm)
        usual = AdjustOptions()
        for name, why in _OWN_ADJUST.items():
            if getattr(self.adjust, name) != getattr(usual, name):
                raise InputError(f"adjust.{name} is chosen by the calibration: {why}")

    def scale_of(self, recording: int) -> ScaleOptions:
        """Return what is known of lengths in a recording."""
        if not self.scales:
            return self.scale
        if not recording < len(self.scales):
            raise InputError(f"{len(self.scales)} scales were given, there are more recordings")
        return self.scales[recording]

    @property
    def length_error(self) -> float:
        """Largest relative error that all known lengths of a recording have in common."""
        return max(each.length_error for each in self.scales or (self.scale,))

    @property
    def pixel_size_mm(self) -> float:
        """Pixel size in mm."""
        return self.pixel_size_um / 1000.0

    def time_frames(self, frame_indices: IntArray) -> FloatArray:
        """Return the timestamps of frames."""
        if self.timestamps is None:
            return frame_indices.astype(np.float64)
        return np.asarray(self.timestamps, np.float64)[frame_indices]

    def for_frames(self, names: Sequence[str]) -> CalibrateOptions:
        """Return the options with all that refers to frames checked against their names.

        Raises
        ------
        DataError
            If the number of timestamps is another, or a distance was picked in a frame that is not
            there.
        """
        if self.timestamps is not None and len(self.timestamps) != len(names):
            raise DataError(f"{len(self.timestamps)} timestamps for {len(names)} frames")

        def check(scale: ScaleOptions) -> ScaleOptions:
            distances = tuple(
                replace(each, frame=find_name(each.frame, names)) for each in scale.distances
            )
            return replace(scale, distances=distances)

        return replace(self, scale=check(self.scale), scales=tuple(map(check, self.scales)))

    def select_frames(self, indices: Sequence[int], count: int) -> CalibrateOptions:
        """Return the options for some frames of a recording of `count` frames.

        A frame keeps its timestamp, or its index in the whole recording if there are none.
        """
        if list(indices) == list(range(count)):
            return self
        times = range(count) if self.timestamps is None else self.timestamps
        return replace(self, timestamps=tuple(float(times[index]) for index in indices))

    def as_dict(self) -> dict[str, Any]:
        """Return all options for JSON."""
        bare = (replace(scale, others=()) for scale in (self.scale, *self.scales))
        content = asdict(replace(self, scale=next(bare), scales=tuple(bare)))
        content["scale"]["others"] = [dict(source.describe()) for source in self.scale.others]
        for scale, entry in zip(self.scales, content["scales"], strict=True):
            entry["others"] = [dict(source.describe()) for source in scale.others]
        if not self.scales:
            del content["scales"]
        plain: dict[str, Any] = make_plain(content)
        return plain

    def with_settings(self, settings: Mapping[str, Any]) -> CalibrateOptions:
        """Return the options with some of them replaced by name.

        Parameters
        ----------
        settings : mapping of str to value
            Names are those of the fields, with their stage before a dot: 'rounds',
            'measure.window_px'. A value that is a text is read as the field's type is written:
            '4.5', 'true', 'none', '1.5,4' for two numbers.

        Raises
        ------
        ConfigError
            If a name is not known; the message has the nearest one.
        InputError
            If a value does not fit its field.
        """
        known = list_settings()
        own: dict[str, Any] = {}
        staged: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            if name not in known:
                raise ConfigError.unknown("setting", name, known)
            stage, _, key = name.rpartition(".")
            try:
                found = _READERS[known[name]](value)
            except (TypeError, ValueError):
                raise InputError(
                    f"setting {name} is {value!r}, needs {_describe(known[name])}"
                ) from None
            (staged.setdefault(stage, {}) if stage else own)[key] = found
        for stage, values in staged.items():
            own[stage] = replace(getattr(self, stage), **values)
        return replace(self, **own)


def list_settings() -> dict[str, Any]:
    """Return the names that `CalibrateOptions.with_settings` takes, and their types."""
    hints = get_type_hints(CalibrateOptions)
    found = {name: kind for name, kind in hints.items() if name not in ("pixel_size_um", *_STAGES)}
    for stage in _STAGES:
        for name, kind in get_type_hints(hints[stage]).items():
            if stage != "adjust" or name not in _OWN_ADJUST:
                found[f"{stage}.{name}"] = kind
    return {name: kind for name, kind in found.items() if kind in _READERS}


# Values, as they are or as text


def _read_float(value: Any) -> float:
    return float(str(value))


def _read_int(value: Any) -> int:
    return int(str(value))


def _read_bool(value: Any) -> bool:
    words = {"true": True, "yes": True, "false": False, "no": False}
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def _read_pair(value: Any) -> tuple[float, float]:
    low, high = value.split(",") if isinstance(value, str) else value
    return _read_float(low), _read_float(high)


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if str(value).lower() == "none" else read(value)


_READERS: dict[Any, Callable[[Any], Any]] = {
    int: _read_int,
    float: _read_float,
    str: str,
    bool: _read_bool,
    tuple[float, float]: _read_pair,
    float | None: _or_none(_read_float),
    tuple[float, float] | None: _or_none(_read_pair),
}
"""How the value of a field is read, by the field's type. Fields of other types (known distances,
sources of one's own) cannot be set by name."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a word",
    bool: "true or false",
    tuple[float, float]: "two numbers, 'LOW,HIGH'",
}
"""What a field of a type takes, in words, for messages."""


def _describe(kind: Any) -> str:
    """Return in words what a field of a type takes."""
    if kind in _WORDS:
        return _WORDS[kind]
    return f"{_WORDS[get_args(kind)[0]]}, or 'none'"
