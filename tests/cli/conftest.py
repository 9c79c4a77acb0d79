"""Running the command line."""

import subprocess

import pytest

from lifcal.cli.app import app
from tests.cli.process import drop_progress


@pytest.fixture
def here(capsys):
    """Run lifcal in this process, which has loaded what takes a second to load."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            app(args=[str(word) for word in arguments], prog_name="lifcal")
        said, errors = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, said, drop_progress(errors))

    return run
