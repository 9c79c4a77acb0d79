"""The command line: one file a verb. Nothing heavy is imported before a verb runs.

`main` is what the `lifcal` command calls.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from lifcal.cli.app import run

        run()
    except KeyboardInterrupt:  # before a verb has started
        print("lifcal: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
