"""log p of words under a softmax over the vocabulary, without a float32 table of words x vocabulary.

The logits are computed once, in bfloat16 and with rows of whole tiles, which the matrix units want. One kernel reads a
row, writes the word's log probability, and puts the softmax minus the word in place of the row: the gradient, up to a
factor for each row. Nothing else of that size is ever made.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lebm.fast import word_kernels as kernels

TILE = 128


class _LogWords(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, words: Tensor, dtype: torch.dtype, gradient: bool
    ) -> Tensor:
        n = len(weight)
        stride = -(-n // TILE) * TILE
        states, w = h.to(dtype), F.pad(weight.to(dtype), (0, 0, 0, stride - n))
        table = states @ w.T
        out = torch.empty(len(h), dtype=torch.float32, device=h.device)
        arguments = (bias.float().contiguous(), words.contiguous(), out, n, stride, 1024, gradient)
        kernels.softmax_minus_word[(len(h),)](table, *arguments)
        ctx.save_for_backward(*((table, w, h) if gradient else ()))
        ctx.n = n
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        table, w, h = ctx.saved_tensors
        g = -grads[0].unsqueeze(1)  # of each row: the table holds the gradient of -log p
        to_h, to_weight, to_bias = ctx.needs_input_grad[:3]
        dh = (table @ w).to(h.dtype) * g if to_h else None
        dw = (table.T @ (h * g).to(table.dtype))[: ctx.n].to(h.dtype) if to_weight else None
        db = (table.T @ g.to(table.dtype)).squeeze(1)[: ctx.n].to(h.dtype) if to_bias else None
        return dh, dw, db, None, None, None


def log_words(h: Tensor, weight: Tensor, bias: Tensor, words: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """log softmax(weight h + bias) at `words`, one number a row of h; 0 where the word is negative."""
    gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (h, weight, bias))
    log_p: Tensor = _LogWords.apply(h, weight, bias, words, dtype, gradient)
    return log_p
