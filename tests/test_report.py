"""The report page: complete, safe, self-contained, and patient with whatever a run folder lacks."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Literal

import numpy as np
import pytest
from pydantic import create_model

from lebm.core.errors import UserError
from lebm.core.section import Section
from lebm.sampler import SamplerSpec
from lebm.show import figures, pictures, report, templates
from lebm.show.report import kinds

EVIL = '<script>alert("x")</script>&'
RESULT = {
    "name": "digits",
    "metrics": {"frechet": 1.8, "frechet_gaussian": 7.74, "mse": 0.0203, "mse_100": 0.0151, "own": {"score": 3}},
    "protocol": {"samples": 10000, "features": "raw pixels"},
    "seed": 1, "updates": 3000, "device": "CPU", "seconds": 97.3, "code": "4f2c1e9",
    "command": "lebm evaluate runs/digits",
}  # fmt: skip
CHAIN = SamplerSpec("posterior", "noise", 40, 0.1)
ROWS = [{"step": t, "f_pos": 1.0, "f_neg": 0.5, "gap": 0.5, "mse": 0.1, "seconds": 4 * t} for t in (50, 100, 150)]
TITLES = [
    "Numbers",
    "Samples",
    "Test reconstructions",
    "Energy along a chain",
    "Diagnostics",
    "Training",
    "Configuration",
    "Run it again",
]


class Page(HTMLParser):
    """Tags with their attributes, the text, and whether every element is closed in order."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.raw, self.tags, self.words, self.open = text, [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(run):
    page = Page(report.write(run).read_text(encoding="utf-8"))
    assert page.open == []
    return page


@pytest.fixture
def run(tmp_path):
    """A run folder with everything in it."""
    folder = tmp_path / "runs" / "digits"
    pixels = np.random.default_rng(1).integers(0, 256, (9, 1, 8, 8), dtype=np.uint8)
    pictures.save(pictures.grid(pixels), folder / "figures" / "samples.png")
    pictures.save(pictures.grid(pixels[::-1]), folder / "figures" / "samples-gaussian.png")
    pictures.save(pictures.pairs(pixels, pixels), folder / "figures" / "reconstructions.png")
    figures.save(figures.energy_profile(np.zeros((11, 3))), folder / "figures" / "energy.svg")
    (folder / "config.yaml").write_text("name: digits\nseed: 7\nnz: 16\nmethod:\n  kind: latent-ebm\n")
    (folder / "metrics.json").write_text(json.dumps(RESULT))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def rewrite(run, **changes):
    (run / "metrics.json").write_text(json.dumps(RESULT | changes))


def test_every_section_is_there_in_order(run):
    page = page_of(run)
    places = [page.words.index(title) for title in TITLES]
    assert places == sorted(places)
    assert len(page.all("h1")) == 1 and len(page.all("h2")) == len(TITLES)
    assert len(page.all("img")) == 4
    assert len(page.all("svg")) == 3  # three panels: gap, f, mse
    for words in (
        "1.8",
        "7.74",
        "4.3 times smaller",
        "0.0203",
        "0.0151",
        "own.score",
        "raw pixels",
        "10,000",
        "seed7",  # of learning, not of the evaluation
        "learning took10 min",
        "nz: 16",
        "lebm evaluate runs/digits",
    ):
        assert words in page.words, words


def test_the_page_loads_nothing_from_elsewhere(run):
    page = page_of(run)
    for tag, attrs in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert attrs.get(name, "data:").startswith("data:"), (tag, attrs)
    assert not any(word in page.raw for word in ("http://", "https://", "@import", "url("))
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_the_page_is_usable_by_everyone(run):
    page = page_of(run)
    assert all(image["alt"] for image in page.all("img"))
    assert page.all("html") == [{"lang": "en"}]
    assert any("width=device-width" in meta.get("content", "") for meta in page.all("meta"))
    assert len(page.all("details")) == len(page.all("summary")) == 2
    for rule in ("prefers-color-scheme: dark", "max-width: 700px", "@media print", ":focus-visible"):
        assert rule in page.raw


def test_text_from_files_is_never_markup(run):
    rewrite(
        run,
        name=EVIL,
        metrics={EVIL: EVIL, "mse": EVIL},
        protocol={EVIL: EVIL},
        device=EVIL,
        code=EVIL,
        seed=EVIL,
        updates=EVIL,
        command=EVIL,
    )
    (run / "config.yaml").write_text(f"nz: '{EVIL}'\n")
    (run / "log.jsonl").write_text(json.dumps({"step": EVIL, "warning": EVIL}) + "\n")
    page = page_of(run)
    assert len(page.all("script")) == 1
    assert "alert(" not in page.raw.replace("alert(&#34;x", "")
    assert page.words.count(EVIL) >= 8


@pytest.mark.parametrize(
    "missing",
    [
        "metrics.json",
        "log.jsonl",
        "config.yaml",
        "figures/samples.png",
        "figures/samples-gaussian.png",
        "figures/energy.svg",
    ],
)
def test_any_part_may_be_missing(run, missing):
    (run / missing).unlink()
    page = page_of(run)
    assert "digits" in page.words
    assert "Samples" in page.words and "Test reconstructions" in page.words


def test_an_empty_folder_gives_a_page_of_notes(tmp_path):
    page = page_of(tmp_path)
    assert tmp_path.name in page.words
    assert page.words.count(" yet") >= 4 and "No training log" in page.words
    assert page.all("img") == []


def test_damaged_files_are_named_on_the_page(run):
    (run / "metrics.json").write_text('{"metrics": ')
    (run / "config.yaml").write_text("a: [")
    with (run / "log.jsonl").open("a") as log:
        log.write('{"step": 200, "ms')
    page = page_of(run)
    for words in (
        "metrics.json is not readable",
        "config.yaml is not readable",
        "1 line of log.jsonl could not be read and is left out",
    ):
        assert words in page.words


@pytest.mark.parametrize(
    "result",
    [
        {"metrics": [1]},
        {"metrics": {"frechet": None}},
        {"metrics": {"frechet": 0, "frechet_gaussian": 1}, "seconds": "long"},
        [],
    ],
)
def test_unexpected_metrics_are_no_reason_to_fail(run, result):
    (run / "metrics.json").write_text(json.dumps(result))
    assert "Samples" in page_of(run).words


def test_warnings_of_the_log_are_shown(run):
    assert "Warnings" not in page_of(run).words
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": 120, "warning": "the gap is 35"}) + "\n")
    page = page_of(run)
    assert "Warnings" in page.words and "update 120" in page.words and "the gap is 35" in page.words


def test_many_warnings_are_cut_to_the_last(run):
    (run / "log.jsonl").write_text("".join(json.dumps({"step": t, "warning": f"w{t}."}) + "\n" for t in range(80)))
    page = page_of(run)
    assert "The last 50 of 80" in page.words and "w79." in page.words and "w29." not in page.words


def test_the_page_does_not_praise_a_prior_that_does_not_help(run):
    rewrite(run, metrics={"fid": 8.0, "fid_gaussian": 7.7})
    words = page_of(run).words
    assert "no gain yet (FID 8 against 7.7" in words and "times smaller" not in words
    assert 'class="card best"' not in (run / "report.html").read_text(encoding="utf-8")


def test_a_picture_without_a_record_is_explained_by_none(run):
    rewrite(run, protocol={"mse": {"sampler": CHAIN.to_dict()}})
    words = page_of(run).words
    assert "Of each, z is inferred, and the generator draws it again" in words


def test_how_z_was_drawn_stands_beside_numbers_and_pictures(run):
    shown = replace(CHAIN, start="encoder", steps=3)
    rewrite(run, protocol={"mse": {"sampler": CHAIN.to_dict(), "steps": {"mse": 20, "mse_100": 100}}})
    pictures.note(run / "figures", "samples", SamplerSpec("prior", "replay", 5, 0.4, replay_chains=10), 64)
    pictures.note(run / "figures", "reconstructions", shown)
    words = page_of(run).words
    for spec in (replace(CHAIN, steps=20), replace(CHAIN, steps=100), CHAIN):  # two numbers, and how they were measured
        assert spec.in_words() in words
    assert "z ~ pα(z), 5 to 35 steps of 0.4 continuing the replayed chains" in words
    assert f"z is inferred ({shown.in_words()})" in words
    assert f"Mean squared error a pixel, z: {replace(CHAIN, steps=20).in_words()}" in words, (
        "the picture was drawn otherwise than its number"
    )


@pytest.mark.parametrize(
    ("energy", "words"), [("{}", "short Langevin chains teach both"), ("null", "with short Langevin chains")]
)
@pytest.mark.parametrize("steps", [20, 0])
def test_chains_are_spoken_of_where_there_are_some(run, energy, words, steps):
    prior = 0 if energy == "null" else 60
    (run / "config.yaml").write_text(
        f"method: {{energy: {energy}, posterior_chain: {{steps: {steps}}}, prior_chain: {{steps: {prior}}}}}\n"
    )
    assert (words in page_of(run).words) == bool(steps) and "by maximum likelihood" in page_of(run).words


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("posterior_start: {kind: encoder}", "an encoder proposes where posterior chains start"),
        ("posterior_start: {kind: encoder}, posterior_chain: {steps: 0}", "an encoder infers z without a chain"),
        ("prior_start: {kind: flow}", "a flow proposes where prior chains start"),
        ("prior_start: {kind: flow}, prior_chain: {steps: 0}", "a flow draws z from the prior without a chain"),
        ("prior_start: {kind: replay}", "prior chains continue from update to update"),
        ("base: {kind: whitened}", "N(z; m, S) of posterior draws"),
        ("kind: vae", "a model of kind vae"),
    ],
)
def test_the_page_says_what_a_run_does_otherwise_than_the_paper(run, method, words):
    (run / "config.yaml").write_text(f"method: {{{method}}}\n")
    assert words in page_of(run).words


def test_the_number_beside_the_samples_is_the_one_its_name_says(run):
    rewrite(run, metrics={"frechet": 1.8, "frechet_gaussian": 7.74, "fid": 21.5, "fid_gaussian": 35.5})
    words = page_of(run).words
    assert "FID to the data is 1.7 times smaller (21.5 against 35.5)" in words


def test_the_gaussian_ablation_is_called_what_it_is(run):
    (run / "config.yaml").write_text("method: {energy: null}\n")
    page = page_of(run)
    assert "the ablation" in page.words and "Fixed prior" in page.words
    assert "earned prior" not in page.words.split("Test reconstructions")[0].split("Samples")[1]


def test_saved_curves_stand_in_for_a_missing_log(run):
    (run / "log.jsonl").unlink()
    figures.save(figures.training_curves(ROWS), run / "figures" / "curves.svg")
    assert len(page_of(run).all("img")) == 4 + 1


def test_writing_again_gives_the_same_page(run):
    first = report.write(run)
    before = first.read_bytes()
    assert report.write(str(run)) == run / "report.html" and first.read_bytes() == before


def test_a_folder_that_is_not_there_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        report.write(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.8123, "1.812"), (0.02031, "0.02031"), (7.70, "7.7"), (64.571, "64.57"), (12345.6, "12,346"),
     (3e-5, "3e-05"), (0.0, "0"),
     (float("nan"), "not finite"),
     (999.99, "1000"), (-2.5, "-2.5"), (20.0, "20")],
)  # fmt: skip
def test_numbers_are_short(value, shown):
    assert templates.short(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(97.3, "97 s"), (600, "10 min"), (7500, "2 h 5 min"), (None, None), ("x", None), (-1, None)]
)
def test_durations(seconds, shown):
    assert templates.duration(seconds) == shown


def test_sentences_stand_where_images_would(run):
    (run / "sentences.json").write_text(
        json.dumps({"samples": ["a cat", EVIL], "samples_gaussian": ["of of"], "reconstructions": [["a dog", "a dot"]]})
    )
    pictures.note(run / "figures", "samples", SamplerSpec("prior", "noise", 40, 0.4), 20)
    page = page_of(run)
    for words in ("a cat", "of of", "a dog", "a dot", "z ~ pα(z), 40 steps of 0.4 from N(0, I)", "z ~ N(0, I)", EVIL):
        assert words in page.words, words
    assert len(page.all("script")) == 1


def test_a_method_without_a_learned_prior_is_not_told_of_one(run):
    (run / "config.yaml").write_text("method: {kind: vae}\n")
    (run / "log.jsonl").write_text(json.dumps({"step": 5, "grad_generator": 2.0, "mse": 0.5}) + "\n")
    (run / "figures" / "energy.svg").unlink()
    for name in ("samples", "samples-gaussian"):  # an older version drew the same grid twice
        pictures.note(run / "figures", name, SamplerSpec("prior"), 64)
    page = page_of(run)
    for words in ("earned prior", "nergy", "f is known", "Diagnostics", " yet"):
        assert words not in page.words.split("Written by")[0], words
    assert len(page.all("img")) == 2 and "z drawn from N(0, I)" in page.words
    pictures.note(run / "figures", "samples", SamplerSpec("prior", "flow"), 64)
    words = page_of(run).words
    assert "No learned prior" in words and "the learned prior moves z" in words and "learned energy" not in words


def test_a_method_says_by_its_networks_whether_it_has_an_energy(monkeypatch):
    assert kinds.has_energy({}) and kinds.has_energy({"method": {"energy": {"width": 5}}})
    assert not kinds.has_energy({"method": {"energy": None}}) and not kinds.has_energy({"method": {"kind": "vae"}})
    for networks in (("generator", "prior"), ("generator", "encoder")):
        section = create_model("Other", __base__=Section, kind=(Literal["other"], "other"))
        section.networks = lambda self, networks=networks: networks
        monkeypatch.setattr(kinds, "named", lambda place, section=section: section)
        assert kinds.has_energy({"method": {"kind": "other"}}) == ("prior" in networks)


def test_a_number_that_is_absent_is_an_absent_row(run):
    rewrite(run, metrics={"mse": 0.5, "mse_100": None})
    assert "Reconstruction error" in page_of(run).words and "100 steps" not in page_of(run).words


def test_a_table_is_shown_as_a_scatter(run):
    (run / "config.yaml").write_text("generator: {kind: table, columns: 3}\n")
    for path in (run / "figures").glob("*.png"):
        path.unlink()
    rewrite(run, metrics={"mse": 0.5}, protocol={})
    words = page_of(run).words
    assert "Samples" not in words and " yet: evaluate" not in words, "fewer than two columns"
    rows = np.zeros((5, 2))
    figures.save(figures.scatter(rows, {"samples": rows}), run / "figures" / "samples.svg")
    page = page_of(run)
    assert "first two columns of samples" in page.words and "Test reconstructions" not in page.words
    assert "per column" in page.words and "squared error a column" in page.words and "pixel" not in page.words
    (run / "figures" / "samples.svg").unlink()
    (run / "metrics.json").unlink()
    (run / "config.yaml").write_text("generator: {kind: table}\ndata: {name: handed-in}\n")
    words = page_of(run).words
    assert "handed to lebm.train" in words and "evaluate the run to draw" not in words, "such a run cannot be evaluated"
    assert "No diagnostics here" in words and "No diagnostics yet" not in words
