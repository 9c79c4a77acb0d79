"""Opening a page in the browser, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

_FORWARD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"><title>lifcal</title></head>
<body><p><a href="{address}">Open the page of lifcal</a></p></body></html>
"""


def open_page(address: str) -> bool:
    """Open an address in the browser; return whether there is one.

    Other users of this computer can see the address, because it is an argument of the browser's
    process. `forward_to` hides an address that must stay secret.

    Without a screen nothing is opened: a browser for text would take over the terminal.
    """
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform not in ("win32", "darwin") and not any(os.environ.get(key) for key in screens):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


@contextmanager
def forward_to(address: str) -> Iterator[str]:
    """Return the address of a file that forwards a browser to a secret address.

    Only this user can read the file, and it is removed at the end of the `with` block.
    """
    with TemporaryDirectory(prefix="lifcal-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "open.html"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(_FORWARD.format(address=escape(address)))
        yield path.as_uri()
