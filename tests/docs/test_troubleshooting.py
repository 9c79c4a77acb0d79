"""The messages that docs/how-to/troubleshooting.md quotes are messages of the package."""

import re
from pathlib import Path

import pytest

import lifcal

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshooting.md"
ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.M)


def read_source():
    """Return the package's code with strings that go on in the next line joined."""
    room = Path(lifcal.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(room.rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", text)


SOURCE = read_source()


def is_quoted_rightly(message):
    """Whether all parts between values stand in one string of the source, in this order."""
    parts = [re.escape(part.strip()) for part in message.split("...")]
    return re.search(r"[^\n]*?".join(parts), SOURCE) is not None


@pytest.mark.parametrize("message", [row[0] for row in ROWS])
def test_messages_exist(message):
    assert is_quoted_rightly(message)


def test_it_can_fail():
    assert not is_quoted_rightly("the camera only turned on its head")
    assert not is_quoted_rightly("are too few ... usable frames")


def test_the_table_is_worth_reading():
    assert len(ROWS) > 30
    assert len({row[0] for row in ROWS}) == len(ROWS)
