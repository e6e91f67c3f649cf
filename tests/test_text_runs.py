"""Runs that learn text, from sentences to files and back."""

import pytest
import torch

import lebm
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.words import SPECIAL
from lebm.measure.evaluate import evaluate
from lebm.run import export

TINY = {
    "preset": "text-demo/paper",
    "name": "tiny",
    "nz": 3,
    "generator": {"vocabulary": 130, "length": 20, "embedding": 4, "hidden": 6, "word_dropout": 0.0},
    "method": {
        "energy": {"width": 8},
        "prior_chain": {"steps": 3},
        "posterior_chain": {"steps": 3, "step_size": 0.1, "first_steps": [], "noise": 1.0, "drift_limit": 0.0},
    },
    "training": {"batch": 8, "updates": 4, "log_every": 2, "clip": 0.0},
}
ENCODER = "method.posterior_start={kind: encoder, width: 5}"


def tiny(*settings):
    return resolve(TINY, settings)


def train(config, *args, **options):
    return lebm.train(config, *args, device="cpu", **options)


def said(method, n):
    return method.generator.to_text(method.sample(n))


def test_a_run_is_trained_resumed_and_loaded_with_its_words(tmp_path):
    train(tiny(), run=tmp_path / "whole")
    train(tiny("training.updates=2"), run=tmp_path / "parts")
    train(tiny(), run=tmp_path / "parts", resume=True)
    whole, parts = lebm.load(tmp_path / "whole"), lebm.load(tmp_path / "parts")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert said(whole, 5) == said(parts, 7)[:5]
    x = ["the captain counts the nets .", "a letter"]
    assert whole.encode(x).shape == (2, 3) and whole.anomaly_score(x).isfinite().all()
    torch.testing.assert_close(whole.anomaly_score(x)[1:], whole.anomaly_score(x[1:]))
    assert whole.reconstruct(x).shape == (2, 21)
    lebm.save(whole, tmp_path / "other.safetensors")
    assert lebm.load(tmp_path / "other.safetensors").generator.facts() == whole.generator.facts()
    log = (tmp_path / "whole" / "log.jsonl").read_text()
    assert all(f'"{key}"' in log for key in ("nll_word", "z_gain", "z_share", "active_units", "z_information"))


def test_samples_are_draws_of_words_and_options_make_them_likelier(tmp_path):
    method = train(tiny(), run=tmp_path / "run")
    z = torch.cat(list(method.sample_z(6)))
    drawn, likeliest = method.sample(6), method.sample(6, top_p=1e-9)
    assert torch.equal(likeliest, method.decode(z)) and torch.equal(method.sample(6, beam=1), likeliest)
    assert not torch.equal(drawn, likeliest) and torch.equal(method.sample(6, temperature=1.0), drawn)
    assert torch.equal(method.sample(600)[:6], drawn)


def test_a_file_without_its_words_is_damaged(tmp_path):
    lebm.save(build(tiny()), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="damaged: its vocabulary"):
        lebm.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        [ENCODER, "method.posterior_start.objective=forward_kl"],
        [ENCODER, "method.posterior_chain.steps=0"],
    ],
    ids=["with chains", "alone"],
)
def test_a_text_run_with_an_encoder(settings, tmp_path):
    config = tiny(*settings, "method.prior_start={kind: replay, chains: 16}")
    method = train(config, run=tmp_path / "run")
    assert method.encode(["the captain", "a letter"]).shape == (2, 3)
    assert method.encode(["the captain"], spec=method.choose("posterior", "noise", 2)).shape == (1, 3)
    again = lebm.load(tmp_path / "run")
    torch.testing.assert_close(again.encode(["the captain"]), method.encode(["the captain"]))


def test_sentences_may_be_handed_in(tmp_path):
    lines = ["a b c", "a b", "c b a", "b"] * 5
    method = train(tiny(), lines, run=tmp_path / "run")
    assert method.generator.words().words == [*SPECIAL, "b", "a", "c"] and len(said(method, 3)) == 3
    with pytest.raises(DataError, match="list"):
        train(tiny(), ["a", 3])


def test_a_run_does_not_go_on_with_other_words(tmp_path):
    file = tmp_path / "my.txt"
    file.write_text("a b c\na b\n" * 20)
    config = tiny("data.name=text", f"data.path={file}", "training.updates=2")
    train(config, run=tmp_path / "run")
    file.write_text("a b d\na b\n" * 20)
    with pytest.raises(CheckpointError, match="data has changed"):
        train(config.with_values(**{"training.updates": 3}), run=tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="another vocabulary"):
        evaluate(tmp_path / "run", ("nll",), device="cpu")


def test_an_exported_model_still_makes_sentences(tmp_path):
    train(tiny("training.updates=1"), run=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "m.safetensors", "float16")
    sentences = said(lebm.load(tmp_path / "m.safetensors"), 2)
    assert len(sentences) == 2 and all(isinstance(s, str) for s in sentences)


def test_limits_of_chains_are_checked():
    with pytest.raises(ConfigError, match=r"method\.prior_chain\.first_steps"):
        resolve("digits", ["method.prior_chain.first_steps=[0.1, 0]"])
    with pytest.raises(ConfigError, match=r"method\.prior_chain\.noise"):
        resolve("digits", ["method.prior_chain.noise=2"])


def test_options_of_sentences_are_for_sentences():
    with pytest.raises(TypeError):
        build(resolve("digits")).sample(2, temperature=0.5)
