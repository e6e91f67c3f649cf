"""Triton kernels of the chains: the score of the energy, the whole prior chain in one launch, and one posterior step.

Noise is counter-based: element i of row m at step k is a function of (seed, m, k, i) alone, so the path of a row
depends neither on the batch nor on the order in which programs run. The seed is read from device memory, so that a
captured graph uses a new one each time it is replayed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _block(w, r0, c0, transposed: tl.constexpr, NR: tl.constexpr, NC: tl.constexpr):
    """A 128 x 128 block of w[NR, NC] at (r0, c0), zero outside; `transposed` gives its transpose."""
    r, c = r0 + tl.arange(0, 128), c0 + tl.arange(0, 128)
    b = tl.load(w + r[:, None] * NC + c[None, :], mask=(r < NR)[:, None] & (c < NC)[None, :], other=0.0)
    if transposed:
        b = tl.trans(b)
    return b


@triton.jit
def _row(v, c0, N: tl.constexpr):
    c = c0 + tl.arange(0, 128)
    return tl.load(v + c, mask=c < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _grad_f(z, w1, b1, w2, b2, w3, again, NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr):
    """z[R, 128] float32 -> grad f[R, 128] of the MLP NZ-ND-ND-1, ND <= 256; w1[ND, NZ], w2[ND, ND] are as in nn.Linear.

    The two halves of the width are separate tensors, because a side of a Triton tensor is a power of two and cannot be
    sliced. `again` is 0. As a constant it lets the weights stay in shared memory between the forward and the backward
    pass; as a number at run time it makes them be read twice, for GPUs with less shared memory.
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
def _mixture_score(
    z, inverses, shift, constant,
    R: tl.constexpr, COMPONENTS: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """z[R, 128] float32 -> the gradient of the log of a mixture of Gaussians.

    inverses[COMPONENTS, 128, 128], shift[COMPONENTS, 128] and constant[COMPONENTS] are those of OnlineMixture, padded
    with zeros. One pass runs over groups of Gaussians, TOGETHER of them in one product and AHEAD groups at once, with
    weights relative to the largest so far. COMPONENTS is a multiple of TOGETHER.
    """
    dt = inverses.dtype.element_ty
    i, j, zc = tl.arange(0, 128), tl.arange(0, 128 * TOGETHER), z.to(dt)
    most, total = tl.full((R,), -1e30, tl.float32), tl.zeros((R,), tl.float32)
    score = tl.zeros((R, 128), tl.float32)
    for k in tl.range(0, COMPONENTS, TOGETHER, num_stages=AHEAD):
        inverse = tl.load(inverses + k * 16384 + j[:, None] * 128 + i[None, :])
        white = tl.dot(zc, tl.trans(inverse), input_precision="tf32") - tl.load(shift + k * 128 + j)[None, :]
        white = tl.reshape(white, (R, TOGETHER, 128))
        log_p = tl.load(constant + k + tl.arange(0, TOGETHER))[None, :] - 0.5 * tl.sum(white * white, 2)
        top = tl.maximum(most, tl.max(log_p, 1))
        old, new = tl.exp(most - top), tl.exp(log_p - top[:, None])
        weighted = tl.clamp(white * new[:, :, None], -60000.0, 60000.0)  # float16 ends at 65504
        weighted = tl.reshape(weighted, (R, 128 * TOGETHER)).to(dt)
        score = score * old[:, None] + tl.dot(weighted, inverse, input_precision="tf32")
        total, most = total * old + tl.sum(new, 1), top
    return -score / total[:, None]


@triton.jit
def prior_chain(
    out, start, seed, w1, b1, w2, b2, w3, inverses, shift, constant, rows, drift, size, zero,
    K: tl.constexpr, NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr, R: tl.constexpr, FROM_NOISE: tl.constexpr,
    COMPONENTS: tl.constexpr, LEAN: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """K Langevin steps towards the prior, R rows a program, with p_0 = N(0, I) or a mixture of COMPONENTS.

    FROM_NOISE starts from N(0, I) and writes the start down; otherwise the chain begins at `start`. `zero` is 0 at run
    time: it keeps the compiler from moving the loads of the weights out of the loop, where they would not fit.
    """
    m, i = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, 128)
    ok = (m < rows)[:, None] & (i < NZ)[None, :]
    p = m[:, None] * NZ + i[None, :]
    s = tl.load(seed)
    counter = m[:, None] * ((K + 1) * NZ) + i[None, :]
    if FROM_NOISE:
        z = tl.where(ok, tl.randn(s, counter), 0.0)
        tl.store(start + p, z, mask=ok)
    else:
        z = tl.load(start + p, mask=ok, other=0.0)
    for k in range(0, K):
        q = k * zero
        g = _grad_f(z, w1 + q, b1, w2 + q, b2, w3, zero if LEAN else 0, NZ, ND, LEAK)
        if COMPONENTS:
            g += _mixture_score(z, inverses + q, shift, constant, R, COMPONENTS, TOGETHER, AHEAD)
        else:
            g -= z
        z = z + drift * g + size * tl.randn(s, counter + (k + 1) * NZ)
        z = tl.where(ok, z, 0.0)
    tl.store(out + p, z, mask=ok)


@triton.jit
def energy_score(
    z, out, w1, b1, w2, b2, w3, inverses, shift, constant, rows, zero,
    NZ: tl.constexpr, ND: tl.constexpr, LEAK: tl.constexpr, R: tl.constexpr, COMPONENTS: tl.constexpr,
    LEAN: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """out[rows, NZ] = grad f(z); where p_0 is a mixture of COMPONENTS, its score and z are added."""
    m, i = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, 128)
    ok = (m < rows)[:, None] & (i < NZ)[None, :]
    p = m[:, None] * NZ + i[None, :]
    v = tl.load(z + p, mask=ok, other=0.0)
    g = _grad_f(v, w1, b1, w2, b2, w3, zero if LEAN else 0, NZ, ND, LEAK)
    if COMPONENTS:
        g += _mixture_score(v, inverses, shift, constant, R, COMPONENTS, TOGETHER, AHEAD) + v
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
    z, part, grad_f, seed, total, drift, size, limit, step,
    K: tl.constexpr, NZ: tl.constexpr, SPLIT: tl.constexpr, BL: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """z <- z + drift (sum of part + grad_f - z) + size e, in place: one Langevin step of a row.

    `part` holds the partial sums of the generator's score.
    Where LIMITED, the root mean square of the drift over the coordinates of a row is at most `limit`.
    """
    row, i = tl.program_id(0), tl.arange(0, BL)
    o, ok = row * NZ + i, i < NZ
    g = tl.load(grad_f + o, mask=ok, other=0.0)
    for q in tl.static_range(SPLIT):
        g += tl.load(part + q * total + o, mask=ok, other=0.0)
    v = tl.load(z + o, mask=ok, other=0.0)
    d = drift * (g - v)
    if LIMITED:
        d *= limit / tl.maximum(tl.sqrt(tl.sum(d * d, 0) / NZ), limit)
    e = tl.randn(tl.load(seed), row * ((K + 1) * NZ) + (step + 1) * NZ + i)
    tl.store(z + o, v + d + size * e, mask=ok)
