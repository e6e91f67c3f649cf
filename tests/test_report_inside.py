"""The parts of the report that come from analysis.json, its charts, and the comparison of runs."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from lebm.sampler import SamplerSpec
from lebm.show import pictures, report
from lebm.show.charts import Chart, Series
from lebm.show.report import svg
from lebm.show.report.svg import Axis

EVIL = '<script>alert("x")</script>&'
PROFILE = {"step": [0, 5, 10], **{name: [3.0, 1.0, 0.5] for name in ("low", "lower", "middle", "upper", "high")}}
DRAWN = {
    "updates": 9,
    "seed": 0,
    "sampler": SamplerSpec("prior", "flow", 10, 0.4).to_dict(),
    "steps": [0, 5, 10],
    "rows": 2,
    "tile": [8, 8],
    "trained": 5,
    "profile": PROFILE,
    "shown": [[1.5, 2], [1, 1], [0, -1]],
}
HISTOGRAM = {"density": [0.1, 0.4], "mean": 0.5, "spread": 1.0}
DIAGNOSED = {
    "updates": 9,
    "verdict": "steady",
    "words": "Nothing changes.",
    "chain": {"chains": 200, "steps": 400, "trained": 5, "sampler": SamplerSpec("prior", "noise", 400, 0.4).to_dict()},
    "statistics": {
        "level_from_step": 4,
        "split_rhat": 1.013,
        "ess": 1234.5,
        "draws": 70000,
        "steps_per_independent_draw": 8.8,
    },
    "log_z": {"value": -1.99, "error": 0.01, "ess": 924.0, "chains": 1000, "temperatures": 500},
    "profile": PROFILE,
    "autocorrelation": [1.0, 0.5, 0.2],
    "f": {"edges": [0.0, 1.0, 2.0], "prior": HISTOGRAM, "posterior": HISTOGRAM, "base": HISTOGRAM},
    "view": {"explained": [0.2, 0.1], **{name: [[0.0, 1.0], [1.0, 2.0]] for name in ("prior", "posterior", "base")}},
    "tilt": {name: [0.1, 0.2] for name in ("prior_mean", "prior_spread", "posterior_mean", "posterior_spread")},
}
NEAR = {"updates": 9, "median_sample": 0.35, "median_test": 0.25, "nearer_than_test": 0.0}
LONG = {
    "updates": 9,
    "metrics": {"fid_60": 33.0, "fid_2500": 66.0, "long_run_ratio": 2.0},
    "protocol": {
        "steps": {"fid_60": 60, "fid_2500": 2500},
        "passes_at": 1.5,
        "samples": 50000,
        "features": "inception",
    },
}
ALL = {"chains": DRAWN, "diagnostics": DIAGNOSED, "neighbours": NEAR, "interpolation": {"updates": 9}, "long_run": LONG}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.raw, self.tags, self.words, self.inside = text, [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_data(self, data):
        if self.inside[-1:] not in (["style"], ["script"]):
            self.words += data

    def count(self, tag, **wanted):
        return sum(name == tag and all(attrs.get(k) == v for k, v in wanted.items()) for name, attrs in self.tags)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a" / "run"
    pixels = np.zeros((6, 1, 8, 8), np.uint8)
    for name in ("chains-frames", "neighbours", "interpolation", "samples"):
        pictures.save(pictures.grid(pixels, columns=2, scale=1, gutter=0), folder / "figures" / f"{name}.png")
    (folder / "config.yaml").write_text("name: digits\nnz: 16\ndata:\n  name: digits\n")
    (folder / "metrics.json").write_text(
        json.dumps(
            {"name": "digits", "updates": 9, "metrics": {"mse": 0.5, "bits_per_dim": 6.9, "bits_per_dim_error": 0.1}}
        )
    )
    (folder / "log.jsonl").write_text(
        "".join(json.dumps({"step": t, "gap": t / 10, "mse": 1 / t}) + "\n" for t in (5, 10, 15))
    )
    write(folder, ALL)
    return folder


def write(folder, values):
    (folder / "analysis.json").write_text(json.dumps(values))


def page_of(run):
    return Page(report.write(run).read_text(encoding="utf-8"))


def test_every_part_is_shown(run):
    page = page_of(run)
    for words in (
        "From noise to samples",
        "2 chains of the learned prior (10 steps of 0.4 from the flow's proposal)",
        "Steady",
        "Nothing changes.",
        "1.013",
        "−1.99 ± 0.01".replace("−", "-"),
        "No sign of copying",
        "Paths between images",
    ):
        assert words in page.words, words
    for words in ("Long-run test failed", "33", "66", "2,500".replace(",", ""), "an estimate", "± 0.1"):
        assert words in page.words, words
    assert page.count("input", type="range") == 1 and page.count("svg") == 1 + 6 + 2
    (player,) = [json.loads(attrs["data-player"]) for _, attrs in page.tags if "data-player" in attrs]
    assert player == {"steps": [0, 5, 10], "energy": DRAWN["shown"]}


def test_charts_carry_their_numbers_for_the_hover(run):
    data = [
        json.loads(attrs["data-chart"]) for tag, attrs in page_of(run).tags if tag == "svg" and "data-chart" in attrs
    ]
    assert {"update", "Langevin step", "f(z), in nats", "lag in Langevin steps"} == {d["x"] for d in data}
    gap = next(d for d in data if d["series"][0]["name"] == "gap")
    assert gap["series"][0]["x"] == [5, 10, 15] and gap["series"][0]["y"] == [0.5, 1, 1.5]


def test_what_is_older_than_the_numbers_is_not_shown(run):
    write(run, {name: part | {"updates": 8} for name, part in ALL.items()})
    words = page_of(run).words
    assert "From noise to samples" not in words and "Nearest training" not in words and "No diagnostics yet" in words


@pytest.mark.parametrize("part", ["chains", "diagnostics", "neighbours"])
def test_parts_in_another_form_are_left_out_with_a_note(run, part):
    for broken in (
        {"updates": 9, "x": 1},
        {"updates": 9} | dict.fromkeys(ALL[part], None),
        {"updates": 9} | {key: [1] for key in ALL[part]},
    ):
        write(run, ALL | {part: broken})
        page = page_of(run)
        assert "that this version can show" in page.words and "Training" in page.words
    write(run, ALL | {part: "x"})
    assert "Training" in page_of(run).words


def spoiled(value):
    """The same with every text and every number in it replaced by markup, one after the other."""
    if isinstance(value, dict):
        for key in value:
            yield from ({**value, key: v} for v in spoiled(value[key]))
    elif isinstance(value, list):
        yield from ([v, *value[1:]] for v in (spoiled(value[0]) if value else ()))
    else:
        yield EVIL


def test_no_text_of_the_analysis_becomes_markup(run):
    tried = 0
    for part in ALL:
        for broken in spoiled(ALL[part]):
            write(run, ALL | {part: broken})
            page = page_of(run)
            assert page.count("script") == 1 and "<script>alert" not in page.raw
            tried += 1
    assert tried > 50


# --- charts -----------------------------------------------------------------------------------------------------------


def test_an_axis_maps_its_ends_and_clips():
    x = Axis([0, 10], 100, 200, tight=True)
    assert (x(0), x(5), x(10), x(99)) == (100, 150, 200, 200) and x.ticks[0] == 0 and x.ticks[-1] == 10
    log = Axis([0.01, 100], 0, 400, log=True)
    assert log(1) == pytest.approx(200) and log(-1) == 0 and 1 in log.ticks


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0], [float("nan")], [float("inf"), 1.0]])
def test_axes_of_next_to_nothing(values):
    for log in (False, True):
        axis = Axis(values, 0, 1, log=log)
        assert math.isfinite(axis(3.0)) and len(axis.ticks) >= 1


def test_a_line_leaves_out_what_is_no_number():
    chart = svg.draw(Chart("t", [Series("s", [0, 1, 2], [1.0, float("nan"), 3.0])], "x", "y"))
    (line,) = re.findall(r'class="line c0" d="([^"]*)"', chart)
    assert line.count("L") == 1 and "nan" not in chart.lower().replace("&quot;", "")
    assert "null" in chart


def test_titles_and_labels_are_text():
    for chart in (
        svg.draw(Chart(EVIL, [Series(EVIL, [0, 1], [0, 1])] * 2, EVIL, EVIL, mark=(0.5, EVIL), name=EVIL)),
        svg.draw(Chart(EVIL, [Series(EVIL, [0], [0])] * 2, EVIL, EVIL, dots=True)),
    ):
        assert "<script>" not in chart


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1500, "1,500"), (20000, "20k"), (-2.5, "−2.5"), (0.001, "0.001"), (2e6, "2e+06"), (1e-5, "1e-05")],
)
def test_ticks(value, shown):
    assert svg.tick(value) == shown


# --- several runs -----------------------------------------------------------------------------------------------------


def test_runs_side_by_side(run, tmp_path):
    other = tmp_path / "b" / "run"
    other.mkdir(parents=True)
    (other / "config.yaml").write_text(f"name: digits\nnz: 8\ndata:\n  name: digits\nextra: '{EVIL}'\n")
    (other / "metrics.json").write_text(json.dumps({"metrics": {"mse": 0.4, EVIL: EVIL}, "updates": 20}))
    page = Page(report.compare([run, other], tmp_path / "both.html").read_text(encoding="utf-8"))
    for words in ("2 runs side by side", "a/run, b/run", "nz", "16", "steady", "has no samples yet"):
        assert words in page.words, words
    assert page.count("mark") == 1 and "<mark>0.4</mark>" in page.raw  # the better of two
    assert page.count("script") == 1 and EVIL in page.words and "data.name" not in page.words


def test_runs_on_different_data_have_no_best(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("data:\n  name: mnist\n")
    (other / "metrics.json").write_text(json.dumps({"metrics": {"mse": 0.4}}))
    assert "<mark>" not in report.compare([run, other], tmp_path / "both.html").read_text(encoding="utf-8")


def test_equal_runs_have_no_difference(run, tmp_path):
    page = Page(report.compare([run, run, run], tmp_path / "three.html").read_text(encoding="utf-8"))
    assert "All runs have the same configuration" in page.words and "(3)" in page.words


def test_the_paper_stands_beside_a_run_on_its_data(run):
    result = {
        "name": "svhn",
        "updates": 9,
        "metrics": {"fid": 33.7, "mse_100": 0.0072},
        "data": {"name": "svhn"},
        "config": {},
    }
    (run / "metrics.json").write_text(json.dumps(result))
    words = page_of(run).words
    assert "The paper" in words and "29.44" in words and "0.008" in words
    (run / "metrics.json").write_text(json.dumps(result | {"data": {"name": "digits"}}))
    assert "29.44" not in page_of(run).words


def test_good_words_are_for_good_news(run):
    write(
        run, ALL | {"diagnostics": DIAGNOSED | {"verdict": "drifting"}, "neighbours": NEAR | {"nearer_than_test": 0.4}}
    )
    page = page_of(run)
    assert page.count("p", **{"class": "verdict good"}) == 0 and "Some samples may be copies" in page.words


def test_the_chains_of_a_table_are_their_energies(run):
    (run / "config.yaml").write_text("generator: {kind: table}\n")
    (run / "figures" / "chains-frames.png").unlink()
    page = page_of(run)
    assert "Energy along a chain" in page.words and "No energy profile yet" not in page.words
    assert 'data-name="chains"' in page.raw
