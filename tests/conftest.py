"""One thread a process, for small tensors gain nothing from more; and every test starts from the same global seed."""

import sys
from functools import partial

import pytest
import torch

from lebm import cli, image_metrics, text_metrics
from lebm.analysis import diagnostics
from lebm.likelihood import log_z

torch.set_num_threads(1)


@pytest.fixture
def rough_log_z(monkeypatch):
    """log Z from few walkers over few temperatures, where a test is about something else: a second instead of ten."""
    for place in (image_metrics, diagnostics, text_metrics):
        monkeypatch.setattr(place, "log_z", partial(log_z, chains=20, temperatures=10))


@pytest.fixture
def call(monkeypatch, capsys):
    """call("sample", run, ..., code=2): the program as from a shell, its exit code checked; what it said."""

    def program(*args, code=0):
        monkeypatch.setattr(sys, "argv", ["lebm", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            cli.main()
        said = capsys.readouterr()
        assert (e.value.code or 0) == code and "Traceback" not in said.err, said.err
        return said

    return program


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
