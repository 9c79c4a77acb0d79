"""`lifcal camera`: look at camera files and convert them."""
from __future__ import annotations

import typer

camera_app = typer.Typer(help="Show and convert camera files.", no_args_is_help=True)

@camera_app.callback()
def _x() -> None: ...
