"""Perplexities against models whose probabilities are known, and the evaluation of a text run."""

import copy
import json
import math

import pytest
import torch

import lebm
from lebm import documents, evaluate, likelihood, tables, text_metrics
from lebm.config import resolve
from lebm.data import Splits, load
from lebm.errors import ConfigError, DataError, UserError
from lebm.metrics.language_model import LanguageModel, Recipe, fit
from lebm.metrics.perplexity import perplexity
from lebm.model import LatentEBM
from lebm.words import END, OWN, PAD, Vocabulary, lengths

TINY = Recipe(embedding=8, hidden=8, dropout=0.1, rate=0.05, epochs=2, alone=1, batch=100)
SMALL = [
    *("nz=3", "prior.width=8", "generator.embedding=4", "generator.hidden=6", "chains.prior.steps=3", "chains.posterior.steps=3"),
    *("training.steps=2", "training.batch=8", "data.limit=40"),
]


def rows(*sentences):
    widest = max(map(len, sentences)) + 1
    return torch.tensor([[*s, END, *[PAD] * (widest - len(s) - 1)] for s in sentences])


def test_a_uniform_model_hesitates_between_all_words():
    x = rows([4, 5, 6], [4])
    words = lengths(x)
    assert perplexity(-words * math.log(7), words) == pytest.approx(7)
    model = LanguageModel(11, TINY)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert model.perplexity(x) == pytest.approx(9)  # all but <pad> and <s>
    with pytest.raises(ValueError, match="at least one word"):
        perplexity(torch.zeros(0), torch.zeros(0))


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
    monkeypatch.setattr("lebm.words.packs", lambda x: False)  # as on a GPU
    assert model.perplexity(x) == pytest.approx(exact, rel=1e-5)
    monkeypatch.setattr("lebm.metrics.language_model.SCORED", 1)
    assert model.perplexity(x[[2, 0, 3, 1]]) == pytest.approx(exact, rel=1e-5)


def test_a_language_model_learns_what_there_is_to_learn():
    """Sentences `a^n b^n`, n = 1 or 2: one bit each, over 3 or 5 words, so the perplexity cannot fall below 2^(1/4)."""
    one, two = [4, 5], [4, 4, 5, 5]
    x = rows(*[one, two] * 150)
    model, history = fit(x, x[:40], 6, Recipe(embedding=8, hidden=16, dropout=0.0, rate=0.02, epochs=8, batch=20), 3, "cpu")
    best = 2 ** (1 / 4)
    assert best - 1e-3 < model.perplexity(x) < 1.1 * best and min(history) == pytest.approx(model.perplexity(x[:40]), rel=1e-6)
    _, same = fit(x, x[:40], 6, Recipe(embedding=8, hidden=16, dropout=0.0, rate=0.02, epochs=2, batch=20), 3, "cpu")
    assert same == history[:2]


def test_the_rate_falls_and_learning_ends_where_nothing_improves():
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randint(4, 9, (30, 4), generator=g), torch.full((30, 1), END)], 1)
    _, history = fit(x, x[:5] * 0 + torch.tensor([8, 8, 8, 8, END]), 9, Recipe(8, 8, 0.0, 0.05, 0.1, 1e-3, 40, 2, 10), 1, "cpu")
    assert 3 <= len(history) < 40


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(text_metrics, "RECIPE", TINY)
    monkeypatch.setenv("LEBM_CACHE", str(tmp_path / "cache"))
    lebm.train(resolve("text-demo", SMALL), run=tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_a_run_is_measured_and_the_judge_of_real_text_is_kept(run, tmp_path, monkeypatch, rough_log_z):
    monkeypatch.setattr(text_metrics, "log_likelihood", lambda *a, **k: likelihood.log_likelihood(*a, particles=3, temperatures=2, steps=4, **k))
    summary = lebm.evaluate.evaluate(run, ("fppl", "fppl_gaussian", "rppl", "nll"), samples=50, limit=5, device="cpu")
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
    assert p["nll"]["chain"]["noise"] == 0.1 and p["rppl"]["real"] == "all 300 test sentences"
    assert p["fppl_gaussian"]["sentences"]["chain_steps"] == 0 and m["fppl"] != m["fppl_gaussian"]
    assert summary["data"]["validation"] == 300
    said = json.loads((run / "sentences.json").read_text())
    assert len(said["samples"]) == len(said["samples_gaussian"]) == len(said["reconstructions"]) == 20
    page = (run / "report.html").read_text()
    assert "FPPL" in page and "The likeliest words at its z" in page
    assert "a posterior chain of 3 steps finds z, the generator says" in page and "a chain from N(0, I), 3 steps" in page
    said["drawn"]["reconstructions"] = {"by": "amortised", "z": "the encoder alone", "chain_steps": 0}
    (run / "sentences.json").write_text(json.dumps(said))
    assert "the encoder finds z, the generator says" in lebm.report.write(run).read_text()

    (kept,) = (tmp_path / "cache").glob("language-model-*.safetensors")
    refit = monkeypatch.setattr
    refit(text_metrics, "fit", lambda *a, **k: pytest.fail("the judge was there"))
    again = lebm.evaluate.evaluate(run, ("real_ppl",), device="cpu")["metrics"]["real_ppl"]
    assert again == pytest.approx(m["real_ppl"], rel=1e-6)
    kept.write_bytes(kept.read_bytes()[:100])
    refit(text_metrics, "fit", fit)
    assert lebm.evaluate.evaluate(run, ("real_ppl",), device="cpu")["metrics"]["real_ppl"] == pytest.approx(m["real_ppl"], rel=1e-3)


def test_choosing_looks_at_validation_sentences(run):
    found = lebm.evaluate.evaluate(run, ("real_ppl",), split="validation", device="cpu")
    assert found["protocol"]["real_ppl"]["sentences"] == "all 300 validation sentences" and (run / "validation.json").is_file()


def test_metrics_of_another_kind_and_another_text_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=r"metric fid is not for a model of kind text; there are fppl, rppl, nll, real_ppl, fppl_gaussian"):
        lebm.evaluate.evaluate(run, ("fid",), device="cpu")
    lebm.train(resolve("digits", ["training.steps=0", "generator.ngf=1", "nz=2"]), run=tmp_path / "digits", device="cpu")
    with pytest.raises(ConfigError, match="metric fppl is not for a model of kind image"):
        lebm.evaluate.evaluate(tmp_path / "digits", ("fppl",), device="cpu")
    with pytest.raises(ConfigError, match="there are frechet, .*fppl"):
        lebm.evaluate.evaluate(run, ("nonsense",), device="cpu")


def test_the_reconstruction_is_kept_though_the_estimate_takes_long(run, monkeypatch, rough_log_z):
    seen = []

    def stopped(model, rows, *a, **k):
        seen.append(len(rows))
        raise KeyboardInterrupt

    monkeypatch.setattr(text_metrics, "log_likelihood", stopped)
    monkeypatch.setattr(text_metrics, "WORDS", 40)
    with pytest.raises(KeyboardInterrupt):
        lebm.evaluate.evaluate(run, ("nll",), device="cpu")
    kept = json.loads((run / "metrics.json").read_text())["metrics"]
    assert math.isfinite(kept["nll_reconstruction"]) and "nll_estimate" not in kept
    test = load(resolve(run)).test
    assert lengths(test[: seen[0]]).sum() <= 40 < lengths(test[: seen[0] + 1]).sum()  # as many sentences as these words make


def test_where_z_says_nothing_both_likelihoods_agree(rough_log_z):
    """p(x|z) = p(x) for a generator that ignores z on N(0, I): the reconstruction is the estimate, exactly."""
    config = resolve("text-demo", [*SMALL, "prior.kind=gaussian"])
    model, splits = LatentEBM(config), load(config)
    model.generator.take(splits.facts)
    with torch.no_grad():
        model.text().start.weight.zero_()
        model.text().lstm.weight_ih_l0[:, 4:] = 0
    ev = evaluate.Evaluation(model, splits, limit=4)
    found = {name: value for numbers in text_metrics.nll(ev) for name, value in numbers.items()}
    assert found["nll_estimate"] == pytest.approx(found["nll_reconstruction"], abs=0.3)  # the importance weights vary a little
    assert found["active_units"] == 0 and found["z_information"] == 0


def test_a_text_without_validation_sentences(tmp_path, monkeypatch):
    config = resolve("text-demo", SMALL)
    model, splits = LatentEBM(config), load(config)
    model.generator.take(splits.facts)
    bare = Splits(splits.train[:40], splits.test[:20], facts=splits.facts)
    monkeypatch.setattr(text_metrics, "RECIPE", TINY)
    ev = evaluate.Evaluation(model, bare)
    assert math.isfinite(text_metrics.real_ppl(ev)["real_ppl"]) and "no validation text" in ev.protocol["language_model"]["stopped"]
    with pytest.raises(DataError, match="no validation sentences"):
        text_metrics.real_ppl(evaluate.Evaluation(model, bare, split="validation", kept=ev.kept))


def test_table_2_is_made_of_result_files():
    result = dict.fromkeys(lebm.results.KEYS) | {
        "experiment": "snli",
        "metrics": {"fppl": 31.234, "rppl": 40.5, "nll_reconstruction": 29.0, "nll_estimate": 35.1, "real_ppl": 24.0, "copied": 0.0123},
        "data": {"name": "snli", "train": 37322},
        "protocol": {"checkpoint": "last"},
        "steps": 40000,
        "config": {},
    }
    twin = copy.deepcopy(result) | {"experiment": "snli-gaussian"}
    text = tables.table_2({"snli": result, "snli-gaussian": twin}, "results/")
    assert "[31.23 / 40.50 / 29.00](results/snli.json) (SNLI-37k)" in text and "107.45 / 181.54 / 91.35" in text
    assert "N(0, I) as prior, the same generator" in text and "37,322 training sentences" in text and "40,000 updates" in text
    assert tables.table_2({}, "results/") == ""


def test_sentences_in_the_report_cannot_run_code(tmp_path):
    words = Vocabulary([*OWN, "<script>alert(1)</script>"])
    run = tmp_path / "run"
    run.mkdir()
    said = {"samples": [words.sentence([4, END])], "reconstructions": [["<b>", "x"], "damaged", ["a"]]}
    (run / "sentences.json").write_text(json.dumps(said))
    page = lebm.report.write(run).read_text()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and "&lt;b&gt;" in page


def test_samples_of_a_text_model_are_quoted_and_nothing_else(tmp_path):
    result = {"experiment": "ptb", "metrics": {"fppl": 1.0}, "data": {"name": "ptb"}}
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    assert documents.quoted({"ptb": result}, tmp_path) == ""
    file = tmp_path / "docs" / "figures" / "ptb-sentences.json"
    kept = {"samples": [f"said {i}" for i in range(20)], "samples_gaussian": ["not this"]}
    file.write_text(json.dumps(kept))
    text = documents.quoted({"ptb": result}, tmp_path)
    assert "said 9" in text and "said 10" not in text and "not this" not in text
    file.write_text(json.dumps({**kept, "reconstructions": [["secret", "x"]]}))
    with pytest.raises(UserError, match="test sentences beside their reconstructions; take `reconstructions` out"):
        documents.quoted({"ptb": result}, tmp_path)
    file.write_text("[]")
    with pytest.raises(UserError, match="no sentences.json"):
        documents.quoted({"ptb": result}, tmp_path)


def test_copies_are_counted_whatever_their_padding():
    train = torch.tensor([[5, 6, 2, 0], [7, 2, 0, 0]])
    x = torch.tensor([[5, 6, 2, 0, 0], [5, 2, 0, 0, 0], [7, 2, 0, 0, 0], [6, 5, 2, 0, 0]])
    assert text_metrics.copied(x, train) == 0.5
