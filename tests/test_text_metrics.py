"""Perplexities against models whose probabilities are known, and the evaluation of a text run."""

import json
import math
from functools import partial

import pytest
import torch

from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError, DataError
from lebm.core.words import END, PAD, SPECIAL, Vocabulary, lengths
from lebm.data import Splits, load
from lebm.measure import likelihood, perplexity
from lebm.measure.evaluate import evaluate
from lebm.measure.language_model import LanguageModel, Recipe, fit
from lebm.measure.language_model import perplexity as perplexity_of
from lebm.measure.metric import Evaluation
from lebm.show import report
from lebm.training.train import train

TINY = Recipe(embedding=8, hidden=8, dropout=0.1, rate=0.05, epochs=2, unvalidated=1, batch=100)
SMALL = [
    *("nz=3", "method.energy.width=8", "generator.embedding=4", "generator.hidden=6", "method.prior_chain.steps=3"),
    *("method.posterior_chain.steps=3", "training.updates=2", "training.batch=8", "data.limit=40"),
]


def rows(*sentences):
    widest = max(map(len, sentences)) + 1
    return torch.tensor([[*s, END, *[PAD] * (widest - len(s) - 1)] for s in sentences])


def test_a_uniform_model_hesitates_between_all_words():
    x = rows([4, 5, 6], [4])
    words = lengths(x)
    assert perplexity_of(-words * math.log(7), words) == pytest.approx(7)
    model = LanguageModel(11, TINY)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert model.perplexity(x) == pytest.approx(9)  # all but <pad> and <s>
    with pytest.raises(ValueError, match="at least one word"):
        perplexity_of(torch.zeros(0), torch.zeros(0))


def test_a_language_models_perplexity_is_that_of_its_words_whatever_the_order_and_padding(monkeypatch):
    model = LanguageModel(9, TINY)
    model.set_weights(torch.Generator().manual_seed(1))
    x = rows([4, 5, 6], [7], [8, 8, 3, 4, 5], [6, 6])
    total = 0.0
    for row, n in zip(x, lengths(x), strict=True):
        read = torch.tensor([[1, *row[: n - 1].tolist()]])
        logits = model.out(model.lstm(model.embed(read))[0])[0, :, END:]
        total += float(logits.log_softmax(-1).gather(1, row[:n, None] - END).sum().detach())
    exact = math.exp(-total / int(lengths(x).sum()))
    assert model.perplexity(x) == pytest.approx(exact, rel=1e-5)
    monkeypatch.setattr("lebm.core.words.packs", lambda x: False)  # as on a GPU
    assert model.perplexity(x) == pytest.approx(exact, rel=1e-5)
    monkeypatch.setattr("lebm.measure.language_model.SCORED", 1)
    assert model.perplexity(x[[2, 0, 3, 1]]) == pytest.approx(exact, rel=1e-5)


def test_a_language_model_learns_what_there_is_to_learn():
    """Sentences `a^n b^n`, n = 1 or 2: one bit each, over 3 or 5 words, so the perplexity cannot fall below 2^(1/4)."""
    one, two = [4, 5], [4, 4, 5, 5]
    x = rows(*[one, two] * 150)
    recipe = partial(Recipe, embedding=8, hidden=16, dropout=0.0, rate=0.02, batch=20)
    model, history = fit(x, x[:40], 6, recipe(epochs=8), 3, "cpu")
    best = 2 ** (1 / 4)
    assert best - 1e-3 < model.perplexity(x) < 1.1 * best
    assert min(history) == pytest.approx(model.perplexity(x[:40]), rel=1e-6)
    _, same = fit(x, x[:40], 6, recipe(epochs=2), 3, "cpu")
    assert same == history[:2]


def test_the_rate_falls_and_learning_ends_where_nothing_improves():
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randint(4, 9, (30, 4), generator=g), torch.full((30, 1), END)], 1)
    valid = x[:5] * 0 + torch.tensor([8, 8, 8, 8, END])
    _, history = fit(x, valid, 9, Recipe(8, 8, 0.0, 0.05, 0.1, 1e-3, 40, 2, 10), 1, "cpu")
    assert 3 <= len(history) < 40


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(perplexity, "RECIPE", TINY)
    monkeypatch.setenv("LEBM_CACHE", str(tmp_path / "cache"))
    train(resolve("text-demo", SMALL), run=tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_a_run_is_measured_and_the_judge_of_real_text_is_cached(run, tmp_path, monkeypatch, rough_log_z):
    few = partial(likelihood.log_likelihood, particles=3, temperatures=2, steps=4)
    monkeypatch.setattr(likelihood, "log_likelihood", few)
    summary = evaluate(run, ("fppl", "fppl_gaussian", "rppl", "nll"), samples=50, limit=5, device="cpu")
    m, p = summary["metrics"], summary["protocol"]
    names = {
        "fppl",
        "copied",
        "fppl_gaussian",
        "real_ppl",
        "rppl",
        "nll_reconstruction",
        "nll_estimate",
        "nll_estimate_error",
        "active_units",
        "z_information",
    }
    assert set(m) == names and all(math.isfinite(v) for v in m.values())
    assert 5 < m["real_ppl"] < m["fppl"]  # the run has hardly learned: its sentences surprise the judge more
    assert p["fppl"]["sentences"]["generated"] == 50 and p["fppl"]["language_model"]["validation_ppl"] > 1
    assert p["nll"]["sampler"]["options"]["noise"] == 0.1 and p["nll"]["proposal"]["options"]["noise"] == 1.0
    assert p["rppl"]["real"] == "all 300 test sentences"
    assert p["fppl_gaussian"]["sampler"]["steps"] == 0 and m["fppl"] != m["fppl_gaussian"]
    assert p["fppl"]["sampler"]["steps"] == 3 and p["fppl"]["samples"] == 50
    assert summary["data"]["validation"] == 300
    said = json.loads((run / "sentences.json").read_text())
    assert len(said["samples"]) == len(said["samples_gaussian"]) == len(said["reconstructions"]) == 20
    page = (run / "report.html").read_text()
    assert "FPPL" in page and "3 steps of 0.4 from N(0, I)" in page
    record = json.loads((run / "figures" / "provenance.json").read_text())
    assert record["samples"]["sampler"] == p["fppl"]["sampler"] and record["samples"]["samples"] == 20
    assert record["reconstructions"]["sampler"] == p["nll"]["sampler"]

    (cached,) = (tmp_path / "cache").glob("language-model-*.safetensors")
    refit = monkeypatch.setattr
    refit(perplexity, "fit", lambda *a, **k: pytest.fail("the judge was there"))
    again = evaluate(run, ("real_ppl",), device="cpu")["metrics"]["real_ppl"]
    assert again == pytest.approx(m["real_ppl"], rel=1e-6)
    cached.write_bytes(cached.read_bytes()[:100])
    refit(perplexity, "fit", fit)
    again = evaluate(run, ("real_ppl",), device="cpu")["metrics"]["real_ppl"]
    assert again == pytest.approx(m["real_ppl"], rel=1e-3)


def test_choosing_looks_at_validation_sentences(run):
    summary = evaluate(run, ("real_ppl",), split="validation", device="cpu")
    assert summary["protocol"]["real_ppl"]["sentences"] == "all 300 validation sentences"
    assert (run / "validation.json").is_file()


def test_metrics_of_another_kind_and_another_text_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=r"fid .* text; there are fppl, rppl, nll, real_ppl, fppl_gaussian"):
        evaluate(run, ("fid",), device="cpu")
    train(resolve("digits", ["training.updates=0", "generator.ngf=1", "nz=2"]), run=tmp_path / "digits", device="cpu")
    with pytest.raises(ConfigError, match="fppl .* image"):
        evaluate(tmp_path / "digits", ("fppl",), device="cpu")
    with pytest.raises(ConfigError, match="nonsense.*there are frechet, .*fppl"):
        evaluate(run, ("nonsense",), device="cpu")


def test_the_reconstruction_is_written_though_the_estimate_takes_long(run, monkeypatch, rough_log_z):
    seen = []

    def stopped(model, rows, *a, **k):
        seen.append(len(rows))
        raise KeyboardInterrupt

    monkeypatch.setattr(likelihood, "log_likelihood", stopped)
    monkeypatch.setattr(likelihood, "WORDS", 40)
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, ("nll",), device="cpu")
    written = json.loads((run / "metrics.json").read_text())["metrics"]
    assert math.isfinite(written["nll_reconstruction"]) and "nll_estimate" not in written
    test = load(resolve(run)).test
    # As many sentences as these words make.
    assert lengths(test[: seen[0]]).sum() <= 40 < lengths(test[: seen[0] + 1]).sum()


def test_where_z_says_nothing_both_likelihoods_agree(rough_log_z):
    """p(x|z) = p(x) for a generator that ignores z on N(0, I): the reconstruction is the estimate, exactly."""
    without = ["method.energy=null", "method.prior_chain.steps=0"]
    config = resolve("text-demo", [s for s in SMALL if "energy" not in s and "prior_chain" not in s] + without)
    method, splits = build(config), load(config)
    method.generator.set_facts(splits.facts)
    with torch.no_grad():
        method.generator.start.weight.zero_()
        method.generator.lstm.weight_ih_l0[:, 4:] = 0
    ev = Evaluation(method, splits, limit=4)
    m = {name: value for numbers in likelihood.measure_text(ev) for name, value in numbers.items()}
    assert m["nll_estimate"] == pytest.approx(m["nll_reconstruction"], abs=0.3)  # the importance weights vary a little
    assert m["active_units"] == 0 and m["z_information"] == 0


def test_a_text_without_validation_sentences(tmp_path, monkeypatch):
    config = resolve("text-demo", SMALL)
    model, splits = build(config), load(config)
    model.generator.set_facts(splits.facts)
    bare = Splits(splits.train[:40], splits.test[:20], facts=splits.facts)
    monkeypatch.setattr(perplexity, "RECIPE", TINY)
    ev = Evaluation(model, bare)
    assert math.isfinite(perplexity.real_ppl(ev)["real_ppl"])
    assert ev.protocol["language_model"]["validation_ppl"] is None
    with pytest.raises(DataError, match="validation"):
        perplexity.real_ppl(Evaluation(model, bare, split="validation", shared=ev.shared))


def test_sentences_in_the_report_cannot_run_code(tmp_path):
    words = Vocabulary([*SPECIAL, "<script>alert(1)</script>"])
    run = tmp_path / "run"
    run.mkdir()
    said = {"samples": [words.sentence([4, END])], "reconstructions": [["<b>", "x"], "damaged", ["a"]]}
    (run / "sentences.json").write_text(json.dumps(said))
    page = report.write(run).read_text()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and "&lt;b&gt;" in page


def test_copies_are_counted_whatever_their_padding():
    train = torch.tensor([[5, 6, 2, 0], [7, 2, 0, 0]])
    x = torch.tensor([[5, 6, 2, 0, 0], [5, 2, 0, 0, 0], [7, 2, 0, 0, 0], [6, 5, 2, 0, 0]])
    assert perplexity.copied(x, train) == 0.5
