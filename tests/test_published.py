"""The results block of README.md and docs/results.md are what the result files say, and nothing else; the files are sound."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from lebm.config import from_dict, preset_names, resolve
from lebm.core.errors import UserError
from lebm.core.tensors import read_meta
from lebm.measure import result as results
from lebm.sampler import SamplerSpec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import cells  # noqa: E402
import published  # noqa: E402
import tables  # noqa: E402
import write_docs  # noqa: E402

FILES = sorted([*(ROOT / "results").glob("*.json"), *(ROOT / "models").glob("*.json")])


def spec(target="posterior", start="noise", steps=20, **more):
    return SamplerSpec(target, start, steps, 0.1, **more).to_dict()


def result(preset, metrics, data=None, **more):
    config = resolve(preset).to_dict()
    data = {"name": config["data"]["name"], "train": 100, "test": 10, "sha256": "0", **(data or {})}
    protocol = {"checkpoint": "last", "fid": {"samples": 50_000}}
    values = {"name": preset, "metrics": metrics, "data": data, "config": config, "protocol": protocol}
    values |= {"updates": 70_000, "seed": 0, "code": "c", "command": "x", "device": "a GPU"}
    return results.result(**{**values, **more})


@pytest.fixture
def place(tmp_path):
    """A repository with the real README and no results."""
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    (tmp_path / "results").mkdir()
    return tmp_path


def put(place, **files):
    for name, values in files.items():
        results.write(place / "results" / f"{name.replace('_', '-')}.json", values)


def written(place):
    readme, page = write_docs.documents(place).values()
    return readme.split(write_docs.BEGIN)[1].split(write_docs.END)[0], page


def row(text, *words):
    """The cells of the one table row that has all these words."""
    (line,) = [line for line in text.splitlines() if line.startswith("|") and all(w in line for w in words)]
    return [c.strip() for c in line.split("|")[1:-1]]


# --- what is committed ------------------------------------------------------------------------------------------------


def test_the_committed_documents_are_what_the_results_say():
    """No number typed by hand survives this: after a change of results/ run `make results`."""
    for path, text in write_docs.documents(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not what `make results` writes"


def test_the_block_of_the_readme_is_short():
    assert len(written(ROOT)[0].strip().splitlines()) <= 28


def samplers(values):
    """Every SamplerSpec in a protocol."""
    if isinstance(values, dict):
        if "target" in values and "start" in values:
            yield values
        for value in values.values():
            yield from samplers(value)


def configs(r):
    """The configurations of a result, which may be of several runs."""
    config = r["config"] or {}
    if "method" in config:
        return {r["name"]: config}
    return {name: c for name, c in config.items() if isinstance(c, dict) and "method" in c}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_file_is_a_result(path):
    """Its keys are the schema's, every configuration can be read and every sampler is one; it is named after its run."""
    r = json.loads(path.read_text(encoding="utf-8"))
    assert tuple(r) == results.KEYS
    for name, config in configs(r).items():
        assert from_dict(config).to_dict() == config
        assert config["name"] == name.removesuffix("-long-run") or name == results.SIDE_BY_SIDE
        assert config["based_on"] in (None, *preset_names())
    for values in samplers(r["protocol"]):
        assert SamplerSpec.from_dict(values).to_dict() == values
    if r["name"] in preset_names():
        assert path.stem == r["name"].replace("/", "-")
        measured = [entry for entry in r["protocol"].values() if isinstance(entry, dict)]
        assert all("sampler" in entry for entry in measured)


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.safetensors")), ids=lambda path: path.stem)
def test_a_published_model_says_what_it_is(path):
    meta = read_meta(path)
    config = from_dict(meta["config"])
    assert config.to_dict() == meta["config"] and config.name.replace("/", "-") == path.stem
    assert config.generator == resolve(config.name).generator and config.method == resolve(config.name).method
    assert meta["updates"] == config.training.updates and path.stat().st_size < 20 << 20


# --- tables of images -------------------------------------------------------------------------------------------------


def test_without_results_only_published_numbers_stand(place):
    block, page = written(place)
    assert block.strip() == "There are no results on the paper's data sets yet."
    assert "lebm**" not in page and "## Each result" not in page and "## Speed" not in page
    assert row(page, "| the paper (")[1:] == ["0.008 / 29.44", "0.020 / 70.15", "0.013 / 37.87"]
    assert row(page, "diffusion-amortised")[1:] == ["0.002 / 18.76", "0.015 / 57.72", "0.005 / 30.83"]
    assert row(page, "multi-stage")[1:] == ["0.004 / 26.19", "- / 65.01", "0.009 / 35.38"]
    assert row(page, "ladder")[1:] == ["0.008 / 24.16", "- / 63.42", "0.004 / 32.15"]


def test_our_rows(place):
    numbers = {"fid": 29.123, "fid_spread": 0.456, "mse": 0.01, "mse_100": 0.00712, "mse_100_spread": 0.0001}
    put(
        place,
        svhn_paper=result("svhn/paper", numbers, per_seed=[{}, {}, {}]),
        cifar10_paper=result("cifar10/paper", {"fid": 71.5, "mse_100": 0.021}, updates=25_000),
        svhn_best=result("svhn/best", {"fid": 23.9}),
    )
    block, page = written(place)
    ours = row(block, "**lebm**, the paper's settings")
    assert ours[1:3] == [
        "[0.0071 ± 0.0001 / 29.12 ± 0.46](results/svhn-paper.json)",
        "[0.0210 / 71.50](results/cifar10-paper.json)",
    ]
    assert ours[3] == "-" and row(block, "**lebm**, our settings")[1] == "[- / 23.90](results/svhn-best.json)"
    ours, link = row(page, "**lebm**, the paper's settings"), "../results/"
    said = "<br><sub>last checkpoint, 70,000 updates, 3 seeds</sub>"
    assert ours[1] == f"[0.0071 ± 0.0001 / 29.12 ± 0.46]({link}svhn-paper.json) {said}"
    said = "<br><sub>last checkpoint, 25,000 updates, 36% of the paper's, 1 seed</sub>"
    assert ours[2] == f"[0.0210 / 71.50]({link}cifar10-paper.json) {said}" and ours[3] == "-"
    assert row(page, "**lebm**, our settings")[1].startswith(f"[- / 23.90]({link}svhn-best.json)")
    assert row(page, "`svhn/paper`", "svhn-paper.json", "50,000") == [
        *("`svhn/paper`", "SVHN", "29.12 ± 0.46", "-", "0.0100", "0.0071 ± 0.0001", "50,000", "last", "70,000 updates"),
        *("3", "[svhn-paper.json](../results/svhn-paper.json)"),
    ]


def test_titles_are_those_of_the_metrics():
    from lebm.measure import METRICS

    assert cells.title("fid") == METRICS["fid"].title and set(cells.NUMBERS) > set(METRICS) - {
        "nll",
        "speed",
        "likelihood",
    }
    assert cells.NUMBERS["fid"].lower_is_better and cells.NUMBERS["mse_100"].lower_is_better, "the heads say so"
    assert cells.NUMBERS["fppl"].lower_is_better and cells.NUMBERS["nll_reconstruction"].lower_is_better


def test_a_cell_says_that_its_run_learned_with_an_encoder(place):
    """By the run itself, not by the name of its row: of the presets `best` some have an encoder and some have none."""
    put(place, svhn_best=result("svhn/best", {"fid": 24.0}), cifar10_best=result("cifar10/best", {"fid": 67.0}))
    ours = row(written(place)[1], "**lebm**, our settings")
    assert ["learned with an encoder" in c for c in ours] == [False, False, True, False]


def test_an_error_of_another_start_is_named(place):
    numbers = {"fid": 22.0, "mse": 0.0025, "mse_100": 0.0023}
    for start, said in (("encoder", "0.0025 (encoder)"), ("noise", "0.0023")):
        protocol = {"checkpoint": "last", "mse": {"sampler": spec(start=start), "steps": {"mse": 20, "mse_100": 100}}}
        put(place, svhn_warm=result("svhn/warm", numbers, protocol=protocol))
        for text in written(place):
            assert row(text, "**lebm**, our settings")[1].startswith(f"[{said} / 22.00]")


def test_updates_are_those_of_the_first_run_too(place):
    """Where the result knows them; the other run may have been anywhere, but to have begun with random networks is another setting."""
    first = {"name": "cifar10/first", "updates": 31_500}
    config = resolve("cifar10/best", ["training.start_from=/elsewhere"]).to_dict()
    alone = resolve("cifar10/best", ["training.start_from=null"]).to_dict()
    encoder = "1 seed, learned with an encoder"
    for protocol, values, said in (
        (
            {"start": first},
            config,
            f"37,000 updates, 53% of the paper's, the first 31,500 as `cifar10/first`, {encoder}</sub>",
        ),
        ({}, config, f"5,500 updates after those of `/elsewhere`, {encoder}</sub>"),
        ({}, alone, f"5,500 updates, 8% of the paper's, {encoder}; training.start_from None</sub>"),
    ):
        protocol = {"checkpoint": "last", **protocol}
        put(place, cifar10_best=result("cifar10/best", {"fid": 60.0}, config=values, updates=5500, protocol=protocol))
        assert row(written(place)[1], "**lebm**, our settings")[2].endswith(f"<sub>last checkpoint, {said}")


def test_settings_other_than_the_presets_are_said(place):
    as_preset, other = result("svhn/gaussian", {"fid": 44.0}), result("svhn/gaussian", {"fid": 45.0})
    as_preset["config"] = resolve("svhn/gaussian", ["training.updates=9", "seed=4"]).to_dict()
    as_preset["config"]["optimizers"].pop("prior", None)  # it has no such network
    settings = ["training.decay=0.5", "generator.sigma=0.2", "method.base.kind=whitened"]
    other["config"] = resolve("svhn/gaussian", settings).to_dict()
    put(place, svhn_gaussian=as_preset, svhn_other=other)
    ours = row(written(place)[1], "**lebm**, N(0, I) as prior")[1]
    assert ours.count("; ") == 1
    assert "; generator.sigma 0.2, method.base whitened, training.decay 0.5</sub>" in ours


def test_every_number_of_ours_is_from_a_file(place):
    """Numbers that are in no result do not appear: what the page with a result has more is the result's."""
    bare = written(place)[1]
    put(place, svhn_paper=result("svhn/paper", {"fid": 91.37, "mse": 0.4321, "mse_100": 0.1234}))
    more = set(re.findall(r"\d+\.\d+", written(place)[1])) - set(re.findall(r"\d+\.\d+", bare))
    assert more - {value for _, value in published.ABLATIONS} == {"91.37", "0.4321", "0.1234"}


def test_data_that_differs_carries_its_name(place):
    put(
        place,
        svhn_paper=result("svhn/paper", {"fid": 1.0}, {"sha256": cells.RECROPPED}),
        celeba64_paper=result("celeba64/paper", {"fid": 2.0}, {"train": 27_000, "test": 3_000}),
    )
    block, page = written(place)
    for text in (block, page):
        ours = row(text, "**lebm**, the paper's settings")
        assert "json)\\*" in ours[1] and "json)\\**" not in ours[1] and "json)\\**" in ours[3]
        assert "\\* SVHN, re-cropped from Format 1" in text and "\\** CelebA-30k, squashed" in text
    assert all(note in page for note in cells.NOTES.values())
    put(
        place,
        celeba64_paper=result("celeba64/paper", {"fid": 2.0}, {"train": 40_000, "test": 3_000}),
        svhn_paper=result("svhn/paper", {"fid": 1.0}),
    )
    assert not any(words in text for words in ("squashed", "re-cropped") for text in written(place))


def test_what_belongs_to_no_column_is_left_out(place):
    put(
        place,
        celeba128_paper=result("celeba128/paper", {"fid": 61.25}),
        mnist_paper=result("mnist/paper", {"frechet": 62.25}),
        anomaly=result("mnist/paper", {"auprc": {"1": 3}}),
    )
    assert not any(n in text for n in ("61.25", "62.25", "auprc") for text in written(place))
    put(place, odd=result("svhn/paper", {"fid": None, "mse_100": 0.1}, name="svhn/other"))
    block, page = written(place)
    assert row(page, "**lebm**, other")[1].startswith("[0.1000 / -]") and "**lebm**, other" not in block


def test_the_learned_prior(place):
    gaussians = "a mixture of Gaussians of posterior draws"
    put(
        place,
        svhn_paper=result("svhn/paper", {"fid": 30.0, "fid_gaussian": 90.0}),
        svhn_gaussian=result("svhn/gaussian", {"fid": 44.0}),
    )
    page = written(place)[1].split("## What the learned prior buys")[1]
    assert row(page, "N(0, I), the same generator")[1] == "43.39"
    assert row(page, "**lebm**, learned prior")[1] == "30.00" and row(page, "learned with N(0, I)")[1] == "44.00"
    assert row(page, "`svhn/paper`, samples from N(0, I)")[1] == "90.00"
    protocol = {
        "checkpoint": "last",
        "fid": {"samples": 50_000},
        "fid_gaussian": {"sampler": spec("prior", base=gaussians)},
    }
    put(
        place,
        svhn_best=result(
            "svhn/best", {"fid": 31.0, "fid_gaussian": 32.0, "fid_reconstruction": 21.5}, protocol=protocol
        ),
    )
    assert row(written(place)[1], "`svhn/best`", "50,000")[3] == "21.50"
    assert row(written(place)[1], f"`svhn/best`, samples from {gaussians} instead of its learned prior")[1] == "32.00"


# --- starts of chains, speed, text, anomalies -------------------------------------------------------------------------


def test_starts_of_chains_with_their_cost(place):
    speed = {"iteration_ms": 2.5, "infer_ms": 0.04, "infer_ratio": 99.8}
    protocol = {
        "checkpoint": "last",
        "speed": {"mse": 0.0025, "chains_mse": 0.0034, "sampler": spec(start="encoder", steps=10)},
        "fid": {"sampler": spec("prior", steps=60)},
        "mse": {"sampler": spec(start="encoder", steps=10), "steps": {"mse": 10, "mse_100": 100}},
    }
    put(
        place,
        svhn_warm=result("svhn/warm", {"fid": 22.0, "mse": 0.0025, **speed}, protocol=protocol),
        svhn_paper=result("svhn/paper", {"fid": 31.0}),
    )
    page = written(place)[1].split("## Starts of chains")[1].split("\n## ")[0]
    assert row(page, "`svhn/warm`")[1:8] == [
        "10 steps of 0.1 from the encoder's proposal",
        "60 steps of 0.1 from N(0, I)",
        *("22.00", "0.0025", "2.50", "0.040", "over 99.8 times slower"),
    ]
    assert "`svhn/paper`" not in page, "its speed was not measured"


def test_the_starts_are_those_of_the_measurement(place):
    """Learned with one start and measured with another: the row says both, and its steps are the measured chain's."""
    metrics = {"fid": 22.0, "mse": None, "mse_100": 0.0041, "iteration_ms": 2.5, "infer_ms": 0.04}
    protocol = {
        "fid": {"sampler": spec("prior", "flow", 0)},
        "frechet": {"sampler": spec("prior", steps=7)},
        "mse": {"sampler": spec(), "steps": {"mse_100": 100}},
        "speed": {"sampler": spec(start="encoder", steps=0)},
    }
    settings = ["method.posterior_start.kind=encoder", "method.prior_start.kind=flow", "name=odd"]
    put(
        place,
        odd=result("svhn/paper", metrics, protocol=protocol, config=resolve("svhn", settings).to_dict(), name="odd"),
    )
    assert row(written(place)[1], "`odd`", "2.50")[1:7] == [
        *("100 steps of 0.1 from N(0, I) (learned with encoder)", "by the flow alone"),
        *("22.00", "0.0041", "2.50", "0.040 (encoder)"),
    ]


def test_runs_side_by_side_are_rows_of_one_table():
    runs = []
    for i, start in enumerate(("noise", "encoder")):
        protocol = {"checkpoint": "last", "mse": {"sampler": spec(start=start, steps=i), "steps": {"mse": i}}}
        config = resolve("svhn", [f"method.posterior_start.kind={start}"]).to_dict()
        runs.append(result("svhn/paper", {"mse": 0.25 + i}, protocol=protocol, config=config, name=start, seconds=1.0))
    both = results.side_by_side(runs)
    assert cells.column(both) is None and cells.text_column(both) is None, "no row of Tables 1 and 2"
    shown = tables.starts({"svhn-starts": both})
    assert len(shown.splitlines()) == 4
    assert row(shown, "`noise`")[1:5] == ["drawn from N(0, I)", "-", "-", "0.2500"]
    assert row(shown, "`encoder`")[1:5] == ["1 step of 0.1 from the encoder's proposal", "-", "-", "1.2500"]


def bench(metrics, config, device="NVIDIA H200"):
    return results.result(name="bench", metrics=metrics, config=config, device=device, code="c", command="x")


def test_speed_digits_and_calibration(place):
    times = {"listing_ms": 104.3, "ours_ms": 2.721, "ratio": 38.33, "prior_ratio": 40.0, "images_per_s": 123456.7}
    times |= {"floor_ms": 1.4, "fraction_of_floor": 0.51}
    changed = resolve("svhn/warm", ["method.posterior_chain.steps=15"]).to_dict()
    digits = {"frechet": 1.87, "frechet_gaussian": 19.52, "mse": 0.1, "mse_100": 0.0712}
    sets = {"a": {"name": "cifar10:train"}, "b": {"name": "cifar10:test"}}
    put(
        place,
        bench_h200=bench(
            {"svhn/paper": times, "svhn/warm": times, "odd": {"ours_ms": 1.0}},
            {"svhn/paper": resolve("svhn/paper").to_dict(), "svhn/warm": changed},
        ),
        digits_paper=result("digits/paper", digits, updates=1500),
        fid_calibration=results.result(name="fid", metrics={"fid": 3.15181}, data=sets, code="c", command="x"),
    )
    page = written(place)[1]
    shown = ["104.3", "2.72", "38.3", "40.0", "123,457", "1.40 (51% reached)"]
    assert row(page, "`svhn/paper`", "H200")[2:8] == shown
    changed = "`svhn/warm`; method.posterior_chain.steps 15"
    assert row(page, "`svhn/warm`")[0] == changed, "the preset has other settings now"
    assert row(page, "`odd`")[0] == "`odd`; its settings are not recorded"
    assert row(page, "`odd`")[2:8] == ["-", "1.00", "-", "-", "-", "-"]
    said = ("After 1,500 updates,", "distance of 1.9 ", "at 19.5;", "error of 0.071 ", "1 seed:")
    assert all(words in page for words in said)
    assert row(page, "`cifar10:train`")[1:3] == ["3.1518", "3.15"]


def test_a_timing_without_its_settings_gives_way(place):
    known = {"svhn/paper": resolve("svhn/paper").to_dict()}
    both = lambda ms: {"svhn/paper": {"ours_ms": ms}, "svhn/best": {"ours_ms": ms}}  # noqa: E731
    put(
        place,
        bench_a=bench(both(2.5), None),
        bench_b=bench(both(2.25), known),
        bench_c=bench(both(2.75), None, "another"),
    )
    page = written(place)[1]
    shown = [line for line in page.splitlines() if line.startswith(("| `svhn/paper` ", "| `svhn/paper`; "))]
    assert len(shown) == 2 and "2.25" in shown[0] and "2.75" in shown[1]
    without = sum(line.startswith("| `svhn/best`; ") for line in page.splitlines())
    assert without == 3, "of all of them the settings are unknown, so all are shown"


def test_text_has_a_table_and_a_line(place):
    numbers = {"fppl": 105.34, "rppl": 149.79, "nll_reconstruction": 108.11, "copied": 0.008, "real_ppl": 102.0}
    put(place, ptb_paper=result("ptb/paper", numbers, {"train": 42_068}))
    put(
        place,
        snli_gaussian=result("snli/gaussian", numbers, {"train": 37_322}),
        svhn_paper=result("svhn/paper", {"fid": 1.0}),
    )
    block, page = written(place)
    line = "the paper 107.45 / 181.54 / 91.35; **lebm** 105.34 / 149.79 / 108.11"
    assert line in block
    page = page.split("## Table 2: text")[1].split("\n## ")[0]
    ours = row(page, "**lebm**, learned prior")
    assert ours[1] == "-" and ours[2].startswith("[105.34 / 149.79 / 108.11](../results/ptb-paper.json) (PTB)")
    assert "real text 102.00, -log p(x) about -, 0.8 % copies" in ours[2]
    assert "(SNLI-37k)" in row(page, "N(0, I) as prior")[1] and "37,322 training sentences" in page
    assert row(page, "| the paper (")[1] == "27.81 / 31.96 / 28.90"


def test_anomaly_detection_has_a_table_and_a_line(place):
    digits = published.ANOMALY_DIGITS
    auprc = {d: {"mean": 0.9 + int(d) / 1000, "spread": 0.0123} for d in digits if d != "9"}
    seeds = [{"seed": s, "digit": int(d)} for d in digits for s in (1, 2, 3)]
    chance = dict.fromkeys(digits, 0.388)
    neighbours = {"auprc": {"1": {"mean": 0.327, "spread": None}}}
    put(
        place,
        mnist_anomaly=result("mnist/anomaly", {"auprc": auprc, "chance": chance}, per_seed=seeds),
        mnist_anomaly_neighbours=result("mnist/paper", neighbours, name="mnist/neighbours"),
        svhn_paper=result("svhn/paper", {"fid": 1.0}),
    )
    block, page = written(place)
    ours = [".901 ± .012", ".904 ± .012", ".905 ± .012", ".907 ± .012", "-"]
    assert f"the paper .336, .630, .619, .463, .413; **lebm** {', '.join(ours)}" in block
    page = page.split("## Anomaly detection on MNIST")[1]
    shown = row(page, "**lebm**, our settings")
    assert shown[1:] == ours and "(../results/mnist-anomaly.json)" in shown[0] and "3 seeds" in shown[0]
    assert row(page, "nearest training image")[1:] == [".327", "-", "-", "-", "-"]
    assert row(page, "chance")[1:] == [".388"] * 5
    assert row(page, "| the paper (", ".336")[1:] == [".336", ".630", ".619", ".463", ".413"]
    assert "BiGAN" in page and "BiGAN" not in block
    choosing = result("mnist/anomaly", {"auprc": {"1": {"mean": 0.123, "spread": 0.1}}}, per_seed=seeds)
    choosing["config"]["data"]["labels"] = "clusters"
    put(place, choosing=choosing)
    assert ".123" not in "".join(written(place))


def test_a_long_run_has_a_table_of_its_own():
    metrics = {"fid_60": 33.5, "fid_2500": 41.0, "long_run_ratio": 1.22}
    how = {
        "samples": 50000,
        "passes_at": 1.5,
        "sampler": spec("prior", steps=60),
        "steps": {"fid_60": 60, "fid_2500": 2500},
    }
    r = dict.fromkeys(results.KEYS) | {
        "name": "svhn/best-long-run",
        "metrics": metrics,
        "protocol": {"checkpoint": "last", "long_run": how},
        "data": {"name": "svhn"},
        "config": {},
    }
    assert cells.column(r) is None
    shown = tables.long_runs({"svhn-long-run": r})
    for words in (
        "FID 33.50 after 60 steps",
        "FID 41.00 after 2500 steps",
        "| 1.22 |",
        "50,000",
        "/svhn-long-run.json)",
    ):
        assert words in shown
    assert tables.long_runs({}) == ""


# --- pictures, sentences, mistakes ------------------------------------------------------------------------------------


def test_pictures_are_shown_where_they_are(place):
    put(
        place,
        svhn_paper=result("svhn/paper", {"fid": 30.0}),
        svhn_best=result("svhn/best", {"fid": 24.0}),
        celeba64_paper=result("celeba64/paper", {"fid": 40.0}),
    )
    assert "![" not in "".join(written(place))
    figures = place / "docs" / "figures"
    figures.mkdir(parents=True)
    samples = ("svhn-paper-samples", "svhn-best-samples", "svhn-paper-reconstructions", "celeba64-paper-samples")
    for name in (*samples, "celeba64-paper-reconstructions"):
        (figures / f"{name}.png").touch()
    block, page = written(place)
    assert "![" not in block
    shown = set(re.findall(r"!\[.*?\]\((.*?)\)", page))
    assert shown == {f"figures/{name}.png" for name in samples}, "faces of real people are not shown"


def test_sentences_are_quoted_without_the_originals(place):
    figures = place / "docs" / "figures"
    figures.mkdir(parents=True)
    put(place, ptb_paper=result("ptb/paper", {"fppl": 1.0}))
    path = figures / "ptb-paper-sentences.json"
    path.write_text(json.dumps({"samples": [f"sentence {i} ``` ." for i in range(12)]}))
    page = written(place)[1]
    assert "sentence 9  ." in page and "sentence 10" not in page
    for text in (json.dumps({"samples": ["a"], "reconstructions": []}), "{", "[]"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"ptb-paper-sentences\.json"):
            write_docs.documents(place)


@pytest.mark.parametrize("text", ["{", "[]", '{"metrics": {}}', json.dumps(dict.fromkeys(results.KEYS))])
def test_a_file_that_is_no_result_is_named(place, text):
    (place / "results" / "broken.json").write_text(text)
    with pytest.raises(UserError, match=r"broken\.json"):
        write_docs.documents(place)


def test_the_command(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    put(place, svhn_paper=result("svhn/paper", {"fid": 30.0}))
    assert write_docs.main(["--check"]) == 1 and "30.00" not in (place / "README.md").read_text()
    assert not (place / "docs").exists(), "--check writes nothing"
    capsys.readouterr()
    assert write_docs.main([]) == 0 and capsys.readouterr().out.split() == ["README.md", "docs/results.md"]
    first = {p: p.read_text() for p in (place / "README.md", place / "docs" / "results.md")}
    assert "30.00" in first[place / "README.md"]
    assert write_docs.main([]) == 0 and {p: p.read_text() for p in first} == first == write_docs.documents(place)
    assert write_docs.main(["--check"]) == 0 and capsys.readouterr().out == ""
    (place / "README.md").write_text("no markers")
    assert write_docs.main([]) == 2 and "results:begin" in capsys.readouterr().err
    assert (place / "README.md").read_text() == "no markers" and write_docs.main(["--chek"]) == 2


def test_make_has_the_target():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^results: .*\n\t.*tools/write_docs\.py$", makefile, flags=re.M)
