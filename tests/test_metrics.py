"""Metrics: closed forms, and SciPy or NumPy as the second opinion."""

import numpy as np
import pytest
import scipy.linalg
import torch

from lebm.measure.mse import mean_squared_error
from lebm.measure.statistics import Moments, frechet_distance

EPS = np.finfo(np.float64).eps


def rng(seed=0):
    return np.random.default_rng(seed)


def spd(d, seed, rank=None):
    """A random positive (semi-)definite matrix of the given rank."""
    a = rng(seed).standard_normal((d, rank or 2 * d))
    return a @ a.T / a.shape[1]


def moments(rows, batch=None):
    """Rows as Moments see them, in pieces of `batch`."""
    m = Moments()
    for part in torch.as_tensor(rows).split(batch or len(rows)):
        m.add(part)
    return m.mean_cov()


# --- Fréchet distance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 3, 20])
def test_equal_covariances_leave_the_squared_distance_of_the_means(d):
    a, b, cov = rng(1).standard_normal(d), rng(2).standard_normal(d), spd(d, 3)
    assert frechet_distance(a, cov, b, cov) == pytest.approx(((a - b) ** 2).sum(), abs=1e-12 * d * np.trace(cov))


@pytest.mark.parametrize(("mu", "sigma", "nu", "tau"), [(0, 1, 0, 3), (1.5, 0.2, -2, 0.7), (4, 0, 1, 2), (1, 0, 1, 0)])
def test_one_dimension_is_the_closed_form(mu, sigma, nu, tau):
    """(mu - nu)^2 + (sigma - tau)^2."""
    distance = frechet_distance(np.array([mu]), np.array([[sigma**2]]), np.array([nu]), np.array([[tau**2]]))
    assert distance == pytest.approx((mu - nu) ** 2 + (sigma - tau) ** 2, abs=1e-13)


@pytest.mark.parametrize("d", [2, 10, 40])
def test_agrees_with_scipys_matrix_root(d):
    a, b, cov_a, cov_b = rng(4).standard_normal(d), rng(5).standard_normal(d), spd(d, 6), 2 * spd(d, 7)
    root = scipy.linalg.sqrtm(cov_a @ cov_b)
    expected = ((a - b) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root.real)
    assert frechet_distance(a, cov_a, b, cov_b) == pytest.approx(expected, rel=1e-8)


def test_commuting_covariances_have_a_closed_form_singular_or_not():
    """Diagonal in one basis: the sum of (sqrt(a_i) - sqrt(b_i))^2. Rounding of a zero eigenvalue, about d eps, enters
    under a root: d sqrt(d eps) bounds it."""
    q = np.linalg.qr(rng(8).standard_normal((6, 6)))[0]
    a, b = np.array([4.0, 1, 0, 0, 2, 0]), np.array([1.0, 0, 0, 9, 2, 0])
    expected = ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    zero = np.zeros(6)
    assert frechet_distance(zero, np.diag(a), zero, np.diag(b)) == pytest.approx(expected, abs=1e-12)
    assert frechet_distance(zero, q * a @ q.T, zero, q * b @ q.T) == pytest.approx(
        expected, abs=9 * 6 * np.sqrt(6 * EPS)
    )


def test_rank_deficient_and_zero_covariances():
    """From 10 rows in 30 dimensions; against zero the distance is the trace, against itself zero."""
    mean, cov = np.ones(30), spd(30, 9, rank=10)
    zero = np.zeros((30, 30))
    assert np.linalg.matrix_rank(cov) == 10
    assert frechet_distance(mean, cov, mean, zero) == pytest.approx(np.trace(cov), rel=1e-12)
    assert frechet_distance(mean, zero, 3 * mean, zero) == pytest.approx(120, rel=1e-14)
    assert frechet_distance(mean, cov, mean, cov) == pytest.approx(0, abs=1e-11)
    # against the identity: sum of (sqrt(eigenvalue) - 1)^2, each zero eigenvalue known to about 30 eps
    values = np.linalg.eigvalsh(cov).clip(0)
    assert frechet_distance(mean, cov, mean, np.eye(30)) == pytest.approx(
        ((np.sqrt(values) - 1) ** 2).sum(), abs=2 * 30 * np.sqrt(30 * EPS)
    )


def test_is_symmetric_and_zero_on_itself():
    a, b, cov_a, cov_b = rng(1).standard_normal(12), rng(2).standard_normal(12), spd(12, 3), spd(12, 4)
    there, back = frechet_distance(a, cov_a, b, cov_b), frechet_distance(b, cov_b, a, cov_a)
    assert there == pytest.approx(back, rel=1e-13)
    assert there > 0.1
    assert frechet_distance(a, cov_a, a, cov_a) == pytest.approx(0, abs=1e-12)


def test_scales_with_the_square_of_the_features():
    a, b, cov_a, cov_b = rng(1).standard_normal(5), rng(2).standard_normal(5), spd(5, 3), spd(5, 4)
    assert frechet_distance(3 * a, 9 * cov_a, 3 * b, 9 * cov_b) == pytest.approx(
        9 * frechet_distance(a, cov_a, b, cov_b), rel=1e-12
    )


# --- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 1, 7, 64, 999])
def test_moments_are_numpys_however_the_rows_are_split(batch):
    rows = rng(1).standard_normal((1000, 8)) @ rng(2).standard_normal((8, 8)) + 3
    mean, cov = moments(rows, batch)
    assert mean.dtype == cov.dtype == np.float64
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-10)
    np.testing.assert_allclose(cov, np.cov(rows.T), rtol=1e-10, atol=1e-10)
    whole_mean, whole_cov = moments(rows)
    np.testing.assert_allclose(mean, whole_mean, rtol=1e-12)
    np.testing.assert_allclose(cov, whole_cov, rtol=0, atol=1e-12 * np.abs(whole_cov).max())


@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_a_large_offset_does_not_cost_accuracy(offset):
    rows = rng(3).standard_normal((2000, 4)) + offset
    mean, cov = moments(rows, 128)
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(cov, np.cov((rows - offset).T), rtol=0, atol=1e-10)


def test_float32_images_are_summed_in_float64():
    images = torch.rand(500, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    mean, cov = moments(images, 33)
    flat = images.flatten(1).double().numpy()
    np.testing.assert_allclose(mean, flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(cov, np.cov(flat.T), rtol=0, atol=1e-12)


def test_add_chains_and_counts():
    m = Moments().add(torch.zeros(3, 2)).add(torch.ones(1, 2))
    assert m.n == 4
    np.testing.assert_array_equal(m.mean_cov()[0], [0.25, 0.25])
    np.testing.assert_array_equal(m.mean_cov()[1], np.full((2, 2), 0.25))


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_rows_have_no_covariance(n):
    m = Moments()
    if n:
        m.add(torch.zeros(n, 3))
    with pytest.raises(ValueError, match=f"moments of {n} rows; at least 2"):
        m.mean_cov()


# --- reconstruction ---------------------------------------------------------------------------------------------------


def test_mean_squared_error_counts_rows_pixels_and_channels_alike():
    x, x_hat = torch.zeros(2, 3, 2, 2), torch.zeros(2, 3, 2, 2)
    x_hat[0, 0, 0, 0], x_hat[1, 2, 1, 1] = 3.0, -1.0
    assert mean_squared_error(x, x_hat) == 10 / 24
    assert mean_squared_error(x, x) == 0


def test_mean_squared_error_is_taken_in_float64():
    """Float32 sums of a million squares would lose digits."""
    x = torch.rand(1000, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert mean_squared_error(x, -x) == pytest.approx(np.mean((2 * x.double().numpy()) ** 2), rel=1e-13)
