"""One thread a process, because small tensors gain nothing from more; every test starts from the same global seed."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

ROOMS_THAT_ESTIMATE = ("measure", "show", "detect")


def modules_with(name):
    """The modules of these rooms whose source has this name."""
    src = Path(__file__).parents[1] / "src"
    for room in ROOMS_THAT_ESTIMATE:
        for path in sorted((src / "lebm" / room).rglob("*.py")):
            if name in path.read_text(encoding="utf-8"):
                parts = path.relative_to(src).with_suffix("").parts
                yield importlib.import_module(".".join(parts).removesuffix(".__init__"))


@pytest.fixture
def rough_log_z(monkeypatch):
    """log Z from few walkers over few temperatures, where a test is about something else: a second instead of ten."""
    from lebm.measure.ais import log_z

    rough = partial(log_z, chains=20, temperatures=10)
    for module in modules_with("log_z"):
        if getattr(module, "log_z", None) is log_z:
            monkeypatch.setattr(module, "log_z", rough)


@pytest.fixture
def call(monkeypatch, capsys):
    """call("sample", run, ..., code=2): the program as from a shell, its exit code checked; what it printed."""

    def program(*args, code=0):
        from lebm import cli

        monkeypatch.setattr(sys, "argv", ["lebm", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            cli.main()
        printed = capsys.readouterr()
        assert (e.value.code or 0) == code and "Traceback" not in printed.err, printed.err
        return printed

    return program


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
