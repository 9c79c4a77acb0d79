"""An adjustment in one file, so that a finished run can return what it returned before.

The file is an .npz archive: one entry 'tree' holds the records as JSON, in which arrays are named,
and each array is an entry of its own. Only the classes of `_CLASSES` are built from it, and nothing
is unpickled. The camera is not in it, because camera.json holds it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lifcal.bundle.adjustment import Adjustment
from lifcal.bundle.covariance import Covariance
from lifcal.bundle.cross_validation import CrossValidation, Split
from lifcal.bundle.focus import FocusTerm
from lifcal.bundle.problem import Follows, JointPrior, Prior, Problem
from lifcal.bundle.scale import CameraPositions, Distances
from lifcal.bundle.summary import AdjustSummary, OutlierCounts, ResidualScale, Stage
from lifcal.camera import OverlapDiscs, PinholeArray, PlenopticCamera
from lifcal.camera.distortion import DISTORTION_MODELS
from lifcal.diagnostics import Finding
from lifcal.errors import LifcalError
from lifcal.files import write_bytes
from lifcal.reconstruction import Observations, Reconstruction

_CLASSES: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        AdjustSummary,
        Adjustment,
        CameraPositions,
        Covariance,
        CrossValidation,
        Distances,
        FocusTerm,
        Follows,
        JointPrior,
        Observations,
        OutlierCounts,
        OverlapDiscs,
        PinholeArray,
        Prior,
        Problem,
        Reconstruction,
        ResidualScale,
        Split,
        Stage,
        *DISTORTION_MODELS.values(),
    )
}
"""The only classes that are built from a file, by their names."""


def write_record(path: Path, adjustment: Adjustment, key: str) -> None:
    """Write an adjustment, whole or not at all; `key` says what it was made from."""
    arrays: dict[str, Any] = {}
    tree = json.dumps({"key": key, "adjustment": _encode(adjustment, arrays)})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, tree=np.array(tree), **arrays)
    write_bytes(path, buffer.getvalue())


def read_record(path: Path, key: str, camera: PlenopticCamera) -> Adjustment | None:
    """Return the adjustment that was written with this key; None if there is no such file.

    A file that is damaged, or that another version of lifcal wrote, counts as none.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as held:
            content = json.loads(str(held["tree"]))
            if content["key"] != key:
                return None
            found = _decode(content["adjustment"], held)
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        BadZipFile,
        LifcalError,
    ):
        return None
    return replace(found, camera=camera) if isinstance(found, Adjustment) else None


def _encode(value: Any, arrays: dict[str, Any]) -> Any:
    """Return a value as JSON, in which {"what": content} stands for all but plain numbers."""
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        return _encode(value.item(), arrays)
    if value is None or isinstance(value, PlenopticCamera):
        return None
    if isinstance(value, Finding):
        return {"finding": value.as_dict()}
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: _encode(getattr(value, field.name), arrays) for field in fields(value)}
        return {"record": type(value).__name__, "fields": named}
    if isinstance(value, Mapping):
        pairs = [[_encode(part, arrays) for part in pair] for pair in value.items()]
        return {"mapping": pairs}
    if isinstance(value, tuple):
        return {"tuple": [_encode(part, arrays) for part in value]}
    if isinstance(value, list):
        return [_encode(part, arrays) for part in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def encode(value: Any, arrays: dict[str, Any]) -> Any:
    """Return a value as JSON, and add its arrays to `arrays` by name; cameras become None."""
    return _encode(value, arrays)


def decode(value: Any, arrays: Mapping[str, Any], classes: Mapping[str, type] | None = None) -> Any:
    """Return what `encode` was given; KeyError, TypeError or ValueError if it is not whole.

    Parameters
    ----------
    value : JSON
    arrays : mapping of str to array
    classes : mapping of str to class, optional
        Records that may be built besides those of an adjustment, by the names of their classes.
    """
    return _decode(value, arrays, {**_CLASSES, **(classes or {})})


def _decode(value: Any, arrays: Mapping[str, Any], classes: Mapping[str, type] = _CLASSES) -> Any:
    """Return what `_encode` was given; KeyError, TypeError or ValueError if it is not whole."""
    if isinstance(value, list):
        return [_decode(part, arrays, classes) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        array.flags.writeable = False
        return array
    if "finding" in value:
        return Finding.from_dict(value["finding"])
    if "mapping" in value:
        return {
            _decode(name, arrays, classes): _decode(content, arrays, classes)
            for name, content in value["mapping"]
        }
    if "tuple" in value:
        return tuple(_decode(part, arrays, classes) for part in value["tuple"])
    named = {name: _decode(part, arrays, classes) for name, part in value["fields"].items()}
    return classes[value["record"]](**named)
