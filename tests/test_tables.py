"""The tables of README.md and docs/results.md are what the result files say, and nothing else."""

import json
import re
import shutil
from pathlib import Path

import pytest

from lebm import documents, published, results, tables
from lebm.cells import RECROPPED
from lebm.config import resolve
from lebm.errors import UserError

ROOT = Path(__file__).parents[1]


def result(preset, metrics, data=None, **more):
    config = resolve(preset).to_dict()
    data = {"name": config["data"]["name"], "train": 100, "test": 10, "sha256": "0", **(data or {})}
    protocol = {"checkpoint": "last", "fid": {"samples": 50_000}}
    values = {"experiment": preset, "metrics": metrics, "data": data, "config": config, "protocol": protocol, "steps": 70_000, "seed": 0, **more}
    return results.result(code="c", command="x", device="a GPU", **values)


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
    readme, page = documents.documents(place).values()
    return readme.split(documents.BEGIN)[1].split(documents.END)[0], page


def row(text, *words):
    """The cells of the one table row that has all these words."""
    (found,) = [line for line in text.splitlines() if line.startswith("|") and all(w in line for w in words)]
    return [c.strip() for c in found.split("|")[1:-1]]


def test_the_committed_documents_are_what_the_results_say():
    """No number typed by hand survives this: after a change of results/ run `make results`."""
    for path, text in documents.documents(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not what `make results` writes"


def test_without_results_only_published_numbers_stand(place):
    block, page = written(place)
    assert block.strip() == "No results on the paper's data sets yet."
    assert "lebm**" not in page and "## Each result" not in page and "## Speed" not in page
    assert row(page, "| the paper (")[1:] == ["0.008 / 29.44", "0.020 / 70.15", "0.013 / 37.87"]
    assert row(page, "diffusion-amortised")[1:] == ["0.002 / 18.76", "0.015 / 57.72", "0.005 / 30.83"]
    assert row(page, "multi-stage")[1:] == ["0.004 / 26.19", "- / 65.01", "0.009 / 35.38"]
    assert row(page, "ladder")[1:] == ["0.008 / 24.16", "- / 63.42", "0.004 / 32.15"]


def test_ways_to_draw_z_with_their_cost(place):
    speed = {"iteration_ms": 2.5, "infer_ms": 0.04, "infer_ratio": 99.8}
    protocol = {"checkpoint": "last", "speed": {"mse": 0.0025, "chains_mse": 0.0034}}
    put(place, svhn_warm=result("svhn-warm", {"fid": 22.0, "mse": 0.0025, **speed}, protocol=protocol), svhn=result("svhn", {"fid": 31.0}))
    page = written(place)[1].split("## Ways to draw z")[1].split("\n## ")[0]
    assert row(page, "`svhn-warm`")[1:10] == ["warm", "langevin", "10", "60", "22.00", "0.0025", "2.50", "0.040", "over 99.8 times slower"]
    assert "`svhn`" not in page, "its speed was not measured"


def test_the_ways_are_those_of_the_measurement(place):
    """Learned in one way and measured in another: the row says both, and its K is the measured chain's."""
    metrics = {"fid": 22.0, "mse": None, "mse_100": 0.0041, "iteration_ms": 2.5, "infer_ms": 0.04}
    protocol = {
        "fid": {"by": "flow", "chain_steps": 0},
        "frechet": {"by": "langevin", "chain_steps": 7},
        "mse": {"by": "langevin", "chain_steps": [100]},
        "speed": {"by": "amortised"},
    }
    config = resolve("svhn", ["draw.posterior=amortised", "draw.prior=flow"]).to_dict()
    put(place, odd=result("svhn", metrics, protocol=protocol, config=config, experiment="odd"))
    ways = ["langevin (learned by amortised)", "flow", "100", "0", "22.00", "0.0041", "2.50", "0.040 (amortised)"]
    assert row(written(place)[1], "`odd`", "2.50")[1:9] == ways


def test_a_cell_says_that_its_run_learned_with_an_encoder(place):
    """By the run itself, not by the name of its row: of the presets `-best` some have one and some not."""
    put(place, svhn_best=result("svhn-best", {"fid": 24.0}), cifar10_best=result("cifar10-best", {"fid": 67.0}))
    for text in written(place):
        cells = row(text, "**lebm**, our settings")
        assert ["learned with an encoder" in c for c in cells] == [False, False, True, False]


def test_updates_are_those_of_the_first_stage_too(place):
    """Where the result knows them; the other run may have lain anywhere, but to have begun with random networks is another setting."""
    stage = {"experiment": "cifar10-first", "updates": 31_500}
    config = resolve("cifar10-best", ["training.start_from=/elsewhere"]).to_dict()
    alone = resolve("cifar10-best", ["training.start_from=null"]).to_dict()
    for protocol, values, said in (
        ({"start": stage}, config, "37,000 updates, 53% of the paper's, the first 31,500 as `cifar10-first`, 1 seed, learned with an encoder</sub>"),
        ({}, config, "5,500 updates after those of `/elsewhere`, 1 seed, learned with an encoder</sub>"),
        ({}, alone, "5,500 updates, 8% of the paper's, 1 seed, learned with an encoder; training.start_from None</sub>"),
    ):
        put(place, cifar10_best=result("cifar10-best", {"fid": 60.0}, config=values, steps=5500, protocol={"checkpoint": "last", **protocol}))
        assert row(written(place)[0], "**lebm**, our settings")[2].endswith(f"<sub>last checkpoint, {said}")


def test_our_rows(place):
    put(
        place,
        svhn_paper=result(
            "svhn", {"fid": 29.123, "fid_spread": 0.456, "mse": 0.01, "mse_100": 0.00712, "mse_100_spread": 0.0001}, per_seed=[{}, {}, {}]
        ),
        cifar10_paper=result("cifar10", {"fid": 71.5, "mse_100": 0.021}, steps=25_000),
        svhn_best=result("svhn-best", {"fid": 23.9}),
    )
    block, page = written(place)
    for text, link in ((block, "results/"), (page, "../results/")):
        cells = row(text, "**lebm**, the paper's settings")
        assert cells[1] == f"[0.0071 ± 0.0001 / 29.12 ± 0.46]({link}svhn-paper.json) <br><sub>last checkpoint, 70,000 updates, 3 seeds</sub>"
        assert cells[2] == f"[0.0210 / 71.50]({link}cifar10-paper.json) <br><sub>last checkpoint, 25,000 updates, 36% of the paper's, 1 seed</sub>"
        assert cells[3] == "-"
        assert row(text, "**lebm**, our settings")[1].startswith(f"[- / 23.90]({link}svhn-best.json)")
    detail = row(page, "`svhn`", "svhn-paper.json", "50,000")
    assert detail == [
        *("`svhn`", "SVHN", "29.12 ± 0.46", "50,000", "-", "0.0100", "0.0071 ± 0.0001", "last", "70,000 updates", "3"),
        "[svhn-paper.json](../results/svhn-paper.json)",
    ]


def test_every_number_of_ours_is_from_a_file(place):
    """Numbers that are in no result do not appear: what the page with a result has more is the result's."""
    bare = written(place)[1]
    put(place, svhn_paper=result("svhn", {"fid": 91.37, "mse": 0.4321, "mse_100": 0.1234}))
    more = set(re.findall(r"\d+\.\d+", written(place)[1])) - set(re.findall(r"\d+\.\d+", bare))
    assert more - {value for _, value in tables.ABLATIONS} == {"91.37", "0.4321", "0.1234"}


def test_data_that_differs_carries_its_name(place):
    put(
        place,
        svhn_paper=result("svhn", {"fid": 1.0}, {"sha256": RECROPPED}),
        celeba64_paper=result("celeba64", {"fid": 2.0}, {"train": 27_000, "test": 3_000}),
    )
    for text in written(place):
        cells = row(text, "**lebm**, the paper's settings")
        assert "json)\\* <br>" in cells[1] and "json)\\** <br>" in cells[3]
        assert "\n\\* SVHN, re-cropped from Format 1: " in text and "\n\\** CelebA-30k, squashed: " in text
    put(place, celeba64_paper=result("celeba64", {"fid": 2.0}, {"train": 40_000, "test": 3_000}), svhn_paper=result("svhn", {"fid": 1.0}))
    assert "squashed" not in written(place)[1] and "re-cropped" not in written(place)[1]


def test_what_belongs_to_no_column_is_left_out(place):
    put(place, celeba128=result("celeba128", {"fid": 61.25}), mnist=result("mnist", {"frechet": 62.25}), anomaly=result("mnist", {"auprc": {"1": 3}}))
    assert not any(n in text for n in ("61.25", "62.25", "auprc") for text in written(place))
    put(place, odd=result("svhn", {"fid": None, "mse_100": 0.1}, experiment="svhn-amortised"))
    assert row(written(place)[1], "**lebm**, amortised")[1].startswith("[0.1000 / -]")


def test_the_learned_prior(place):
    put(place, svhn_paper=result("svhn", {"fid": 30.0, "fid_gaussian": 90.0}), svhn_gaussian=result("svhn-gaussian", {"fid": 44.0}))
    page = written(place)[1].split("## What the learned prior buys")[1]
    assert row(page, "N(0, I), the same generator")[1] == "43.39"
    assert row(page, "**lebm**, learned prior")[1] == "30.00" and row(page, "learned with N(0, I)")[1] == "44.00"
    assert row(page, "`svhn`, samples from N(0, I)")[1] == "90.00"
    put(place, svhn_best=result("svhn-best", {"fid": 31.0, "fid_gaussian": 32.0, "fid_reconstruction": 21.5}))
    assert row(written(place)[1], "`svhn-best`", "50,000")[4] == "21.50"
    assert row(written(place)[1], "`svhn-best`, samples from a mixture of Gaussians instead of its learned prior")[1] == "32.00"


def test_settings_other_than_the_presets_are_said(place):
    as_preset, other = result("svhn-gaussian", {"fid": 44.0}), result("svhn-gaussian", {"fid": 45.0})
    as_preset["config"] = resolve("svhn-gaussian", ["training.steps=9", "seed=4", "learning.encoder_rate=1"]).to_dict()  # it has no encoder
    other["config"] = resolve("svhn-gaussian", ["learning.decay=0.5", "generator.sigma=0.2"]).to_dict()
    put(place, svhn_gaussian=as_preset, svhn_other=other)
    cell = row(written(place)[1], "**lebm**, N(0, I) as prior")[1]
    assert cell.count("; ") == 1 and "; generator.sigma 0.2, learning.decay 0.5</sub>" in cell


def test_speed_digits_and_calibration(place):
    times = {
        "listing_ms": 104.3,
        "ours_ms": 2.721,
        "ratio": 38.33,
        "prior_ratio": 40.0,
        "images_per_s": 123456.7,
        "floor_ms": 1.4,
        "fraction_of_floor": 0.51,
    }
    put(
        place,
        bench_h200=results.result(
            experiment="bench-h200",
            metrics={"svhn": times, "svhn-warm": times, "odd": {"ours_ms": 1.0}},
            config={"svhn": resolve("svhn").to_dict(), "svhn-warm": resolve("svhn-warm", ["chains.posterior.steps=15"]).to_dict()},
            device="NVIDIA H200",
            code="c",
            command="x",
        ),
        digits=result("digits", {"frechet": 1.87, "frechet_gaussian": 19.52, "mse": 0.1, "mse_100": 0.0712}, steps=1500),
        fid_calibration=results.result(
            experiment="fid", metrics={"fid": 3.15181}, data={"a": {"name": "cifar10:train"}, "b": {"name": "cifar10:test"}}, code="c", command="x"
        ),
    )
    block, page = written(place)
    for text in (block, page):
        assert row(text, "`svhn`", "H200")[2:8] == ["104.3", "2.72", "38.3", "40.0", "123,457", "1.40 (51% reached)"]
        assert row(text, "`svhn-warm`")[0] == "`svhn-warm`; chains.posterior.steps 15", "the preset has other settings now"
        assert row(text, "`odd`")[0] == "`odd`; its settings were not kept"
        assert row(text, "`odd`")[2:8] == ["-", "1.00", "-", "-", "-", "-"]
        assert all(n in text for n in ("after 1,500 updates:", "distance of 1.9 ", "at 19.5;", "error of 0.071 ", "1 seed:"))
    assert row(page, "`cifar10:train`")[1:3] == ["3.1518", "3.15"] and "3.1518" not in block


def test_a_timing_whose_settings_were_not_kept_gives_way(place):
    known = {"svhn": resolve("svhn").to_dict()}
    bench = lambda ms, config, device="NVIDIA H200": results.result(  # noqa: E731
        experiment="bench", metrics={"svhn": {"ours_ms": ms}, "svhn-best": {"ours_ms": ms}}, config=config, device=device, code="c", command="x"
    )
    put(place, bench_a=bench(2.5, None), bench_b=bench(2.25, known), bench_c=bench(2.75, None, "another GPU"))
    for text in written(place):
        shown = [line for line in text.splitlines() if line.startswith(("| `svhn` ", "| `svhn`; "))]
        assert len(shown) == 2 and "2.25" in shown[0] and "2.75" in shown[1]
        assert sum(line.startswith("| `svhn-best`; ") for line in text.splitlines()) == 3, "nobody kept its settings: all are shown"


def test_pictures_are_shown_where_they_are(place):
    put(
        place,
        svhn_paper=result("svhn", {"fid": 30.0}),
        svhn_best=result("svhn-best", {"fid": 24.0}),
        celeba64_paper=result("celeba64", {"fid": 40.0}),
    )
    assert "![" not in "".join(written(place))
    figures = place / "docs" / "figures"
    figures.mkdir(parents=True)
    for name in ("svhn-samples", "svhn-best-samples", "svhn-reconstructions", "celeba64-samples", "celeba64-reconstructions"):
        (figures / f"{name}.png").touch()
    block, page = written(place)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", block)
    assert sorted(shown) == ["docs/figures/celeba64-samples.png", "docs/figures/svhn-best-samples.png"], "the best of each set"
    everything = {f"figures/{n}.png" for n in ("svhn-samples", "svhn-best-samples", "svhn-reconstructions", "celeba64-samples")}
    assert set(re.findall(r"!\[.*?\]\((.*?)\)", page)) == everything, "faces of real people are not shown"


def test_anomaly_detection_has_a_table_of_its_own(place):
    digits = published.ANOMALY_DIGITS
    auprc = {d: {"mean": 0.9 + int(d) / 1000, "spread": 0.0123} for d in digits if d != "9"}
    seeds = [{"seed": s, "digit": int(d)} for d in digits for s in (1, 2, 3)]
    chance = dict.fromkeys(digits, 0.388)
    put(
        place,
        mnist_anomaly=result("mnist-anomaly", {"auprc": auprc, "chance": chance}, per_seed=seeds),
        mnist_anomaly_neighbours=result("mnist", {"auprc": {"1": {"mean": 0.327, "spread": None}}}, experiment="mnist-neighbours"),
    )
    block, page = written(place)
    for text, link in ((block, "results/"), (page, "../results/")):
        cells = row(text, "**lebm**, our way")
        assert cells[1:] == [".901 ± .012", ".904 ± .012", ".905 ± .012", ".907 ± .012", "-"]
        assert f"({link}mnist-anomaly.json)" in cells[0] and "3 seeds" in cells[0]
        assert row(text, "nearest training image")[1:] == [".327", "-", "-", "-", "-"]
        assert row(text, "chance")[1:] == [".388"] * 5
        assert row(text, "| the paper (", ".336")[1:] == [".336", ".630", ".619", ".463", ".413"]
    assert "BiGAN" in page and "BiGAN" not in block
    choosing = result("mnist-anomaly", {"auprc": {"1": {"mean": 0.123, "spread": 0.1}}}, per_seed=seeds)
    choosing["config"]["data"]["labels"] = "clusters"
    put(place, choosing=choosing)
    assert ".123" not in "".join(written(place))


@pytest.mark.parametrize("text", ["{", "[]", '{"metrics": {}}', json.dumps(dict.fromkeys(results.KEYS))])
def test_a_file_that_is_no_result_is_named(place, text):
    (place / "results" / "broken.json").write_text(text)
    with pytest.raises(UserError, match="broken.json"):
        documents.documents(place)


def test_the_command(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    put(place, svhn_paper=result("svhn", {"fid": 30.0}))
    assert documents.main() == 0 and capsys.readouterr().out.split() == ["README.md", "docs/results.md"]
    first = {p: p.read_text() for p in (place / "README.md", place / "docs" / "results.md")}
    assert "30.00" in first[place / "README.md"]
    assert documents.main() == 0 and {p: p.read_text() for p in first} == first == documents.documents(place), "written twice, it says the same"
    (place / "README.md").write_text("no markers")
    assert documents.main() == 2 and "results:begin" in capsys.readouterr().err and (place / "README.md").read_text() == "no markers"


def test_make_has_the_target():
    assert re.search(r"^results: .*\n\t.*-m lebm\.documents$", (ROOT / "Makefile").read_text(), flags=re.M)


def test_a_long_run_has_a_table_of_its_own():
    protocol = {"checkpoint": "last", "long_run": {"samples": 50000, "passes_at": 1.5}}
    metrics = {"fid_60": 33.5, "fid_2500": 41.0, "long_run_ratio": 1.22}
    r = dict.fromkeys(results.KEYS) | {
        "experiment": "svhn-long-run",
        "metrics": metrics,
        "protocol": protocol,
        "data": {"name": "svhn"},
        "config": {},
    }
    assert tables.column(r) is None
    shown = tables.long_runs({"svhn-long-run": r}, "")
    for words in ("FID 33.50 after 60 steps", "FID 41.00 after 2500 steps", "| 1.22 |", "50,000", "(svhn-long-run.json)"):
        assert words in shown
    assert tables.long_runs({}, "") == ""
