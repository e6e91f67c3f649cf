"""One thread a process, for small tensors gain nothing from more; and every test starts from the same global seed."""

from functools import partial

import pytest
import torch

from lebm import evaluate, text_metrics
from lebm.analysis import diagnostics
from lebm.likelihood import log_z

torch.set_num_threads(1)


@pytest.fixture
def rough_log_z(monkeypatch):
    """log Z from few walkers over few temperatures, where a test is about something else: a second instead of ten."""
    for place in (evaluate, diagnostics, text_metrics):
        monkeypatch.setattr(place, "log_z", partial(log_z, chains=20, temperatures=10))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
