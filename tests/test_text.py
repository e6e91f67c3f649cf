"""Text: the vocabulary, the files, the batches and the LSTM generator, against words counted and probabilities multiplied by hand."""

import copy
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lebm
from lebm import health
from lebm.config import Chain, Chains, resolve
from lebm.config import TextGenerator as Section
from lebm.data import DATASETS, SentenceBatches, load
from lebm.data.batches import width
from lebm.errors import CheckpointError, ConfigError, DataError
from lebm.generators.text import TextGenerator, choose
from lebm.learn import held, learn_step, make_optimizer
from lebm.methods.encoder import TextNet
from lebm.model import LatentEBM
from lebm.words import END, OWN, PAD, START, UNKNOWN, Vocabulary, checked, from_sentences, lengths

WORDS = [*OWN, "a", "b", "c"]
TINY = [
    *(
        "nz=3",
        "prior.width=8",
        "generator.kind=text",
        "generator.vocabulary=130",
        "generator.length=20",
        "generator.embedding=4",
        "generator.hidden=6",
    ),
    *("data.name=text-demo", "chains.prior.steps=3", "chains.posterior.steps=3", "training.batch=8", "training.steps=4", "training.log_every=2"),
]


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def generator(**values):
    g = TextGenerator(3, Section(vocabulary=9, length=6, embedding=4, hidden=5, **values)).double()
    g.take({"vocabulary": WORDS})
    return g


def sentences(*rows):
    return torch.tensor([[*r, END, *[PAD] * (6 - len(r))] for r in rows])


X = sentences([4, 5, 6], [5], [4, 4, 3, 6, 5], [6, 6])
Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


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


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_vocabulary_holds_the_frequent_words_of_a_text():
    v = from_sentences(["b a b", "a b c c", "rare"], 7)
    assert v.words == [*OWN, "b", "a", "c"]  # rare occurs once: it teaches <unk>
    assert v.rows(["a rare b", "c"], 5).tolist() == [[5, UNKNOWN, 4, END], [6, END, PAD, PAD]]
    assert v.sentences(v.rows(["a rare b", "c"], 5)) == ["a <unk> b", "c"]
    assert v.rows(["a b c a b c"], 2).tolist() == [[5, 4, END]]
    assert from_sentences(["b a <unk>"], 100).words == [*OWN, "a", "b"]  # this text has its own <unk>
    assert from_sentences(["b b a a c c"], 5).words == [*OWN, "a"]  # ties by the alphabet
    assert v.rows(["<s> </s> <pad> a"], 9).tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, 5, END]]
    assert lengths(X).tolist() == [4, 2, 6, 3]


def test_what_no_terminal_should_see_is_not_shown():
    assert Vocabulary([*OWN, "\x1b[31mred"]).sentence([4, END]) == "?[31mred"


@pytest.mark.parametrize(
    "words", [None, [], list(OWN[:3]), ["a", *OWN], [*OWN, "a", "a"], [*OWN, "a b"], [*OWN, 3], [*OWN, "x" * 101], [*OWN, *"abcdef"]]
)
def test_a_damaged_vocabulary_is_refused(words):
    with pytest.raises(DataError, match="vocabulary"):
        checked(words, 9)


# --- p(x|z) ------------------------------------------------------------------------------------------------------------


def test_log_prob_is_the_product_over_words():
    g = generator()
    torch.testing.assert_close(g.log_prob(X, Z), by_hand(g, X, Z))
    assert g.out.weight.abs().max() <= 0.1 and g.lstm.weight_hh_l0.std() > 0.03  # U(-0.1, 0.1)


def test_padding_left_in_place_changes_nothing(monkeypatch):
    """As on a GPU: all columns are computed, those of padding count 0."""
    g = generator()
    packed, score = g.log_prob(X, Z), g.score(X, Z)
    monkeypatch.setattr("lebm.words.packs", lambda x: False)
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
    longer = torch.tensor([[a, b, c, END] for a in words for b in words for c in range(END, len(WORDS)) if c != END])
    prefix = (g.log_prob(longer, z.expand(len(longer), -1)) - last_word(g, longer, z)).exp().sum()
    torch.testing.assert_close(total + prefix, torch.ones((), dtype=torch.float64))


def last_word(g, x, z):
    """log p(</s> | the words before)."""
    h, _ = g._run(g.embed(torch.nn.functional.pad(x[:, :-1], (1, 0), value=START)), z.expand(len(x), -1), g._first(z.expand(len(x), -1)))
    return g._logits(h[:, -1]).log_softmax(-1)[:, 0]


def test_the_score_is_the_gradient_also_in_pieces(monkeypatch):
    g = generator()
    z = Z.clone().requires_grad_()
    exact = torch.autograd.grad(by_hand(g, X, z).sum(), z)[0]
    torch.testing.assert_close(g.score(X, Z), exact)
    whole = g.log_prob(X, Z).detach()
    monkeypatch.setattr("lebm.generators.text.PIECE", 1)
    torch.testing.assert_close(g.score(X, Z), exact)
    with torch.no_grad():
        torch.testing.assert_close(g.log_prob(X, Z), whole)


def test_dropout_is_drawn_once_and_never_outside_learning():
    g, rng = generator(dropout=0.5, word_dropout=0.5), torch.Generator().manual_seed(1)
    plain = g.log_prob(X, Z)
    with held(g, X, rng):
        first, again = g.log_prob(X, Z), g.log_prob(X, Z)
        z = Z.clone().requires_grad_()
        torch.testing.assert_close(g.score(X, Z), torch.autograd.grad(g.log_prob(X, z).sum(), z)[0])
    with held(g, X, rng):
        other = g.log_prob(X, Z)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.allclose(first, plain) and not torch.allclose(first, other)
    torch.testing.assert_close(g.log_prob(X, Z), plain, rtol=0, atol=0)


def test_word_dropout_hides_words_from_the_lstm_and_not_from_the_likelihood():
    g, x = generator(word_dropout=0.999999), X
    with held(g, x, torch.Generator().manual_seed(1)):
        hidden = g.log_prob(x, Z)
    z = Z[:1]
    read = torch.tensor([[START, UNKNOWN, UNKNOWN, UNKNOWN]])
    h, _ = g._run(g.embed(read), z, g._first(z))
    by_word = g._logits(h[0]).log_softmax(-1).gather(1, torch.tensor([[4], [5], [6], [END]]) - END)
    torch.testing.assert_close(hidden[0], by_word.sum())


# --- sentences ---------------------------------------------------------------------------------------------------------


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
    z = Z[:1].expand(n, -1)
    x = g.decode(z, torch.rand(7, n, generator=torch.Generator().manual_seed(5)))
    assert set(lengths(x).tolist()) <= set(range(1, 8)) and bool(((x == END).sum(1) == 1).all())
    for sentence in (sentences([]), sentences([4]), sentences([6, 5])):
        p = float(g.log_prob(sentence, Z[:1]).exp().detach())
        seen = float((x == sentence).all(1).double().mean())
        assert abs(seen - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_greedy_takes_the_likeliest_words_and_a_beam_finds_no_worse():
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
    wrong = [np.zeros((2, 3)), np.array([[4, 5, 99]]), np.array([[4, 5, 6]]), np.array([[4, END, END]]), np.array([[4, PAD, END]]), ["a", " "], [3]]
    for x in wrong:
        with pytest.raises(DataError):
            g.as_input(x)
    bare = TextGenerator(3, Section(vocabulary=9))
    with pytest.raises(DataError, match="no vocabulary yet"):
        bare.as_input(["a"])
    with pytest.raises(DataError, match="another vocabulary"):
        g.take({"vocabulary": [*OWN, "x"]})


# --- data ---------------------------------------------------------------------------------------------------------------


def text_config(path, *settings):
    return resolve("digits", ["generator.kind=text", "data.name=text", f"data.path={path}", *settings])


def test_a_text_file_is_split_and_counted(tmp_path):
    lines = [f"w{i % 5} w{i % 7} x" for i in range(40)]
    file = tmp_path / "my.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\n".join(["", *lines, "  ", "x " * 30]).encode() + b"\r\n")
    s = load(text_config(file, "generator.length=10", "data.test_fraction=0.25"))
    assert (len(s.train), len(s.validation), len(s.test)) == (21, 10, 10)
    everything = sorted(Vocabulary(s.facts["vocabulary"]).sentence(r) for part in (s.train, s.validation, s.test) for r in part.tolist())
    assert everything == sorted([*lines, " ".join(["x"] * 10)])
    assert s.notes[0] == "2 empty lines were left out" and "more than generator.length = 10 words and were cut" in " ".join(s.notes)
    again = load(text_config(file, "generator.length=10", "data.test_fraction=0.25"))
    assert torch.equal(s.train, again.train)


def test_unknown_words_are_counted(tmp_path):
    for name, text in (("train", "a b\n" * 3 + "rare\n"), ("valid", "a b\n"), ("test", "a new\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    s = load(text_config(tmp_path))
    assert s.facts["vocabulary"] == [*OWN, "a", "b"]
    assert any("50.00% of the test words" in n for n in s.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"good line\nbad \xff line\n", ["line 2", "not UTF-8", "0xff", "save the file as UTF-8"]),
        (b"\n\n \n", ["0 sentences"]),
        (b"one\ntwo\n", ["2 sentences", "at least three"]),
        (None, ["does not exist"]),
    ],
)
def test_bad_text_is_refused_in_a_sentence(tmp_path, content, words):
    file = tmp_path / "my.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as e:
        load(text_config(file))
    assert all(w in str(e.value) for w in words)


def test_text_needs_a_path_and_a_text_generator(tmp_path):
    with pytest.raises(DataError, match="data.path is not set"):
        load(resolve("digits", ["generator.kind=text", "data.name=text"]))
    with pytest.raises(DataError, match=r"ptb cannot be read .*ptb.train.txt"):
        load(resolve("digits", ["generator.kind=text", "data.name=ptb"]), tmp_path)
    with pytest.raises(DataError, match=r"generator.kind is image; use --set generator.kind=text"):
        load(resolve("digits", ["data.name=text-demo"]))
    with pytest.raises(DataError, match="has no train.txt"):
        load(text_config(tmp_path))


def test_the_official_layout(tmp_path):
    (tmp_path / "yahoo").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "yahoo" / f"yahoo.{part}.txt").write_text("_UNK a\na _UNK b\n")
    s = load(resolve("digits", ["generator.kind=text", "data.name=yahoo"]), tmp_path)
    assert s.facts["vocabulary"] == [*OWN, "a", "b"] and s.train.tolist() == [[3, 4, 2, 0], [4, 3, 5, 2]] and s.validation.shape == (2, 4)


def test_the_demo_text_is_always_the_same():
    a, b = load(tiny()), load(tiny())
    assert (len(a.train), len(a.validation), len(a.test)) == (2400, 300, 300) and not a.notes
    assert torch.equal(a.train, b.train) and len(a.facts["vocabulary"]) < 130


def test_batches_hold_sentences_of_like_length_and_every_row_once():
    rows = load(tiny()).train
    b = SentenceBatches(rows, 16, 1)
    seen = torch.cat([b.indices(i) for i in range(b.per_epoch)])
    assert sorted(seen.tolist()) == list(range(2400))
    spread = [lengths(b(i)).double().std() for i in range(b.per_epoch)]
    assert float(torch.stack(spread).mean()) < 0.3 * float(lengths(rows).double().std())
    for i in (7, 3, 160):  # a function of the step alone; nothing but padding is cut
        x = b(i)
        assert torch.equal(x, SentenceBatches(rows, 16, 1)(i)) and torch.equal(lengths(x), lengths(rows[b.indices(i)]))
    assert b(0).tolist() != b(b.per_epoch).tolist()
    assert [width(n) for n in (1, 8, 9, 64, 65, 200)] == [8, 8, 16, 64, 80, 208]


# --- learning -----------------------------------------------------------------------------------------------------------


def test_a_learning_step_moves_every_network_and_dropout_repeats_with_its_stream():
    config = tiny("generator.dropout=0.3", "generator.word_dropout=0.2")
    rows = load(config)
    model = LatentEBM(config)
    model.generator.take(rows.facts)
    twin = copy.deepcopy(model)
    for m in (model, twin):
        learn_step(m, rows.train[:8], make_optimizer(m, config.learning), config.chains, config.learning, torch.Generator().manual_seed(2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    fresh = LatentEBM(config)
    unmoved = [n for (n, a), b in zip(fresh.named_parameters(), model.parameters(), strict=True) if torch.equal(a, b)]
    assert unmoved == ["prior.layers.2.bias"]  # a constant in f has no gradient


def test_a_run_is_trained_resumed_and_loaded_with_its_words(tmp_path):
    lebm.train(tiny(), run=tmp_path / "whole", device="cpu")
    lebm.train(tiny("training.steps=2"), run=tmp_path / "parts", device="cpu")
    lebm.train(tiny(), run=tmp_path / "parts", resume=True, device="cpu")
    whole, parts = lebm.load(tmp_path / "whole"), lebm.load(tmp_path / "parts")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert whole.text().to_text(whole.sample_words(5)) == parts.text().to_text(parts.sample_words(7))[:5]
    x = ["the captain counts the nets .", "a letter"]
    assert whole.infer(x).shape == (2, 3) and whole.anomaly_score(x).isfinite().all()
    torch.testing.assert_close(whole.anomaly_score(x)[1:], whole.anomaly_score(x[1:]))
    assert whole.reconstruct(x).shape == (2, 21)
    whole.save(tmp_path / "other.safetensors")
    assert lebm.load(tmp_path / "other.safetensors").text().words().words == whole.text().words().words
    log = (tmp_path / "whole" / "log.jsonl").read_text()
    assert all(f'"{key}"' in log for key in ("nll_word", "z_gain", "z_share", "active_units", "z_information"))


def test_a_file_without_its_words_is_damaged(tmp_path):
    model = LatentEBM(tiny())
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="damaged: its vocabulary"):
        lebm.load(tmp_path / "m.safetensors")


# --- collapse -----------------------------------------------------------------------------------------------------------


def test_active_units_and_information_of_a_known_posterior():
    g, n = torch.Generator().manual_seed(4), 4000
    mean = torch.randn(n, 3, generator=g, dtype=torch.float64) * torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    a, b = (mean + torch.randn(n, 3, generator=g, dtype=torch.float64) * 0.5 for _ in range(2))
    found = health.shared_variance(a, b)
    assert found["active_units"] == 2
    rho = torch.tensor([0.25 / 0.5, 1 / 1.25])
    assert found["z_information"] == pytest.approx(float(-0.5 * torch.log(1 - rho).sum()), abs=0.1)


def test_collapse_is_said_in_words():
    row, chains = {"step": 1000, "z_share": 0.001, "z_gain": 0.03, "active_units": 3.0}, Chains()
    assert "the posterior has collapsed" in next(health.collapsed(row, chains))
    assert "no unit of z is active" in next(health.collapsed(row | {"z_share": 0.2, "active_units": 0.0}, chains))
    assert not list(health.collapsed(row | {"z_share": 0.2}, chains)) and not list(health.collapsed(row | {"step": 10}, chains))
    for posterior, advice in ((chains.posterior, "chains.posterior.steps"), (Chain(0, 0.1), "learning.encoder_rate")):
        assert f"raise generator.word_dropout or {advice}, or" in next(health.collapsed(row, Chains(posterior=posterior)))


def test_trading_z_costs_nothing_where_the_generator_ignores_it():
    config = tiny()
    model, x = LatentEBM(config), load(config).train[:8]
    with torch.no_grad():
        model.text().start.weight.zero_()
        model.text().lstm.weight_ih_l0[:, 4:] = 0
    step = learn_step(
        model, x, make_optimizer(model, config.learning.__class__(generator_rate=0.0)), config.chains, config.learning, torch.Generator()
    )
    assert health.explained(model, step, x)["z_share"] == pytest.approx(0, abs=1e-6)


def test_other_kinds_are_asked_in_a_sentence():
    with pytest.raises(DataError, match="only text models have words"):
        LatentEBM(resolve("digits")).sample_words(2)
    with pytest.raises(ConfigError, match="first_steps"):
        resolve("digits", ["chains.prior.first_steps=[0.1, 0]"])
    with pytest.raises(ConfigError, match="noise is 2.0"):
        resolve("digits", ["chains.prior.noise=2"])


# --- an encoder -----------------------------------------------------------------------------------------------------------


def test_the_encoder_reads_words_from_both_ends_and_no_padding():
    net = TextNet(tiny("generator.vocabulary=9", "encoder.width=5")).double()
    with torch.no_grad():
        net.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    whole = net(X)
    assert whole.shape == (4, 6)
    torch.testing.assert_close(net(torch.nn.functional.pad(X, (0, 4))), whole)
    torch.testing.assert_close(net(X[1:2, :2]), whole[1:2])
    for place in range(3):  # every word counts
        x = X[:1].clone()
        x[0, place] = 7
        assert not torch.allclose(net(x), whole[:1])
    there, back = net.there(net.embed(X[:1, :4]))[0][0, -1], net.back(net.embed(X[:1, :4].flip(1)))[0][0, -1]
    torch.testing.assert_close(net.head(torch.cat([there, back])), whole[0])


@pytest.mark.parametrize("way", ["warm", "amortised"])
def test_a_text_run_with_an_encoder(way, tmp_path):
    model = lebm.train(
        tiny(f"draw.posterior={way}", "encoder.width=5", "draw.prior=persistent", "draw.chains=16"), run=tmp_path / "run", device="cpu"
    )
    assert model.infer(["the captain", "a letter"]).shape == (2, 3)
    assert model.infer(["the captain"], by="langevin", steps=2).shape == (1, 3)
    again = lebm.load(tmp_path / "run")
    torch.testing.assert_close(again.infer(["the captain"]), model.infer(["the captain"]))


def test_sentences_may_be_handed_in(tmp_path):
    lines = ["a b c", "a b", "c b a", "b"] * 5
    model = lebm.train(tiny(), lines, run=tmp_path / "run", device="cpu")
    assert model.text().words().words == [*OWN, "b", "a", "c"] and len(model.text().to_text(model.sample_words(3))) == 3
    with pytest.raises(DataError, match="the data is a list"):
        lebm.train(tiny(), ["a", 3], device="cpu")


def test_a_run_does_not_go_on_with_other_words(tmp_path):
    file = tmp_path / "my.txt"
    file.write_text("a b c\na b\n" * 20)
    config = tiny("data.name=text", f"data.path={file}", "training.steps=2")
    lebm.train(config, run=tmp_path / "run", device="cpu")
    file.write_text("a b d\na b\n" * 20)
    with pytest.raises(CheckpointError, match="the data has changed since"):
        lebm.train(config.with_values(**{"training.steps": 3}), run=tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(DataError, match="another vocabulary"):
        lebm.evaluate.evaluate(tmp_path / "run", ("nll",), device="cpu")


def test_an_exported_model_still_speaks(tmp_path):
    lebm.train(tiny("training.steps=1"), run=tmp_path / "run", device="cpu")
    lebm.model.export(tmp_path / "run", tmp_path / "m.safetensors")
    assert all(
        isinstance(s, str) for s in lebm.load(tmp_path / "m.safetensors").text().to_text(lebm.load(tmp_path / "m.safetensors").sample_words(2))
    )


# --- the real ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "train", "valid", "test", "words", "longest"),
    [("ptb", 42068, 3370, 3761, 10002, 83), ("snli", 37322, 5000, 5000, 6687, 60), ("yahoo", 9000, 1000, 10000, 16494, 201)],
)
def test_the_real_texts(name, train, valid, test, words, longest):
    root = os.environ.get("LEBM_DATA")
    if not root or not DATASETS[name].find(Path(root)):
        pytest.skip(f"needs LEBM_DATA to be a folder that holds {name}")
    s = load(resolve(name), root)
    assert (len(s.train), len(s.validation), len(s.test)) == (train, valid, test)
    assert len(s.facts["vocabulary"]) == words and s.train.shape[1] == longest
    assert int((s.train == UNKNOWN).sum()) > 1000  # the model meets <unk> in learning
