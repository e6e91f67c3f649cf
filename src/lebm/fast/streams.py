"""CUDA streams that run beside the main one inside a captured update."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Stream:
    """A CUDA stream besides the main one, as a context; on a CPU (Triton's interpreter) it does nothing.

    `join` waits only where something was sent since the last `join`: a graph under capture does not know an idle
    stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sent, self._main = False, torch.cuda.current_stream(device) if self.stream else None
        self._inside: AbstractContextManager[Any] = torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def after_main(self) -> None:
        """What is sent here from now on waits for what was sent to the main stream so far."""
        self._sent = True
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())

    def after(self, other: Stream) -> None:
        """The same for another stream."""
        self._sent = True
        if self.stream and other.stream:
            self.stream.wait_stream(other.stream)

    def join(self) -> None:
        """The current stream waits for what was sent here."""
        if self.stream and self._sent:
            torch.cuda.current_stream().wait_stream(self.stream)
        self._sent = False

    def __enter__(self) -> None:
        self._main = torch.cuda.current_stream() if self.stream else None
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def main(self) -> AbstractContextManager[Any]:
        """Within this stream's context: one in which work goes to the stream that it was entered from."""
        return torch.cuda.stream(self._main) if self.stream else nullcontext()
