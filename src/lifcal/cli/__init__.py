"""The command line: one file a verb. Nothing heavy is imported before a verb runs."""

from lifcal.cli.app import main

__all__ = ["main"]
