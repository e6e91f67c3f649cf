"""Triton kernels of the image generators: forward, input gradient and weight gradient of transposed convolutions.

Feature maps are NHWC, and products accumulate in float32. A layer that doubles the map (4x4, stride 2, padding 1)
splits into four phases: output pixel (2i + a, 2j + b) reads 2 x 2 input pixels and 2 x 2 taps. The kernels are
implicit matrix products over pixels, with bias, LeakyReLU, its mask, tanh and the residual fused into them. Where
cuDNN is faster it is called instead (see generator.py).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_forward(
    z, w, bias, out, rows,
    NZ: tl.constexpr, N: tl.constexpr, C: tl.constexpr, LEAK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[rows, N] = lrelu(z[rows, NZ] @ w[NZ, N] + bias[n % C]): the first layer, on a 1x1 map."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.static_range(0, NZ, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(z + m[:, None] * NZ + k[None, :], mask=(m < rows)[:, None] & (k < NZ)[None, :], other=0.0)
        a = a.to(w.dtype.element_ty)
        b = tl.load(w + k[:, None] * N + n[None, :], mask=(k < NZ)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc += tl.load(bias + n % C, mask=n < N, other=0.0)[None, :]
    acc = tl.where(acc > 0, acc, acc * LEAK)
    ok = (m < rows)[:, None] & (n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def first_backward(
    g, h, w, part, rows,
    NZ: tl.constexpr, NZP: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr, LEAK: tl.constexpr, MASK: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part[s, rows, NZ] = (lrelu'(h) g)[rows, chunk s of N] @ w[NZ, chunk s]^T.

    The long sum over N is split, and the reader adds the parts. MASK: g comes from a convolution of cuDNN and has not
    passed the activation yet.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    s = tl.program_id(1)
    i = tl.arange(0, NZP)
    acc = tl.zeros((BM, NZP), tl.float32)
    CHUNK: tl.constexpr = (N + SPLIT * BK - 1) // (SPLIT * BK) * BK
    for q in range(0, CHUNK // BK):
        k = s * CHUNK + q * BK + tl.arange(0, BK)
        ok = (m < rows)[:, None] & (k < N)[None, :]
        a = tl.load(g + m[:, None] * N + k[None, :], mask=ok, other=0.0)
        if MASK:
            u = tl.load(h + m[:, None] * N + k[None, :], mask=ok, other=0.0)
            a = tl.where(u > 0, a, (a * LEAK).to(a.dtype))
        b = tl.load(w + i[:, None] * N + k[None, :], mask=(i < NZ)[:, None] & (k < N)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
    tl.store(part + s * rows * NZ + m[:, None] * NZ + i[None, :], acc, mask=(m < rows)[:, None] & (i < NZ)[None, :])


@triton.jit
def up_forward(
    h, w, bias, out, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, LEAK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[rows, 2H, 2W, CO] = lrelu(convT4x4s2p1(h[rows, H, W, CI], w) + bias); one phase (a, b) a program."""
    phase = tl.program_id(2)
    a, b = phase // 2, phase % 2
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = m < rows * H * W
    r, i, j = m // (H * W), m % (H * W) // W, m % W
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    kk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    NK: tl.constexpr = (CI + BK - 1) // BK
    for s in range(0, 4 * NK):
        tap = s // NK
        k = s % NK * BK + kk
        ty, tx = tap // 2, tap % 2
        y, x = i + a - ty, j + b - tx
        ok = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        source = h + ((r * H + y) * W + x)[:, None] * CI + k[None, :]
        weight = w + (((1 - a + 2 * ty) * 4 + 1 - b + 2 * tx) * CI + k)[:, None] * CO + n[None, :]
        if CI % BK == 0:
            A = tl.load(source, mask=ok[:, None], other=0.0)
        else:
            A = tl.load(source, mask=ok[:, None] & (k < CI)[None, :], other=0.0)
        if CI % BK == 0 and CO % BN == 0:
            B = tl.load(weight)
        else:
            B = tl.load(weight, mask=(k < CI)[:, None] & (n < CO)[None, :], other=0.0)
        acc = tl.dot(A, B, acc, input_precision="ieee")
    acc += tl.load(bias + n, mask=n < CO, other=0.0)[None, :]
    acc = tl.where(acc > 0, acc, acc * LEAK)
    o = ((r * 2 * H + 2 * i + a) * 2 * W + 2 * j + b)[:, None] * CO + n[None, :]
    tl.store(out + o, acc.to(out.dtype.element_ty), mask=inside[:, None] & (n < CO)[None, :])


@triton.jit
def up_backward(
    g, w, h, out, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, LEAK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[rows, H, W, CI] = lrelu'(h) conv4x4s2p1(g[rows, 2H, 2W, CO], w): the gradient before the input's activation.

    w[ky, kx, CO, CI] is a transposed copy: reading the forward pass's order instead takes a quarter more time.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = m < rows * H * W
    r, i, j = m // (H * W), m % (H * W) // W, m % W
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    kk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    NK: tl.constexpr = (CO + BK - 1) // BK
    for s in range(0, 16 * NK):
        tap = s // NK
        k = s % NK * BK + kk
        y, x = 2 * i - 1 + tap // 4, 2 * j - 1 + tap % 4
        ok = inside & (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W)
        source = g + ((r * 2 * H + y) * 2 * W + x)[:, None] * CO + k[None, :]
        weight = w + (tap * CO + k)[:, None] * CI + n[None, :]
        if CO % BK == 0:
            A = tl.load(source, mask=ok[:, None], other=0.0)
        else:
            A = tl.load(source, mask=ok[:, None] & (k < CO)[None, :], other=0.0)
        if CO % BK == 0 and CI % BN == 0:
            B = tl.load(weight)
        else:
            B = tl.load(weight, mask=(k < CO)[:, None] & (n < CI)[None, :], other=0.0)
        acc = tl.dot(A, B, acc, input_precision="ieee")
    p = m[:, None] * CI + n[None, :]
    ok = inside[:, None] & (n < CI)[None, :]
    acc = tl.where(tl.load(h + p, mask=ok, other=0.0).to(tl.float32) > 0, acc, acc * LEAK)
    tl.store(out + p, acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def last_columns(
    h, w, out, pixels, CI: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """out[pixels, N] = h[pixels, CI] @ w[CI, N], N = taps x colours: what input pixels add to the output pixels."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, NP)
    acc = tl.zeros((BM, NP), tl.float32)
    for k0 in tl.static_range(0, CI, BK):
        k = k0 + tl.arange(0, BK)
        A = tl.load(h + m[:, None] * CI + k[None, :], mask=(m < pixels)[:, None] & (k < CI)[None, :], other=0.0)
        B = tl.load(w + k[:, None] * N + n[None, :], mask=(k < CI)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(A, B, acc, input_precision="ieee")
    tl.store(out + m[:, None] * N + n[None, :], acc, mask=(m < pixels)[:, None] & (n < N)[None, :])


@triton.jit
def last_fold(
    columns, bias, x, d, error, rows, scale,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S: tl.constexpr, KS: tl.constexpr,
    BYTES: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """x_hat = tanh(sum of the columns under a pixel + bias); d[rows, S H, S W, C] = (x - x_hat)(1 - x_hat^2) scale;
    error[program] = sum (x - x_hat)^2. x is NCHW, uint8 where BYTES."""
    o = tl.program_id(0) * BL + tl.arange(0, BL)
    inside = o < rows * (S * H * S * W * C)
    c, ox, oy, r = o % C, o // C % (S * W), o // (C * S * W) % (S * H), o // (C * S * W * S * H)
    u = tl.load(bias + c)
    for ty in tl.static_range(KS // S):
        for tx in tl.static_range(KS // S):
            ky, kx = (oy + 1) % S + S * ty, (ox + 1) % S + S * tx
            i, j = (oy + 1 - ky) // S, (ox + 1 - kx) // S
            ok = inside & (oy + 1 >= ky) & (i < H) & (ox + 1 >= kx) & (j < W)
            u += tl.load(columns + ((r * H + i) * W + j) * (KS * KS * C) + (ky * KS + kx) * C + c, mask=ok, other=0.0)
    x_hat = 1 - 2 / (tl.exp(2 * u) + 1)
    value = tl.load(x + ((r * C + c) * (S * H) + oy) * (S * W) + ox, mask=inside, other=0).to(tl.float32)
    if BYTES:
        value = value / 127.5 - 1
    diff = tl.where(inside, value - x_hat, 0.0)
    tl.store(d + o, (diff * (1 - x_hat * x_hat) * scale).to(d.dtype.element_ty), mask=inside)
    tl.store(error + tl.program_id(0), tl.sum(diff * diff, 0))


@triton.jit
def last_backward(
    d, w, h, out, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, C: tl.constexpr, S: tl.constexpr, KS: tl.constexpr,
    KP: tl.constexpr, LEAK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[rows, H, W, CI] = lrelu'(h) conv(d, w) with stride S.

    Taps and colours are one short sum, padded to KP, and w[KP, CI] is a transposed copy.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = m < rows * H * W
    r, i, j = m // (H * W), m % (H * W) // W, m % W
    k = tl.arange(0, KP)
    tap, c = k // C, k % C
    y, x = (S * i - 1)[:, None] + (tap // KS)[None, :], (S * j - 1)[:, None] + (tap % KS)[None, :]
    real = k < KS * KS * C
    ok = inside[:, None] & real[None, :] & (y >= 0) & (y < S * H) & (x >= 0) & (x < S * W)
    A = tl.load(d + ((r[:, None] * (S * H) + y) * (S * W) + x) * C + c[None, :], mask=ok, other=0.0)
    B = tl.load(w + k[:, None] * CI + n[None, :], mask=(n < CI)[None, :], other=0.0)
    acc = tl.dot(A, B, input_precision="ieee")
    p = m[:, None] * CI + n[None, :]
    ok = inside[:, None] & (n < CI)[None, :]
    acc = tl.where(tl.load(h + p, mask=ok, other=0.0).to(tl.float32) > 0, acc, acc * LEAK)
    tl.store(out + p, acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def last_weights(
    h, d, part, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, C: tl.constexpr, S: tl.constexpr, KS: tl.constexpr,
    KP: tl.constexpr, STEPS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part[program, CI, KP] = the sum over STEPS blocks of pixels of h[pixel, CI] d[its output under (tap, colour)]."""
    ci = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, KP)
    tap, c = k // C, k % C
    acc = tl.zeros((BM, KP), tl.float32)
    for s in range(0, STEPS):
        m = (tl.program_id(0) * STEPS + s) * BK + tl.arange(0, BK)
        inside = m < rows * H * W
        r, i, j = m // (H * W), m % (H * W) // W, m % W
        y, x = (S * i - 1)[:, None] + (tap // KS)[None, :], (S * j - 1)[:, None] + (tap % KS)[None, :]
        ok = inside[:, None] & (k < KS * KS * C)[None, :] & (y >= 0) & (y < S * H) & (x >= 0) & (x < S * W)
        A = tl.load(h + m[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
        B = tl.load(d + ((r[:, None] * (S * H) + y) * (S * W) + x) * C + c[None, :], mask=ok, other=0.0)
        acc = tl.dot(tl.trans(A), B, acc, input_precision="ieee")
    p = part + (tl.program_id(0) * CI + ci)[:, None] * KP + k[None, :]
    tl.store(p, acc, mask=(ci < CI)[:, None])


@triton.jit
def column_sums(g, out, pixels, C: tl.constexpr, STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """out[C] += sum over pixels of g[pixels, C] (out starts at zero): the gradient of a bias."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for s in range(0, STEPS):
        m = (tl.program_id(0) * STEPS + s) * BM + tl.arange(0, BM)
        v = tl.load(g + m[:, None] * C + n[None, :], mask=(m < pixels)[:, None] & (n < C)[None, :], other=0.0)
        total += tl.sum(v.to(tl.float32), 0)
    tl.atomic_add(out + n, total, mask=n < C)
