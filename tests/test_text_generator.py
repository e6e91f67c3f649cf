"""The LSTM generator, against probabilities multiplied by hand."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from lebm.config import resolve
from lebm.config.build import build, make_optimizers
from lebm.core.errors import DataError
from lebm.core.words import END, PAD, SPECIAL, START, UNKNOWN, lengths
from lebm.generators import TextGenerator
from lebm.generators.encoders import TextNet
from lebm.generators.text import choose
from lebm.method import Batch, update

WORDS = [*SPECIAL, "a", "b", "c"]


def generator(**values):
    g = TextGenerator(3, vocabulary=9, length=6, embedding=4, hidden=5, **values).double()
    g.set_facts({"vocabulary": WORDS})
    return g


def method_of(*settings):
    sizes = ["vocabulary=130", "length=20", "embedding=4", "hidden=6"]
    chains = ["method.prior_chain={steps: 3}", "method.posterior_chain={steps: 3, step_size: 0.1}"]
    other = ["nz=3", "method.energy.width=8", *(f"generator.{s}" for s in sizes), *chains]
    method = build(resolve("text-demo/paper", [*other, *settings]))
    method.generator.set_facts({"vocabulary": [*SPECIAL, *(f"w{i}" for i in range(100))]})
    return method


def sentences(*rows):
    return torch.tensor([[*r, END, *[PAD] * (6 - len(r))] for r in rows])


def stream(seed):
    return torch.Generator().manual_seed(seed)


X = sentences([4, 5, 6], [5], [4, 4, 3, 6, 5], [6, 6])
Z = torch.randn(4, 3, generator=stream(3), dtype=torch.float64)


def by_hand(g, x, z):
    """log p(x|z) word by word, with PyTorch's LSTM cell."""
    cell = nn.LSTMCell(4 + 3, 5).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in g.lstm.state_dict().items()})
    out = []
    for row, one in zip(x.tolist(), z, strict=True):
        h, c = g.start(one).chunk(2)
        last, total = START, 0.0
        for word in row:
            h, c = cell(torch.cat([g.embed.weight[last], one]), (h, c))
            logits = g.out(h)[END : len(WORDS)]
            total = total + logits.log_softmax(0)[word - END]
            last = word
            if word == END:
                break
        out.append(total)
    return torch.stack(out)


# --- p(x|z) -----------------------------------------------------------------------------------------------------------


def test_log_prob_is_the_product_over_words():
    g = generator()
    torch.testing.assert_close(g.log_prob(X, Z), by_hand(g, X, Z))
    assert g.out.weight.abs().max() <= 0.1 and g.lstm.weight_hh_l0.std() > 0.03  # U(-0.1, 0.1)


def test_padding_left_in_place_changes_nothing(monkeypatch):
    """As on a GPU: all columns are computed, those of padding count 0."""
    g = generator()
    packed, score = g.log_prob(X, Z), g.score(X, Z)
    monkeypatch.setattr("lebm.core.words.packs", lambda x: False)
    torch.testing.assert_close(g.log_prob(X, Z), packed)
    torch.testing.assert_close(g.score(X, Z), score)


def test_padding_and_neighbours_change_nothing():
    g = generator()
    torch.testing.assert_close(g.log_prob(torch.nn.functional.pad(X, (0, 3)), Z), g.log_prob(X, Z))
    torch.testing.assert_close(g.log_prob(g.trim(X[1:2]), Z[1:2]), g.log_prob(X, Z)[1:2])


def test_what_can_be_said_has_probability_one():
    g, z = generator(), Z[:1]
    words = range(UNKNOWN, len(WORDS))
    ended = [sentences(r) for r in ([], *([a] for a in words), *([a, b] for a in words for b in words))]
    x = torch.cat(ended)
    total = g.log_prob(x, z.expand(len(x), -1)).exp().sum()
    following = [c for c in range(END, len(WORDS)) if c != END]
    longer = torch.tensor([[a, b, c, END] for a in words for b in words for c in following])
    prefix = (g.log_prob(longer, z.expand(len(longer), -1)) - last_word(g, longer, z)).exp().sum()
    torch.testing.assert_close(total + prefix, torch.ones((), dtype=torch.float64))


def last_word(g, x, z):
    """log p(</s> | the words before)."""
    z = z.expand(len(x), -1)
    h, _ = g._run(g.embed(torch.nn.functional.pad(x[:, :-1], (1, 0), value=START)), z, g._first(z))
    return g._logits(h[:, -1]).log_softmax(-1)[:, 0]


def test_the_score_is_the_gradient_also_in_pieces(monkeypatch):
    g = generator()
    z = Z.clone().requires_grad_()
    exact = torch.autograd.grad(by_hand(g, X, z).sum(), z)[0]
    torch.testing.assert_close(g.score(X, Z), exact)
    whole = g.log_prob(X, Z).detach()
    masks = generator(dropout=0.3, word_dropout=0.3).draw_masks(X, stream(1))
    masked, masked_score = g.log_prob(X, Z, *masks).detach(), g.score(X, Z, *masks)
    monkeypatch.setattr("lebm.generators.text.PIECE", 1)
    torch.testing.assert_close(g.score(X, Z), exact)
    torch.testing.assert_close(g.score(X, Z, *masks), masked_score)
    with torch.no_grad():
        torch.testing.assert_close(g.log_prob(X, Z), whole)
        torch.testing.assert_close(g.log_prob(X, Z, *masks), masked)


def test_dropout_is_a_function_of_masks_that_are_drawn_once():
    g, rng = generator(dropout=0.5, word_dropout=0.5), stream(1)
    plain = g.log_prob(X, Z)
    masks = g.draw_masks(X, rng)
    first, again = g.log_prob(X, Z, *masks), g.log_prob(X, Z, *masks)
    z = Z.clone().requires_grad_()
    torch.testing.assert_close(g.score(X, Z, *masks), torch.autograd.grad(g.log_prob(X, z, *masks).sum(), z)[0])
    other = g.log_prob(X, Z, *g.draw_masks(X, rng))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.allclose(first, plain) and not torch.allclose(first, other)
    torch.testing.assert_close(g.log_prob(X, Z), plain, rtol=0, atol=0)
    assert generator().draw_masks(X, rng) == ()


def test_word_dropout_hides_words_from_the_lstm_and_not_from_the_likelihood():
    g, x = generator(word_dropout=0.999999), X
    hidden = g.log_prob(x, Z, *g.draw_masks(x, stream(1)))
    z = Z[:1]
    read = torch.tensor([[START, UNKNOWN, UNKNOWN, UNKNOWN]])
    h, _ = g._run(g.embed(read), z, g._first(z))
    by_word = g._logits(h[0]).log_softmax(-1).gather(1, torch.tensor([[4], [5], [6], [END]]) - END)
    torch.testing.assert_close(hidden[0], by_word.sum())


# --- sentences --------------------------------------------------------------------------------------------------------


def test_words_are_chosen_with_their_probability():
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    u = (torch.arange(1000) + 0.5) / 1000
    count = lambda **how: torch.bincount(choose(logits.expand(1000, -1), u, **how), minlength=3).tolist()  # noqa: E731
    assert count() == [500, 200, 300]
    assert count(top_p=0.6) == [625, 0, 375]
    assert count(top_p=0.1) == [1000, 0, 0]
    square = [0.25, 0.04, 0.09]
    assert count(temperature=0.5) == [round(1000 * s / sum(square)) for s in square]


def test_sampled_sentences_follow_the_model():
    """The frequency of a whole sentence among many draws at one z is its probability, within five standard errors."""
    g, n = generator(), 20_000
    x = g.sample(Z[:1].expand(n, -1), stream(5))
    assert set(lengths(x).tolist()) <= set(range(1, 8)) and bool(((x == END).sum(1) == 1).all())
    for sentence in (sentences([]), sentences([4]), sentences([6, 5])):
        p = float(g.log_prob(sentence, Z[:1]).exp().detach())
        frequency = float((x == sentence).all(1).double().mean())
        assert abs(frequency - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_a_sampled_sentence_does_not_depend_on_how_many_there_are():
    g = generator()
    assert torch.equal(g.sample(Z, stream(5), rows=9)[:2], g.sample(Z[:2], stream(5), rows=9))
    assert torch.equal(g.sample(Z, stream(5), beam=1), g.decode(Z))
    assert torch.equal(g.sample(Z, stream(5), top_p=1e-9), g.decode(Z))


def test_greedy_takes_the_likeliest_words_and_a_beam_gives_no_worse():
    g = generator()
    with torch.no_grad():
        for p in g.parameters():
            p.mul_(20)
    greedy, beam = g.decode(Z), g.decode(Z, beam=8)
    assert greedy.shape == beam.shape == (4, 7)
    assert bool((g.log_prob(beam, Z) >= g.log_prob(greedy, Z) - 1e-9).all())
    h, _ = g._run(g.embed(torch.full((4, 1), START)), Z, g._first(Z))
    assert torch.equal(greedy[:, 0], END + g._logits(h[:, 0]).argmax(-1))
    for bad, word in (({"temperature": 0.0}, "temperature"), ({"top_p": 0.0}, "top_p"), ({"beam": 101}, "beam")):
        with pytest.raises(DataError, match=word):
            g.decode(Z, **bad)


def test_input_is_sentences_or_their_numbers():
    g = generator()
    assert g.as_input(["a b", "c what"]).tolist() == [[4, 5, END], [6, UNKNOWN, END]]
    assert torch.equal(g.as_input(X.numpy()), X)
    numbers = [[4, 5, 99]], [[4, 5, 6]], [[4, END, END]], [[4, PAD, END]]
    for x in (np.zeros((2, 3)), *map(np.array, numbers), ["a", " "], [3], [], "a", 3):
        with pytest.raises(DataError):
            g.as_input(x)
    bare = TextGenerator(3, vocabulary=9)
    with pytest.raises(DataError, match="no vocabulary yet"):
        bare.as_input(["a"])
    with pytest.raises(DataError, match="another vocabulary"):
        g.set_facts({"vocabulary": [*SPECIAL, "x"]})
    assert g.facts() == {"vocabulary": WORDS} and bare.facts() == {}
    assert g.to_text(X) == ["a b c", "b", "a a <unk> c b", "c c"] and (g.size, bare.size) == (7, 9)


# --- learning ---------------------------------------------------------------------------------------------------------


def rows(n=8, seed=5):
    x = torch.randint(UNKNOWN, 104, (n, 7), generator=stream(seed))
    x[:, -1] = END
    return x


def learn(method, x, seed=2):
    optimizers = make_optimizers(method, method.config)
    update(method, Batch(x, torch.arange(len(x))), optimizers, stream(seed))
    return method


def test_an_update_moves_every_network_and_dropout_repeats_with_its_stream():
    settings = ("generator.dropout=0.3", "generator.word_dropout=0.2")
    method = method_of(*settings)
    twin, fresh = copy.deepcopy(method), method_of(*settings)
    for m in (method, twin):
        learn(m, rows())
    assert all(torch.equal(a, b) for a, b in zip(method.parameters(), twin.parameters(), strict=True))
    pairs = zip(fresh.named_parameters(), method.parameters(), strict=True)
    assert [n for (n, a), b in pairs if torch.equal(a, b)] == ["prior.energy.layers.2.bias"]  # f's constant


def test_the_chain_and_the_update_share_one_density():
    """The masks of an iteration are drawn once, before the noise; the log shows the likelihood that they leave."""
    method, x = method_of("generator.dropout=0.3", "generator.word_dropout=0.2"), rows()
    before = copy.deepcopy(method)
    learn(method, x)
    rng = stream(2)
    masks = before.generator.draw_masks(x, rng)
    e_neg = before.prior.base.noise(len(x), rng)
    assert torch.equal(e_neg, method.last.neg.e)
    log_px = before.generator.log_prob(x, method.last.pos.z, *masks).mean()
    torch.testing.assert_close(method.last.log_px, log_px.detach())


def test_trading_z_costs_nothing_where_the_generator_ignores_it():
    method, x = method_of(), rows()
    with torch.no_grad():
        method.generator.start.weight.zero_()
        method.generator.lstm.weight_ih_l0[:, 4:] = 0
    update(method, Batch(x, torch.arange(len(x))), {}, stream(1))
    assert float(method.scalars()["z_share"]) == pytest.approx(0, abs=1e-6)


def test_the_log_of_a_text_shows_nats_a_word_and_what_z_gains():
    g = generator()
    with torch.no_grad():
        values, log_px, other = g.scalars(X, Z), g.log_prob(X, Z), g.log_prob(X, Z.roll(1, 0))
    assert float(values["nll_word"]) == pytest.approx(-float(log_px.sum()) / 15)  # 4 + 2 + 6 + 3 words with </s>
    gain = float(log_px.mean() - other.mean())
    assert float(values["z_gain"]) == pytest.approx(gain)
    assert float(values["z_share"]) == pytest.approx(gain / abs(float(other.mean())))
    assert g.scalars(X[:1], Z[:1]) == {}  # a single sentence has no neighbour


# --- an encoder -------------------------------------------------------------------------------------------------------


def test_the_encoder_reads_words_from_both_ends_and_no_padding():
    net = TextNet(9, 4, 3, 5).double()
    with torch.no_grad():
        net.head.weight.normal_(generator=stream(1))
    whole = net(X)
    assert whole.shape == (4, 6)
    torch.testing.assert_close(net(torch.nn.functional.pad(X, (0, 4))), whole)
    torch.testing.assert_close(net(X[1:2, :2]), whole[1:2])
    for place in range(3):  # every word counts
        x = X[:1].clone()
        x[0, place] = 7
        assert not torch.allclose(net(x), whole[:1])
    words, turned = net.embed(X[:1, :4]), net.embed(X[:1, :4].flip(1))
    ends = [net.forwards(words)[0][0, -1], net.backwards(turned)[0][0, -1]]
    torch.testing.assert_close(net.head(torch.cat(ends)), whole[0])


def test_a_text_generator_makes_its_encoder():
    net = TextGenerator(3, vocabulary=9, embedding=4).make_encoder(5, width=6, depth=2)
    assert isinstance(net, TextNet) and net(X).shape == (4, 10) and net.forwards.hidden_size == 6
