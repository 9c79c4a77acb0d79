"""Opening a page in the browser, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser


def open_page(address: str) -> bool:
    """Open an address in the browser; return whether there is one.

    Without a screen nothing is opened: a browser for text would take over the terminal.
    """
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform not in ("win32", "darwin") and not any(os.environ.get(key) for key in screens):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
