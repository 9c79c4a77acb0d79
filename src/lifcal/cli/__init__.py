"""The command line: one file a verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from lifcal.cli.app import run

        run()
    except KeyboardInterrupt:  # before a verb has started
        print("lifcal: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
