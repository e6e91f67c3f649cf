"""Triton kernels of the chains: the energy's score, the whole prior chain in one launch, the posterior's update.

Noise is counter-based: element i of row m at step k is a function of (seed, m, k, i) alone, so a row's path depends neither
on the batch nor on the order in which programs run. The seed is read from device memory: a captured graph draws a new one
each time it runs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _block(w, r0, c0, turned: tl.constexpr, NR: tl.constexpr, NC: tl.constexpr):
    """A 128 x 128 block of w[NR, NC] at (r0, c0), zero outside; `turned` gives its transpose."""
    r, c = r0 + tl.arange(0, 128), c0 + tl.arange(0, 128)
    b = tl.load(w + r[:, None] * NC + c[None, :], mask=(r < NR)[:, None] & (c < NC)[None, :], other=0.0)
    if turned:
        b = tl.trans(b)
    return b


@triton.jit
def _row(v, c0, N: tl.constexpr):
    c = c0 + tl.arange(0, 128)
    return tl.load(v + c, mask=c < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _grad_f(z, w1, b1, w2, b2, w3, again, NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr):
    """z[R, 128] float32 -> grad f[R, 128] of the MLP NZ-ND-ND-1; w1[ND, NZ], w2[ND, ND] as nn.Linear keeps them, ND <= 256.

    The two halves of the width are separate tensors: a Triton tensor has a power-of-two side and cannot be sliced. `again` is 0: a constant, and
    the weights stay in shared memory between there and back; a number at run time, and they are read twice, for GPUs with less of it.
    """
    dt = w1.dtype.element_ty
    zc = z.to(dt)
    ua = tl.dot(zc, _block(w1, 0, 0, True, ND, NZ), input_precision="ieee") + _row(b1, 0, ND)
    ub = tl.dot(zc, _block(w1, 128, 0, True, ND, NZ), input_precision="ieee") + _row(b1, 128, ND)
    ma, mb = tl.where(ua > 0, 1.0, LEAK), tl.where(ub > 0, 1.0, LEAK)
    ha, hb = (ua * ma).to(dt), (ub * mb).to(dt)
    va = tl.dot(ha, _block(w2, 0, 0, True, ND, ND), input_precision="ieee")
    va = tl.dot(hb, _block(w2, 0, 128, True, ND, ND), va, input_precision="ieee") + _row(b2, 0, ND)
    vb = tl.dot(ha, _block(w2, 128, 0, True, ND, ND), input_precision="ieee")
    vb = tl.dot(hb, _block(w2, 128, 128, True, ND, ND), vb, input_precision="ieee") + _row(b2, 128, ND)
    da = (tl.where(va > 0, 1.0, LEAK) * _row(w3, 0, ND)).to(dt)
    db = (tl.where(vb > 0, 1.0, LEAK) * _row(w3, 128, ND)).to(dt)
    ea = tl.dot(da, _block(w2 + again, 0, 0, False, ND, ND), input_precision="ieee")
    ea = tl.dot(db, _block(w2 + again, 128, 0, False, ND, ND), ea, input_precision="ieee") * ma
    eb = tl.dot(da, _block(w2 + again, 0, 128, False, ND, ND), input_precision="ieee")
    eb = tl.dot(db, _block(w2 + again, 128, 128, False, ND, ND), eb, input_precision="ieee") * mb
    g = tl.dot(ea.to(dt), _block(w1 + again, 0, 0, False, ND, NZ), input_precision="ieee")
    return tl.dot(eb.to(dt), _block(w1 + again, 128, 0, False, ND, NZ), g, input_precision="ieee")


@triton.jit
def _mixture_score(z, inverses, shift, constant, R: tl.constexpr, PARTS: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr):
    """z[R, 128] float32 -> grad log of a mixture of Gaussians; inverses[PARTS, 128, 128], shift[PARTS, 128] and constant[PARTS] as lebm.mixture
    keeps them, filled up with zeros. One pass over groups of Gaussians, TOGETHER in one product: their weights are kept relative to the
    largest so far, and AHEAD groups are under way at once. PARTS is a multiple of TOGETHER."""
    dt = inverses.dtype.element_ty
    i, j, zc = tl.arange(0, 128), tl.arange(0, 128 * TOGETHER), z.to(dt)
    most, total, found = tl.full((R,), -1e30, tl.float32), tl.zeros((R,), tl.float32), tl.zeros((R, 128), tl.float32)
    for k in tl.range(0, PARTS, TOGETHER, num_stages=AHEAD):
        inverse = tl.load(inverses + k * 16384 + j[:, None] * 128 + i[None, :])
        white = tl.dot(zc, tl.trans(inverse), input_precision="tf32") - tl.load(shift + k * 128 + j)[None, :]
        white = tl.reshape(white, (R, TOGETHER, 128))
        log_p = tl.load(constant + k + tl.arange(0, TOGETHER))[None, :] - 0.5 * tl.sum(white * white, 2)
        top = tl.maximum(most, tl.max(log_p, 1))
        old, new = tl.exp(most - top), tl.exp(log_p - top[:, None])
        weighed = tl.clamp(white * new[:, :, None], -60000.0, 60000.0)  # float16 ends at 65504
        weighed = tl.reshape(weighed, (R, 128 * TOGETHER)).to(dt)
        found = found * old[:, None] + tl.dot(weighed, inverse, input_precision="tf32")
        total, most = total * old + tl.sum(new, 1), top
    return -found / total[:, None]


@triton.jit
def prior_chain(
    out, start, seed, w1, b1, w2, b2, w3, inverses, shift, constant, rows, drift, size, zero,
    K: tl.constexpr, NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr, R: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
    LEAN: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """K Langevin steps of R rows a program, to the prior; FRESH: from N(0, I), and the start is kept too; otherwise from `start`.
    p_0 is N(0, I), or where there are PARTS a mixture.

    `zero` is 0 at run time: it keeps the compiler from moving the weights' loads out of the loop, where they would not fit.
    """
    m, i = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, 128)
    ok = (m < rows)[:, None] & (i < NZ)[None, :]
    p = m[:, None] * NZ + i[None, :]
    s = tl.load(seed)
    counter = m[:, None] * ((K + 1) * NZ) + i[None, :]
    if FRESH:
        z = tl.where(ok, tl.randn(s, counter), 0.0)
        tl.store(start + p, z, mask=ok)
    else:
        z = tl.load(start + p, mask=ok, other=0.0)
    for k in range(0, K):
        q = k * zero
        g = _grad_f(z, w1 + q, b1, w2 + q, b2, w3, zero if LEAN else 0, NZ, ND, LEAK)
        if PARTS:
            g += _mixture_score(z, inverses + q, shift, constant, R, PARTS, TOGETHER, AHEAD)
        else:
            g -= z
        z = z + drift * g + size * tl.randn(s, counter + (k + 1) * NZ)
        z = tl.where(ok, z, 0.0)
    tl.store(out + p, z, mask=ok)


@triton.jit
def energy_score(
    z, out, w1, b1, w2, b2, w3, inverses, shift, constant, rows, zero,
    NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr, LEAN: tl.constexpr,
    TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """out[rows, NZ] = grad f(z); where p_0 is a mixture of PARTS, with its score and z."""
    m, i = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, 128)
    ok = (m < rows)[:, None] & (i < NZ)[None, :]
    p = m[:, None] * NZ + i[None, :]
    v = tl.load(z + p, mask=ok, other=0.0)
    g = _grad_f(v, w1, b1, w2, b2, w3, zero if LEAN else 0, NZ, ND, LEAK)
    if PARTS:
        g += _mixture_score(v, inverses, shift, constant, R, PARTS, TOGETHER, AHEAD) + v
    tl.store(out + p, g, mask=ok)


@triton.jit
def draw_start(z, start, seed, total, K: tl.constexpr, NZ: tl.constexpr, BL: tl.constexpr):
    """z = start = N(0, I), by the same counters as prior_chain."""
    o = tl.program_id(0) * BL + tl.arange(0, BL)
    e = tl.randn(tl.load(seed), o // NZ * ((K + 1) * NZ) + o % NZ)
    tl.store(z + o, e, mask=o < total)
    tl.store(start + o, e, mask=o < total)


@triton.jit
def posterior_update(
    z, part, grad_f, seed, total, drift, size, bound, step,
    K: tl.constexpr, NZ: tl.constexpr, SPLIT: tl.constexpr, BL: tl.constexpr, TAMED: tl.constexpr,
):  # fmt: skip
    """z <- z + drift (sum of part + grad_f - z) + size e, in place: one Langevin step of a row from the generator's partial sums.

    Where TAMED the drift is no longer than `bound`, root mean square a coordinate.
    """
    row, i = tl.program_id(0), tl.arange(0, BL)
    o, ok = row * NZ + i, i < NZ
    g = tl.load(grad_f + o, mask=ok, other=0.0)
    for q in tl.static_range(SPLIT):
        g += tl.load(part + q * total + o, mask=ok, other=0.0)
    v = tl.load(z + o, mask=ok, other=0.0)
    d = drift * (g - v)
    if TAMED:
        d *= bound / tl.maximum(tl.sqrt(tl.sum(d * d, 0) / NZ), bound)
    e = tl.randn(tl.load(seed), row * ((K + 1) * NZ) + (step + 1) * NZ + i)
    tl.store(z + o, v + d + size * e, mask=ok)
