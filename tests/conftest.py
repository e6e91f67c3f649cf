"""One thread a process, for small tensors gain nothing from more; and every test starts from the same global seed."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
