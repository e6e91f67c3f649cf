"""Triton kernels of the image generators: forward, input gradient and weight gradient of transposed convolutions.

Feature maps are NHWC, weights (ky, kx, ci, co), products accumulate in float32. A layer that doubles the map (4x4,
stride 2, padding 1) splits into four phases: output pixel (2i + a, 2j + b) sees 2 x 2 input pixels and 2 x 2 taps. Every kernel
is an implicit matrix product over pixels, with bias, LeakyReLU, its mask, tanh and the residual fused where they belong.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_forward(
    z,
    w,
    bias,
    out,
    rows,
    NZ: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    LEAK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out[rows, N] = lrelu(z[rows, NZ] @ w[NZ, N] + bias[n % C]): the first layer, on a 1x1 map, is a matrix product."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.static_range(0, NZ, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(z + m[:, None] * NZ + k[None, :], mask=(m < rows)[:, None] & (k < NZ)[None, :], other=0.0).to(w.dtype.element_ty)
        b = tl.load(w + k[:, None] * N + n[None, :], mask=(k < NZ)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc += tl.load(bias + n % C, mask=n < N, other=0.0)[None, :]
    acc = tl.where(acc > 0, acc, acc * LEAK)
    tl.store(out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < N)[None, :])


@triton.jit
def first_backward(g, w, part, rows, NZ: tl.constexpr, NZP: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """part[s, rows, NZ] = g[rows, chunk s of N] @ w[NZ, chunk s]^T: the long sum over N is split; whoever reads adds the parts."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    s = tl.program_id(1)
    i = tl.arange(0, NZP)
    acc = tl.zeros((BM, NZP), tl.float32)
    CHUNK: tl.constexpr = (N + SPLIT * BK - 1) // (SPLIT * BK) * BK
    for q in range(0, CHUNK // BK):
        k = s * CHUNK + q * BK + tl.arange(0, BK)
        a = tl.load(g + m[:, None] * N + k[None, :], mask=(m < rows)[:, None] & (k < N)[None, :], other=0.0)
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
    """out[rows, H, W, CI] = lrelu'(h) conv4x4s2p1(g[rows, 2H, 2W, CO], w): the gradient at the layer's pre-activated input."""
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
        weight = w + (tap * CI + n)[:, None] * CO + k[None, :]
        if CO % BK == 0:
            A = tl.load(source, mask=ok[:, None], other=0.0)
        else:
            A = tl.load(source, mask=ok[:, None] & (k < CO)[None, :], other=0.0)
        if CO % BK == 0 and CI % BN == 0:
            B = tl.load(weight)
        else:
            B = tl.load(weight, mask=(n < CI)[:, None] & (k < CO)[None, :], other=0.0)
        acc = tl.dot(A, tl.trans(B), acc, input_precision="ieee")
    p = m[:, None] * CI + n[None, :]
    ok = inside[:, None] & (n < CI)[None, :]
    acc = tl.where(tl.load(h + p, mask=ok, other=0.0).to(tl.float32) > 0, acc, acc * LEAK)
    tl.store(out + p, acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def up_weights(
    h, g, dw, db, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, STEPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw[tap, CI, CO] = sum over pixels of h[pixel, CI] g[pixel's output under the tap, CO], and db[CO] beside it.

    STEPS = ceil(rows H W / BK). The taps ky, kx in {1, 2} together meet every output pixel once, so they also sum the bias.
    """
    tap = tl.program_id(2)
    ky, kx = tap // 4, tap % 4
    ci = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for s in range(0, STEPS):
        m = s * BK + tl.arange(0, BK)
        inside = m < rows * H * W
        r, i, j = m // (H * W), m % (H * W) // W, m % W
        y, x = 2 * i - 1 + ky, 2 * j - 1 + kx
        ok = inside & (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W)
        A = tl.load(h + m[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
        B = tl.load(g + ((r * 2 * H + y) * 2 * W + x)[:, None] * CO + co[None, :], mask=ok[:, None] & (co < CO)[None, :], other=0.0)
        acc = tl.dot(tl.trans(A), B, acc, input_precision="ieee")
        total += tl.sum(B.to(tl.float32), 0)
    tl.store(dw + (tap * CI + ci)[:, None] * CO + co[None, :], acc, mask=(ci < CI)[:, None] & (co < CO)[None, :])
    if (tl.program_id(0) == 0) & (ky >= 1) & (ky <= 2) & (kx >= 1) & (kx <= 2):
        tl.atomic_add(db + co, total, mask=co < CO)


@triton.jit
def last_forward(
    h, wp, bias, x, d, error, rows, scale,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, C: tl.constexpr, S: tl.constexpr, BYTES: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x_hat = tanh(last layer); d[rows, S H, S W, C] = (x - x_hat)(1 - x_hat^2) scale; error[program] = sum (x - x_hat)^2.

    The layer is a 9-tap product with S S C columns of 16 (wp[9, CI, 16], see pack_last). x is NCHW, uint8 where BYTES.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = m < rows * H * W
    r, i, j = m // (H * W), m % (H * W) // W, m % W
    n = tl.arange(0, 16)
    kk = tl.arange(0, BK)
    acc = tl.zeros((BM, 16), tl.float32)
    NK: tl.constexpr = (CI + BK - 1) // BK
    for s in range(0, 9 * NK):
        tap = s // NK
        k = s % NK * BK + kk
        y, q = i + tap // 3 - 1, j + tap % 3 - 1
        ok = inside & (y >= 0) & (y < H) & (q >= 0) & (q < W)
        A = tl.load(h + ((r * H + y) * W + q)[:, None] * CI + k[None, :], mask=ok[:, None] & (k < CI)[None, :], other=0.0)
        B = tl.load(wp + (tap * CI + k)[:, None] * 16 + n[None, :], mask=(k < CI)[:, None], other=0.0)
        acc = tl.dot(A, B, acc, input_precision="ieee")
    c = n % C
    a, b = n // C // S, n // C % S
    acc += tl.load(bias + c)[None, :]
    x_hat = 1 - 2 / (tl.exp(2 * acc) + 1)
    oy, ox = (S * i)[:, None] + a[None, :], (S * j)[:, None] + b[None, :]
    ok2 = inside[:, None] & (n < S * S * C)[None, :]
    value = tl.load(x + ((r[:, None] * C + c[None, :]) * (S * H) + oy) * (S * W) + ox, mask=ok2, other=0).to(tl.float32)
    if BYTES:
        value = value / 127.5 - 1
    diff = tl.where(ok2, value - x_hat, 0.0)
    tl.store(d + ((r[:, None] * (S * H) + oy) * (S * W) + ox) * C + c[None, :], (diff * (1 - x_hat * x_hat) * scale).to(d.dtype.element_ty), mask=ok2)
    tl.store(error + tl.program_id(0), tl.sum(tl.sum(diff * diff, 1), 0))


@triton.jit
def last_backward(
    d, w, h, out, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, C: tl.constexpr, S: tl.constexpr, KS: tl.constexpr, KP: tl.constexpr, LEAK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[rows, H, W, CI] = lrelu'(h) conv(d, w[KS, KS, CI, C]) with stride S: the taps and colours are one short sum, padded to KP."""
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
    B = tl.load(w + (tap[:, None] * CI + n[None, :]) * C + c[:, None], mask=real[:, None] & (n < CI)[None, :], other=0.0)
    acc = tl.dot(A, B, input_precision="ieee")
    p = m[:, None] * CI + n[None, :]
    ok = inside[:, None] & (n < CI)[None, :]
    acc = tl.where(tl.load(h + p, mask=ok, other=0.0).to(tl.float32) > 0, acc, acc * LEAK)
    tl.store(out + p, acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def last_weights(
    h, d, part, rows,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, C: tl.constexpr, S: tl.constexpr, KS: tl.constexpr, KP: tl.constexpr, STEPS: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part[program, CI, KP] = sum over the program's STEPS blocks of pixels of h[pixel, CI] d[pixel's output under (tap, colour)]."""
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
def first_weights(g, z, dw, rows, NZ: tl.constexpr, NZP: tl.constexpr, N: tl.constexpr, STEPS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """dw[NZ, N] = z[rows, NZ]^T g[rows, N]."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    i = tl.arange(0, NZP)
    acc = tl.zeros((NZP, BN), tl.float32)
    for s in range(0, STEPS):
        m = s * BK + tl.arange(0, BK)
        A = tl.load(z + m[:, None] * NZ + i[None, :], mask=(m < rows)[:, None] & (i < NZ)[None, :], other=0.0).to(g.dtype.element_ty)
        B = tl.load(g + m[:, None] * N + n[None, :], mask=(m < rows)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(tl.trans(A), B, acc, input_precision="ieee")
    tl.store(dw + i[:, None] * N + n[None, :], acc, mask=(i < NZ)[:, None] & (n < N)[None, :])
