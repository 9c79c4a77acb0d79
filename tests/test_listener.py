"""Who is told how a run goes."""

from lifcal.listener import Listener, choose_listener


def test_a_listener_is_kept_and_none_logs():
    """In a notebook, `tests/docs/test_notebook.py` sees the bars."""
    mine = Listener()
    assert choose_listener(mine) is mine
    assert type(choose_listener(None)) is Listener
