"""docs/method.md and docs/protocol.md against the code they describe: names, quoted lines, log columns, result keys."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import pytest
import torch

import lebm
from lebm import evaluate, image_metrics, results, text_metrics
from lebm.config import Config, preset_names, resolve
from lebm.data import DATASETS, Splits, load
from lebm.data.small import NOISE_TEST, NOISE_TRAIN
from lebm.learn import describe, learn_step, make_optimizer
from lebm.metrics.language_model import Recipe
from lebm.rng import stream

ROOT = Path(__file__).parents[1]
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
WRITTEN_BY_RUNS = {"log.jsonl", "metrics.json", "config.yaml", "model.safetensors", "report.html"}


def ticks(text):
    """What stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def section(text, title):
    body = text.split(f"\n## {title}\n", 1)[1]
    return body.split("\n## ", 1)[0]


def resolves(name):
    """Import as much of lebm.NAME as is modules, then take attributes."""
    parts = name.removeprefix("lebm.").split(".")
    thing = lebm
    for i, part in enumerate(parts):
        try:
            thing = importlib.import_module("lebm." + ".".join(parts[: i + 1]))
        except ImportError:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
    return True


def is_config_key(name):
    thing = Config()
    for part in name.split("."):
        if not dataclasses.is_dataclass(thing) or not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def is_file(name):
    return name in WRITTEN_BY_RUNS or any((ROOT / place / name).is_file() for place in ("", "src/lebm", "docs"))


METHOD_NAMES = sorted({t for t in ticks(METHOD) if NAME.fullmatch(t)})


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_name_in_the_map_exists(name):
    assert resolves(name) or is_config_key(name) or is_file(name), f"docs/method.md names {name}, which is nowhere"


@pytest.mark.parametrize("name", ["prior.EnergyPrior.scores", "lebm.nothing", "learning.rate", "learn.py.x", "sampling.langevin", "learned.py"])
def test_a_name_that_does_not_exist_is_seen(name):
    assert not (resolves(name) or is_config_key(name) or is_file(name))


def test_the_map_has_the_heart_of_the_method():
    names = {n.removeprefix("lebm.") for n in METHOD_NAMES}
    wanted = {f"model.LatentEBM.{m}" for m in ("log_joint", "posterior_score", "sample", "infer", "reconstruct", "anomaly_score")}
    wanted |= {f"prior.EnergyPrior.{m}" for m in ("f", "score", "log_prob", "draw_base")} | {"sampler.langevin", "learn.learn_step", "rng.stream"}
    assert wanted <= names


def test_every_numbered_equation_of_section_2_is_accounted_for():
    """(1) to (17): in the table, alone or as one end of a range, or named as absent."""
    text = section(METHOD, "From equation to function")
    seen = {int(n) for n in re.findall(r"\((\d+)\)", text)}
    for first, last in re.findall(r"\((\d+)\) to \((\d+)\)", text):
        seen |= set(range(int(first), int(last) + 1))
    assert seen == set(range(1, 18))


def quoted_lines():
    rows = [line for line in section(METHOD, "Algorithm 1, line by line").splitlines() if line.startswith("|")]
    return [code for row in rows[2:] for code in ticks(row)]


def test_quoted_code_is_the_code():
    source = "\n".join((ROOT / "src" / "lebm" / f).read_text(encoding="utf-8") for f in ("learn.py", "loop.py"))
    lines = [line.split("  #")[0].strip() for line in source.splitlines()]
    assert len(quoted_lines()) >= 7
    assert [code for code in quoted_lines() if code not in lines] == []


def test_quoted_code_stands_in_the_order_of_the_algorithm():
    source = (ROOT / "src" / "lebm" / "learn.py").read_text(encoding="utf-8")
    places = [source.index(code) for code in quoted_lines()[1:]]
    assert places == sorted(places)


def test_every_column_of_the_log_is_explained(tmp_path):
    config = resolve({"preset": "digits", "training.steps": 1, "data.limit": 20})
    lebm.train(config, run=tmp_path / "run")
    (row,) = lebm.log.read(tmp_path / "run" / "log.jsonl")
    explained = {t for line in section(METHOD, "Reading the log").splitlines() if line.startswith("| `") for t in ticks(line.split("|")[1])}
    assert set(row) == explained


def test_columns_that_a_generator_adds_are_explained_too():
    config = resolve("digits")
    model = lebm.LatentEBM(config)
    x = torch.zeros(3, 1, 8, 8)
    step = learn_step(model, x, make_optimizer(model, config.learning), config.chains, config.learning, stream(0, "chain"))
    assert set(describe(step, model, x)) <= set(ticks(section(METHOD, "Reading the log")))


def stream_names(tree):
    """The names given to rng.stream in a file, up to what varies: "sample/" of f"sample/{i}"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "stream" and len(node.args) > 1:
            for part in ast.walk(node.args[1]):
                if isinstance(part, ast.JoinedStr):
                    yield part.values[0].value
                elif isinstance(part, ast.Constant) and isinstance(part.value, str) and "/" not in part.value:
                    yield part.value


def test_every_named_stream_of_the_code_is_listed():
    listed = ticks(section(METHOD, "Randomness"))
    files = [p for p in (ROOT / "src" / "lebm").rglob("*.py") if p.parent.name != "fast"]  # the page describes the reference
    used = {name for path in files for name in stream_names(ast.parse(path.read_text(encoding="utf-8")))}
    assert {"chain", "sample/", "infer", "infer/", "init", "data/epoch-", "split"} <= used
    missing = [name for name in used if not any(re.fullmatch(re.escape(name) + r"\d*", t) for t in listed)]
    assert set(missing) <= {"noise"}  # the random pixels of dry runs


# --- docs/protocol.md -----------------------------------------------------------------------------------------------


def first_cells(title):
    rows = [line for line in section(PROTOCOL, title).splitlines() if line.startswith("| `")]
    return {ticks(row)[0]: [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows}


def test_the_result_schema_is_the_programs():
    assert tuple(first_cells("The result file")) == results.KEYS


class Pixels:
    """Features without a network."""

    name, precision = "pixels", "float64"

    def __call__(self, pixels):
        return pixels.flatten(1).double()


def test_every_metric_is_described(rough_log_z, monkeypatch):
    digits = resolve({"preset": "digits", "chains.prior.steps": 1, "chains.posterior.steps": 1})
    x = load(digits).test[:4]
    ev = evaluate.Evaluation(lebm.LatentEBM(digits), Splits(x, x), samples=4, features=Pixels())
    made = set(list(evaluate.measure(ev, list(image_metrics.METRICS)))[-1][0])
    assert set(first_cells("Metrics")) == made | text_numbers(monkeypatch)


def text_numbers(monkeypatch):
    monkeypatch.setattr(text_metrics, "RECIPE", Recipe(embedding=4, hidden=4, epochs=1, alone=1))
    config = resolve("text-demo", ["chains.prior.steps=1", "chains.posterior.steps=1", "generator.hidden=4"])
    model, splits = lebm.LatentEBM(config), load(config)
    model.generator.take(splits.facts)
    ev = evaluate.Evaluation(model, Splits(splits.train[:20], splits.test[:4], facts=splits.facts), samples=4, limit=2)
    return set(list(evaluate.measure(ev, list(text_metrics.METRICS)))[-1][0])


def test_splits_are_as_described():
    table = first_cells("Data and splits")
    assert set(table) == set(DATASETS)
    number = lambda cell: int(cell.replace(",", ""))  # noqa: E731
    digits = load(resolve("digits"))
    assert (number(table["digits"][1]), number(table["digits"][2])) == (len(digits.train), len(digits.test))
    assert (number(table["noise"][1]), number(table["noise"][2])) == (NOISE_TRAIN, NOISE_TEST)
    for name in ("mnist", "svhn", "cifar10", "celeba"):  # the same numbers as in `Dataset.description`
        assert table[name][1] in DATASETS[name].description, name
        assert table[name][2] in DATASETS[name].description, name


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]))
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles}, f"{page} links to {target}"


def test_presets_named_in_the_pages_exist():
    words = {t for page in ("CHANGELOG.md", "docs/method.md") for t in ticks((ROOT / page).read_text(encoding="utf-8"))}
    assert {"digits", "celeba128", "svhn"} <= words & set(preset_names())
    listed = re.search(r"- Presets (.*)\.", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert set(ticks(listed.group(1))) == set(preset_names())


def test_the_readme_names_every_preset_that_starts_from_an_encoder():
    (named,) = re.findall(r"start from an encoder: (.*?)\.\n", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(ticks(named)) == {name for name in preset_names() if resolve(name).draw.posterior == "warm"}


def test_what_starts_at_p_0_is_said_to_start_there():
    """p_0 is N(0, I) in the paper; a run may have fitted another, and most of ours have."""
    rows = {ticks(line)[0]: line for line in section(PROTOCOL, "Metrics").splitlines() if line.startswith("| `")}
    for name in ("fid", "fid_gaussian", "frechet_gaussian", "fppl_gaussian", "log_z"):
        assert "p_0" in rows[name] and "N(0, I)" not in rows[name], name
