"""The documents against the code they describe: names, quoted lines, keys, commands, presets, metrics, links."""

import ast
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import torch
import typer
import yaml
from pydantic import BaseModel

import lebm
from lebm import cli
from lebm.config import NETWORKS, Config, OptimizerConfig, preset_names, resolve
from lebm.config.build import build, make_optimizers
from lebm.core.rng import stream
from lebm.data import DATASETS, Splits, load
from lebm.data.embedded import NOISE_TEST, NOISE_TRAIN
from lebm.health import shared_variance
from lebm.measure import METRICS, Evaluation, perplexity
from lebm.measure.evaluate import measure
from lebm.measure.language_model import Recipe
from lebm.measure.result import KEYS
from lebm.method import Batch, update
from lebm.run import Run
from lebm.sampler import SamplerSpec
from lebm.training.health import gradient_norms

ROOT = Path(__file__).parents[1]
PAGES = {
    p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
    for p in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "models" / "README.md"])
}
METHOD, PROTOCOL, CONFIGURATION = (PAGES[f"docs/{name}.md"] for name in ("method", "protocol", "configuration"))
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
WRITTEN_BY_RUNS = {"log.jsonl", "metrics.json", "config.yaml", "model.safetensors", "report.html"}
SECTIONS = "data|generator|method|optimizers|training|anomaly"
RESULT_KEYS = {"data.sha256"}  # not of the configuration


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.S)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M)


def new_names(text):
    """A page without the left cells of its tables old -> new, and without the entry of an old version."""
    text = text.split("\n## 0.1.0")[0]
    return re.sub(r"^\| .*? (?=\| .* \|$)", "", text, flags=re.M) if "| 0.1 | 0.2 |" in text else text


def ticks(text):
    """What stands between single backticks; one in a paragraph may be broken into two lines."""
    paragraphs = re.split(r"\n\s*\n|\n(?=[|\-#])", without_code(text))
    return [" ".join(t.split()) for paragraph in paragraphs for t in re.findall(r"`([^`]+)`", paragraph)]


def section(text, title):
    body = text.split(f"\n## {title}\n", 1)[1]
    return body.split("\n## ", 1)[0]


def first_cells(text, title):
    """The rows of a section's table by the first name between backticks."""
    rows = [line for line in section(text, title).splitlines() if line.startswith("| `")]
    return {ticks(row)[0]: [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows}


# --- names ----------------------------------------------------------------------------------------------------------


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


def models_in(annotation):
    """The sections that an annotation names, also inside a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def keys(model, prefix=""):
    """Every dotted key of a section; those of other kinds of a section too."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in models_in(field.annotation):
            yield from keys(inner, f"{prefix}{name}.")


CONFIG_KEYS = {*keys(Config)} | {
    f"optimizers.{name}{end}" for name in NETWORKS for end in ("", *(f".{k}" for k in OptimizerConfig.model_fields))
}


def is_file(name):
    places = ("", "src/lebm", "docs", "src/lebm/data", "runs")
    return name in WRITTEN_BY_RUNS or any((ROOT / place / name).exists() for place in places)


METHOD_NAMES = sorted({t for t in ticks(METHOD) if NAME.fullmatch(t)})


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_name_in_the_map_exists(name):
    assert resolves(name) or name in CONFIG_KEYS or is_file(name), f"docs/method.md names {name}, which is nowhere"


@pytest.mark.parametrize(
    "name", ["prior.EnergyPrior.scores", "lebm.nothing", "training.rate", "method.py.x", "sampling.langevin"]
)
def test_a_name_that_does_not_exist_is_seen(name):
    assert not (resolves(name) or name in CONFIG_KEYS or is_file(name))


def test_the_map_has_the_heart_of_the_method():
    names = {n.removeprefix("lebm.") for n in METHOD_NAMES}
    wanted = {f"method.Method.{verb}" for verb in ("sample", "encode", "reconstruct", "anomaly_score")}
    wanted |= {f"latent_ebm.LatentEBM.{verb}" for verb in ("losses", "log_joint", "posterior_score")}
    wanted |= {f"prior.EnergyPrior.{verb}" for verb in ("score", "log_prob")} | {"sampler.langevin", "method.update"}
    assert wanted <= names


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_the_configuration_exist(page):
    """Whatever looks like a dotted key, alone or as KEY=VALUE, in the text and in commands."""
    text = new_names(PAGES[page])
    spoken = [
        t
        for t in ticks(text)
        if re.match(rf"({SECTIONS})\.[a-z_]", t) and not re.search(r"[ (]|\.(py|json)$", t.split("=")[0])
    ]
    named = {t.split("=")[0].split(":")[0].removesuffix(".*") for t in spoken}
    named |= set(re.findall(r"--set (\S+?)=", text)) - {"KEY"}
    wrong = {name for name in named if name not in CONFIG_KEYS and name not in RESULT_KEYS and not resolves(name)}
    assert wrong == set()


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_the_text_exist(page):
    named = [t for t in ticks(new_names(PAGES[page])) if re.fullmatch(r"[\w./-]+(\.py|/)", t)]
    assert [name for name in named if not is_file(name)] == []


def test_what_is_said_of_sections_is_complete():
    """Every section and every key of a section without kinds is in the table of docs/configuration.md."""
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", section(CONFIGURATION, "Sections"), flags=re.M)[2:]
    table = {(ticks(first) or ["top level"])[0]: set(ticks(last)) for first, last in rows}
    sections = {name for name, field in Config.model_fields.items() if list(models_in(field.annotation))}
    assert set(table) == sections | {"top level"}
    assert table["top level"] == set(Config.model_fields) - sections
    for name in sections - {"generator", "method"}:
        (model,) = models_in(Config.model_fields[name].annotation)
        assert table[name] == set(model.model_fields), name


# --- the method -----------------------------------------------------------------------------------------------------


def test_every_numbered_equation_of_section_2_is_accounted_for():
    """(1) to (17): in the table, alone or as one end of a range, or named as absent."""
    text = section(METHOD, "From equation to function")
    seen = {int(n) for n in re.findall(r"\((\d+)\)", text)}
    for first, last in re.findall(r"\((\d+)\) to \((\d+)\)", text):
        seen |= set(range(int(first), int(last) + 1))
    assert seen == set(range(1, 18))


def quoted_lines():
    (code,) = blocks(section(METHOD, "Algorithm 1"), "python")
    return [line.split("  #")[0].strip() for line in code.splitlines()]


def test_quoted_code_is_the_code_in_its_order():
    source = (ROOT / "src" / "lebm" / "latent_ebm.py").read_text(encoding="utf-8")
    lines = [line.split("  #")[0].strip() for line in source.splitlines()]
    assert len(quoted_lines()) >= 7
    assert [code for code in quoted_lines() if code not in lines] == []
    places = [source.index(code) for code in quoted_lines()]
    assert places == sorted(places)


def test_the_model_from_parts_learns():
    _, code = blocks(METHOD, "python")
    names = {}
    exec(compile(code, "method.md", "exec"), names)
    assert torch.isfinite(names["method"].last.log_px)


def explained_columns():
    rows = [line for line in section(METHOD, "Reading the log").splitlines() if line.startswith("| `")]
    return {t for row in rows for t in ticks(row.split("|")[1])}


def test_every_column_of_the_log_is_explained(tmp_path):
    config = resolve({"preset": "digits", "training.updates": 1, "data.limit": 20})
    lebm.train(config, run=tmp_path / "run")
    (row,) = Run(tmp_path / "run").rows()
    assert set(row) <= explained_columns()


FLOW = {"layers": 1, "width": 8, "bins": 4}
WITH_ENCODER = {"method.posterior_start.kind": "encoder", "method.base": {"kind": "flow", **FLOW}}
VARIANTS = {
    "encoder and flows": {"preset": "digits", **WITH_ENCODER, "method.prior_start": {"kind": "flow", **FLOW}},
    "text": {"preset": "text-demo"},
    "table": {"nz": 2, "generator": {"kind": "table", "columns": 3}},
}


def columns(settings):
    """What one update puts into the log, besides what the loop adds."""
    pytest.importorskip("zuko")
    config = resolve(settings)
    method = build(config)
    if config.generator.kind == "text":
        splits = load(config)
        method.generator.set_facts(splits.facts)
        x = splits.train[:4]
    else:
        x = torch.zeros(4, *method.generator.shape)
    update(method, Batch(x, torch.arange(4)), make_optimizers(method, config), stream(0, "chain"))
    return {*method.scalars(), *gradient_norms(method)}


def test_columns_of_other_networks_and_generators_are_explained_and_no_others():
    of_the_loop = {"step", "epoch", "updates_per_second", "seconds", "warning", "start"}
    made = set().union(*(columns(settings) for settings in VARIANTS.values()))
    made |= set(shared_variance(torch.randn(9, 2), torch.randn(9, 2)))
    assert made | of_the_loop == explained_columns()


# --- docs/protocol.md -----------------------------------------------------------------------------------------------


def stream_names(tree):
    """The names given to core.rng.stream in a file, up to what varies: "sample/" of f"sample/{i}"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "stream" and len(node.args) > 1:
            for part in ast.walk(node.args[1]):
                if isinstance(part, ast.JoinedStr):
                    yield part.values[0].value
                elif isinstance(part, ast.Constant) and isinstance(part.value, str) and "/" not in part.value:
                    yield part.value


def test_every_named_stream_of_the_code_is_listed():
    listed = ticks(section(PROTOCOL, "Random numbers"))
    files = [
        p for p in (ROOT / "src" / "lebm").rglob("*.py") if p.parent.name != "fast"
    ]  # the page describes the reference
    used = {name for path in files for name in stream_names(ast.parse(path.read_text(encoding="utf-8")))}
    assert {"chain", "sample/", "infer", "infer/", "init", "data/epoch-", "split"} <= used
    assert [name for name in used if not any(re.fullmatch(re.escape(name) + r"\d*", t) for t in listed)] == []


def test_the_result_schema_is_the_programs():
    assert tuple(first_cells(PROTOCOL, "The result file")) == KEYS


def test_the_sampler_shown_is_one():
    (text,) = blocks(section(PROTOCOL, "The result file"), "json")
    assert SamplerSpec.from_dict(json.loads(text)).to_dict() == json.loads(text)


class Pixels:
    """Features without a network."""

    name, precision = "pixels", "float64"

    def __call__(self, pixels):
        return pixels.flatten(1).double()


SHORT = {"method.prior_chain.steps": 1, "method.posterior_chain.steps": 1}


def test_every_metric_is_described(rough_log_z, monkeypatch):
    x = load(resolve("digits")).test[:4]
    method = build(resolve({"preset": "digits", **SHORT}))
    ev = Evaluation(method, Splits(x, x), samples=4, features=Pixels())
    chosen = [name for name, metric in METRICS.items() if "image" in metric.modalities]
    made = set(list(measure(ev, chosen))[-1][0]) | text_numbers(monkeypatch)
    assert set(first_cells(PROTOCOL, "Metrics")) == made
    assert {number.name for metric in METRICS.values() for number in metric.numbers} <= made


def text_numbers(monkeypatch):
    monkeypatch.setattr(perplexity, "RECIPE", Recipe(embedding=4, hidden=4, epochs=1, unvalidated=1))
    config = resolve({"preset": "text-demo", **SHORT, "generator.hidden": 4})
    method, splits = build(config), load(config)
    method.generator.set_facts(splits.facts)
    some = Splits(splits.train[:20], splits.test[:4], facts=splits.facts)
    chosen = [name for name, metric in METRICS.items() if "text" in metric.modalities]
    return set(list(measure(Evaluation(method, some, samples=4, limit=2), chosen))[-1][0])


def test_splits_are_as_described():
    table = first_cells(PROTOCOL, "Data and splits")
    assert set(table) == set(DATASETS)
    number = lambda cell: int(cell.replace(",", ""))  # noqa: E731
    digits = load(resolve("digits"))
    assert (number(table["digits"][1]), number(table["digits"][2])) == (len(digits.train), len(digits.test))
    assert (number(table["noise"][1]), number(table["noise"][2])) == (NOISE_TRAIN, NOISE_TEST)
    for name in ("mnist", "svhn", "cifar10", "celeba"):  # the same numbers as in `Dataset.description`
        assert table[name][1] in DATASETS[name].description, name
        assert table[name][2] in DATASETS[name].description, name


def test_what_starts_at_p_0_is_said_to_start_there():
    """p_0 is N(0, I) in the paper; a run may have another, and most of ours have."""
    rows = {ticks(line)[0]: line for line in section(PROTOCOL, "Metrics").splitlines() if line.startswith("| `")}
    for name in ("fid", "fid_gaussian", "frechet_gaussian", "fppl_gaussian", "log_z"):
        assert "p_0" in rows[name] and "N(0, I)" not in rows[name], name


# --- links, presets, commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    targets = re.findall(r"\]\(([^)\s]+)\)", PAGES[page]) + re.findall(r'<img src="([^"]+)"', PAGES[page])
    for target in targets:
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), flags=re.M)
            anchors = {re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles}
            assert anchor in anchors, f"{page} links to {target}"


@pytest.mark.parametrize("page", sorted({*PAGES} - {"docs/results.md"}))  # there a result may have another name
def test_presets_named_in_the_pages_exist(page):
    folders = {name.split("/")[0] for name in preset_names()}
    pairs = re.findall(r"(?<![\w./-])([\w-]+)/([\w-]+)(?![\w./-])", " ".join(ticks(new_names(PAGES[page]))))
    named = {f"{data}/{method}" for data, method in pairs if data in folders}
    shown = {yaml.safe_load(text).get("name") for text in blocks(PAGES[page], "yaml")}
    assert named - shown - set(preset_names()) == set()


def test_all_presets_are_listed():
    text = section(CONFIGURATION, "All presets")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert {t for row in rows for t in ticks(row.split("|")[1])} == set(preset_names())
    starts = {name: getattr(resolve(name).method, "posterior_start", None) for name in preset_names()}
    (named,) = re.findall(r"from an encoder: (.*?)\.\n", text, flags=re.S)
    assert set(ticks(named)) == {name for name, start in starts.items() if start and start.kind == "encoder"}


def spoken_commands(text):
    """`lebm ...` in shell blocks and between backticks, as lists of words."""
    shell = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    lines = [*shell, *ticks(text)]
    for line in lines:
        if re.match(r"lebm [a-z]", line):
            yield shlex.split(line.split(" > ")[0], comments=True)[1:]


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page):
    group = typer.main.get_command(cli.app)
    for name, *arguments in spoken_commands(new_names(PAGES[page])):
        assert name in group.commands, f"{page}: lebm {name}"
        if arguments:
            group.commands[name].make_context(name, arguments)  # parses, does not run


@pytest.mark.parametrize("page", PAGES)
def test_options_named_alone_exist(page):
    group = typer.main.get_command(cli.app)
    commands = [group, *group.commands.values()]
    options = {o for c in commands for p in c.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    named = {option for t in ticks(new_names(PAGES[page])) for option in re.findall(r"(?<!\S)--[a-z][\w-]*", t)}
    assert named - options == set()


def test_an_option_that_does_not_exist_is_seen():
    group = typer.main.get_command(cli.app)
    with pytest.raises(Exception, match="(?i)no such option"):
        group.commands["demo"].make_context("demo", ["--nothing"])


@pytest.mark.parametrize("page", PAGES)
def test_configurations_shown_are_valid(page):
    for text in blocks(PAGES[page], "yaml"):
        resolve(yaml.safe_load(text))
    for names in re.findall(r"--metrics ([\w,]+)", PAGES[page]):
        assert set(names.split(",")) - {"NAME"} <= set(METRICS), page


def test_the_paper_is_what_the_configuration_page_shows():
    text = next(b for b in blocks(CONFIGURATION, "yaml") if b.startswith("method:"))
    assert resolve(yaml.safe_load(text)).method == Config().method
