"""The image generators: PyTorch's own layers and densities are the oracle for every architecture."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from lebm.config import ImageConfig, resolve
from lebm.core.errors import DataError
from lebm.core.image_sizes import default_widths
from lebm.core.pixels import to_pixels, to_x
from lebm.generators import ImageGenerator

PRESETS = ["svhn", "cifar10", "celeba64", "celeba128", "mnist", "digits"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reduced(name):
    """A preset's architecture with few channels."""
    return resolve(f"{name}/paper", ["generator.ngf=2"]).generator


ARCHITECTURES = {name: reduced(name) for name in PRESETS} | {
    f"other-{size}x{channels}": ImageConfig(size=size, channels=channels, ngf=2, leak=0.1, sigma=0.15)
    for size in (16, 32, 64, 128)
    for channels in (1, 3)
}


def plain(g):
    """The generator as a plain stack: convolutions with leaky units between them and tanh at the end."""
    *hidden, last = g.layers
    parts = itertools.chain.from_iterable((layer, nn.LeakyReLU(g.leak)) for layer in hidden)
    return nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), *parts, last, nn.Tanh())


def plain_log_prob(g, x, z):
    return torch.distributions.Normal(plain(g)(z), g.sigma).log_prob(x).flatten(1).sum(1)


@pytest.fixture(params=ARCHITECTURES)
def g(request):
    generator = ARCHITECTURES[request.param].build(5).double()
    for i, p in enumerate(generator.parameters()):  # biases too are away from zero
        p.data = normal(*p.shape, seed=i) * (p.data.std() + 0.1 if p.ndim > 1 else 0.1)
    return generator


@pytest.fixture
def pair(g):
    """Three images in [-1, 1] and three latent vectors."""
    return normal(3, *g.shape, seed=50).clamp(-1, 1), 1.5 * normal(3, 5, seed=51)


def test_decode_is_the_plain_stack_of_layers(g, pair):
    x_hat = g.decode(pair[1])
    assert x_hat.shape == (3, *g.shape)
    assert x_hat.abs().max() <= 1
    assert x_hat.std() > 0.05  # the comparison is not of constants
    torch.testing.assert_close(x_hat, plain(g)(pair[1]), rtol=1e-11, atol=1e-12)


def test_log_prob_is_the_normal_density_with_its_constants(g, pair):
    log_p = g.log_prob(*pair)
    assert log_p.shape == (3,)
    torch.testing.assert_close(log_p, plain_log_prob(g, *pair), rtol=1e-11, atol=1e-9)


def test_score_is_the_gradient(g, pair):
    x, z = pair
    score = g.score(x, z)
    z = z.clone().requires_grad_()
    expected = torch.autograd.grad(plain_log_prob(g, x, z).sum(), z)[0]
    assert (score - expected).norm() < 1e-10 * expected.norm()
    assert expected.norm() > 1e-3


def test_score_leaves_its_arguments_as_they_were(g, pair):
    before = [t.clone() for t in pair]
    g.score(*pair)
    assert all(torch.equal(a, b) for a, b in zip(pair, before, strict=True))


def test_error_is_the_mean_square_per_pixel_and_channel(g, pair):
    x, z = pair
    assert g.error(x, z).item() == pytest.approx(np.mean((x - plain(g)(z)).detach().numpy() ** 2), rel=1e-12)


def test_gradients_of_beta_match_the_plain_stack(g, pair):
    parameters = list(g.parameters())
    mine = torch.autograd.grad(g.log_prob(*pair).sum(), parameters)
    expected = torch.autograd.grad(plain_log_prob(g, *pair).sum(), parameters)
    for a, b in zip(mine, expected, strict=True):
        assert (a - b).norm() <= 1e-10 * (b.norm() + 1)


# --- the paper's table of layers, at full width -----------------------------------------------------------------------

# preset: nz, then for every layer (output channels, kernel, stride, output side)
TABLE = {
    "svhn": (100, [(512, 4, 1, 4), (256, 4, 2, 8), (128, 4, 2, 16), (3, 4, 2, 32)]),
    "cifar10": (128, [(1024, 8, 1, 8), (512, 4, 2, 16), (256, 4, 2, 32), (3, 3, 1, 32)]),
    "celeba64": (100, [(1024, 4, 1, 4), (512, 4, 2, 8), (256, 4, 2, 16), (128, 4, 2, 32), (3, 4, 2, 64)]),
    "celeba128": (
        100,
        [(2048, 4, 1, 4), (1024, 4, 2, 8), (512, 4, 2, 16), (256, 4, 2, 32), (128, 4, 2, 64), (3, 4, 2, 128)],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_layers_are_those_of_the_papers_table(name):
    nz, rows = TABLE[name]
    config = resolve(f"{name}/paper")
    assert config.nz == nz
    with torch.device("meta"):  # shapes only: no memory for the large ones
        g = config.generator.build(config.nz)
        h, sides = torch.empty(2, nz, 1, 1), []
        for layer in g.layers:
            h = layer(h)
            sides.append(h.shape[-1])
        assert g.decode(torch.empty(2, nz)).shape == (2, 3, sides[-1], sides[-1])
    pairs = zip(g.layers, sides, strict=True)
    assert [(layer.out_channels, layer.kernel_size[0], layer.stride[0], side) for layer, side in pairs] == rows
    inputs = [nz] + [row[0] for row in rows[:-1]]
    shapes = [(i, o, k, k) for i, (o, k, _, _) in zip(inputs, rows, strict=True)]
    assert [tuple(layer.weight.shape) for layer in g.layers] == shapes
    assert all(layer.bias is not None for layer in g.layers)
    assert (g.sigma, g.leak) == (0.3, 0.2)


def test_default_widths_follow_the_papers_pattern():
    assert [default_widths(n) for n in (3, 4, 5)] == [(8, 4, 2), (8, 4, 2, 1), (16, 8, 4, 2, 1)]


def test_weights_start_as_xavier_normal():
    """Variance 2/(fan in + fan out) for 256 x 128 channels and a 4x4 kernel, within 5 standard errors sqrt(2/n)."""
    w = ImageGenerator(8, ngf=32).layers[1].weight.detach().double()
    fans = (w.shape[0] + w.shape[1]) * 16
    assert abs(w.var().item() * fans / 2 - 1) < 5 * math.sqrt(2 / w.numel())


# --- pixels and people's arrays ---------------------------------------------------------------------------------------

COLOUR, GREY = ImageGenerator(4, size=16, ngf=2), ImageGenerator(4, size=8, channels=1, ngf=2)


def test_pixels_survive_the_round_trip():
    every = torch.arange(256, dtype=torch.uint8)
    x = to_x(every)
    assert torch.equal(to_pixels(x), every)
    assert (x[0].item(), x[-1].item()) == (-1, 1)
    torch.testing.assert_close(x.double(), every.double() / 127.5 - 1, rtol=0, atol=1.2e-7)
    assert to_pixels(torch.tensor([-3.0, -1.0, 0.002, 1.0, 9.0])).tolist() == [0, 0, 128, 255, 255]


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_as_input_rescales_uint8_and_turns_channels_first(layout, wrap):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), dtype=np.uint8)
    given = pixels if layout == "first" else pixels.transpose(0, 2, 3, 1)
    x = COLOUR.as_input(wrap(given))
    assert x.shape == (2, 3, 16, 16)
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x.numpy(), pixels / 127.5 - 1, atol=2e-7)
    one = COLOUR.as_input(wrap(given[0]))
    assert torch.equal(one, x[:1])


def test_as_input_gives_grey_images_their_channel():
    x = np.random.default_rng(0).uniform(-1, 1, (5, 8, 8)).astype(np.float32)
    for given in (x, x[:, None], x[..., None]):
        assert np.array_equal(GREY.as_input(given).numpy(), x[:, None])
    assert np.array_equal(GREY.as_input(x[0][..., None]).numpy(), x[:1, None])


@pytest.mark.parametrize(
    ("given", "taken"),
    [(torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_as_input_keeps_the_values_of_floats(given, taken):
    """float64 stays float64 where the generator is of that type."""
    x = normal(2, 3, 16, 16).clamp(-1, 1).to(given)
    g = ImageGenerator(4, size=16, ngf=2).to(taken)
    assert g.as_input(x).dtype == taken
    assert torch.equal(g.as_input(x), x.to(taken))


def test_storage_and_x_are_each_others_reverse():
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    x = COLOUR.from_storage(pixels)
    assert torch.equal(x, to_x(pixels)) and torch.equal(COLOUR.to_storage(x), pixels)
    assert torch.equal(COLOUR.from_storage(x), x)
    assert set(COLOUR.scalars(x, torch.zeros(2, 4))) == {"mse"} and COLOUR.flops(6) == 3 * COLOUR.flops(2) > 0


FOUR = np.arange(4).reshape(4, 1, 1, 1)
BAD = {
    "shape": (np.zeros((2, 3, 16, 15), np.uint8), r"shape \(2, 3, 16, 15\); .*\(n, 3, 16, 16\) or \(n, 16, 16, 3\)"),
    "flat": (np.zeros((2, 768), np.float32), r"shape \(2, 768\)"),
    "grey": (np.zeros((2, 16, 16), np.float32), r"shape \(2, 16, 16\)"),
    "integers": (np.zeros((2, 3, 16, 16), np.int64), r"type torch.int64; give uint8"),
    "pixels as floats": (np.full((2, 3, 16, 16), 255.0) * [[[[0]]], [[[1]]]], r"from 0 to 255; .* in \[-1, 1\]"),
    "too low": (np.full((1, 3, 16, 16), -1.25), r"run from -1.25 to -1.25"),
    "nan": (np.where(FOUR == 2, np.nan, np.zeros((4, 3, 16, 16))), "image 2 contains NaN or infinity"),
    "infinity": (np.where(FOUR == 3, -np.inf, np.zeros((4, 3, 16, 16))), "image 3 contains NaN or infinity"),
}


@pytest.mark.parametrize("case", BAD)
def test_as_input_says_what_is_wrong_with_which_value(case):
    x, message = BAD[case]
    with pytest.raises(DataError, match=message):
        COLOUR.as_input(x)


ARRAYS = {
    "mirrored": lambda x: x[..., ::-1],
    "big-endian": lambda x: x.astype(">f4"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_as_input_takes_every_kind_of_numpy_array(kind):
    given = ARRAYS[kind](np.random.default_rng(0).uniform(-1, 1, (2, 3, 16, 16)).astype(np.float32))
    assert np.array_equal(COLOUR.as_input(given).numpy(), given)
