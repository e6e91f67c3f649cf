"""The Triton kernel of words: a table of logits becomes log probabilities and, in its own place, their gradient."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax_minus_word(
    table, bias, words, out, N: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr
):
    """Row r of logits table[r, :N] + bias -> out[r] = log softmax at words[r]; the row becomes softmax - (the word).

    Both are 0 where words[r] < 0.
    """
    r = tl.program_id(0).to(tl.int64)
    word = tl.load(words + r)
    row, lane = table + r * STRIDE, tl.arange(0, BLOCK)
    real = word >= 0
    # This comes before the sums below, for which all threads wait: later another thread may have overwritten it.
    chosen = tl.load(row + word, mask=real, other=0.0).to(tl.float32) + tl.load(bias + word, mask=real, other=0.0)
    most, total = tl.full((BLOCK,), -1e30, tl.float32), tl.zeros((BLOCK,), tl.float32)
    for c in range(0, N, BLOCK):
        at = c + lane
        v = tl.load(row + at, mask=at < N, other=0.0).to(tl.float32) + tl.load(bias + at, mask=at < N, other=0.0)
        v = tl.where(at < N, v, -1e30)
        top = tl.maximum(most, v)
        total = total * tl.exp(most - top) + tl.exp(v - top)
        most = top
    top = tl.max(most, 0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    tl.store(out + r, tl.where(real, chosen - log_sum, 0.0))
    if GRADIENT:
        for c in range(0, STRIDE, BLOCK):
            at = c + lane
            v = tl.load(row + at, mask=at < N, other=0.0).to(tl.float32) + tl.load(bias + at, mask=at < N, other=0.0)
            p = tl.where((at < N) & real, tl.exp(v - log_sum) - tl.where(at == word, 1.0, 0.0), 0.0)
            tl.store(row + at, p.to(table.dtype.element_ty), mask=at < STRIDE)
