"""Exceptions: one tree, so that a caller can tell a bad file from a bad argument from no answer."""

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
    """A name or key is not known. The message says what is allowed and the nearest match."""

    @classmethod
    def unknown(cls, what: str, value: str, allowed: Iterable[str]) -> ConfigError:
        """Build the message for an unknown `what` called `value`."""
        allowed = list(allowed)
        nearest = difflib.get_close_matches(value, allowed, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        return cls(f"unknown {what} {value!r}; known: {', '.join(allowed)}.{hint}")


class EstimationError(LifcalError):
    """The input is good, but there is no usable answer.

    Attributes
    ----------
    stage : str
        The stage that gave up.
    evidence : mapping
        The figures that made it give up.
    """

    def __init__(
        self, message: str, *, stage: str, evidence: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.evidence: dict[str, Any] = dict(evidence or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the error travel between processes."""
        return _make_estimation_error, (str(self), self.stage, self.evidence)


class MissingDependencyError(LifcalError, ImportError):
    """A package that an extra brings is not installed. The message names the extra."""


def _make_estimation_error(message: str, stage: str, evidence: dict[str, Any]) -> EstimationError:
    return EstimationError(message, stage=stage, evidence=evidence)
