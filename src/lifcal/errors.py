"""The exceptions of lifcal: separate classes for a bad argument, a bad file, and no usable answer.

All of them are subclasses of `LifcalError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class LifcalError(Exception):
    """Base class of lifcal's errors. The command line prints the message on one line."""


class InputError(LifcalError, ValueError):
    """An argument is wrong: its shape, its dtype, its range."""


class DataError(LifcalError):
    """A file or what is in it is wrong. The message names path, place and what was found."""


class ConfigError(LifcalError):
    """A name or key is not known. The message lists those allowed and suggests the nearest one."""

    @classmethod
    def unknown(cls, what: str, value: str, allowed: Iterable[str]) -> ConfigError:
        """Build the error for a `value` that is not `allowed`; `what` says what it names."""
        allowed = list(allowed)
        nearest = difflib.get_close_matches(value, allowed, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        return cls(f"unknown {what} {value!r}; known: {', '.join(allowed)}.{hint}")


class EstimationError(LifcalError):
    """The input is good, but there is no usable answer.

    Attributes
    ----------
    stage : str
        Name of the stage that found no usable answer.
    evidence : mapping
        The numbers on which that decision rests.
    """

    def __init__(
        self, message: str, *, stage: str, evidence: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.evidence: dict[str, Any] = dict(evidence or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the error picklable, so that one raised in a worker process reaches its caller."""
        return _make_estimation_error, (str(self), self.stage, self.evidence)


class MissingDependencyError(LifcalError, ImportError):
    """An optional package is missing. The message names the extra of lifcal that installs it."""


def _make_estimation_error(message: str, stage: str, evidence: dict[str, Any]) -> EstimationError:
    return EstimationError(message, stage=stage, evidence=evidence)
