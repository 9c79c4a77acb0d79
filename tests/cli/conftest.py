"""Running the command line."""

import subprocess

import pytest

from lifcal.cli.app import app


@pytest.fixture
def here(capsys):
    """Run lifcal in this process, which has loaded what takes a second to load."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            app(args=[str(word) for word in arguments], prog_name="lifcal")
        return subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr())

    return run
