"""Who may import whom, and what no file may call. The sources are parsed, not run."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "lebm"

LEAVES = {"errors", "version", "words"}  # everyone may import these
SMALL = {"config", "rng", "prior", "generators", "sampler", "checkpoint"}
BELOW_LEARN = SMALL | {"methods", "model"}
ANY = None  # anything but the command line

# A room (a module, or a package with all its files) -> the rooms it may import, beside the leaves and itself.
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "words": set(),  # a vocabulary: data, generators and metrics of text share it
    "config": set(),
    "rng": set(),
    "sampler": set(),
    "log": set(),
    "checkpoint": set(),
    "metrics": set(),
    "mixture": set(),
    "prior": {"config", "mixture", "sampler"},  # a prior knows on which coordinates its chains walk
    "generators": {"config"},
    "model": SMALL | {"methods"},
    "likelihood": BELOW_LEARN,
    "learn": BELOW_LEARN,
    "methods": {"config", "prior", "generators"},  # ways to draw z: a model is made with them
    "fast": BELOW_LEARN | {"learn"},  # it stands in for learn_step and returns the same Step
    "data": {"config", "rng", "metrics"},  # download.py knows which Inception to fetch
    "runs": {"config", "checkpoint"},
    "state": BELOW_LEARN | {"learn", "runs"},
    "results": {"checkpoint"},
    "statistics": {"checkpoint", "metrics"},
    "published": set(),
    "cells": {"config", "runs", "published"},
    "tables": {"cells", "published"},
    "documents": {"cells", "tables", "results", "checkpoint"},
    "health": BELOW_LEARN | {"learn"},
    "evaluation": {"config", "data", "log", "methods", "metrics", "model"},
    "sentences": ANY,
    "image_metrics": ANY,
    "text_metrics": ANY,
    "training": ANY,
    "loop": BELOW_LEARN | {"data", "fast", "health", "learn", "log", "runs", "state"},
    "listing": BELOW_LEARN,
    "evaluate": ANY,
    "speed": ANY,
    "compare": ANY,
    "detector": ANY,
    "anomaly": ANY,
    "figures": ANY,
    "report": ANY,
    "analysis": ANY,
    "explore": ANY,
    "bench": ANY,
    "cli": ANY,
    "__init__": ANY,
    "__main__": {"cli"},
}
REFERENCE = ("sampler", "mixture", "prior", "generators", "model", "learn")  # the code that the results stand on

GLOBAL_SEEDS = {
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"),
    *("numpy.random.seed", "numpy.random.set_state", "random.seed", "torch.set_rng_state", "torch.cuda.set_rng_state"),
}
DRAWS = {f"torch.{name}" for name in ("randn", "rand", "randint", "randperm", "normal", "bernoulli", "multinomial")}
GLOBAL_DRAWS = {f"torch.{name}" for name in ("randn_like", "rand_like", "randint_like")}  # these take no generator everywhere
RUNS_CODE = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "torch.jit.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "joblib.load"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "compile", "__import__", "importlib.import_module"),
}


def sources():
    return {path.relative_to(SRC).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}


FILES = sources()


def room(name):
    """data/own.py -> data, prior.py -> prior."""
    return name.split("/")[0].removesuffix(".py")


def modules():
    return {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in FILES}


def imported_rooms(name, tree, known):
    """The rooms of ours that a file imports, wherever in it the import stands."""
    package = ["lebm", *Path(name).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            first, _, rest = target.partition(".")
            if first == "lebm":
                found = rest.split(".")[0]
                yield found if found in known else "__init__"


def known_rooms():
    return {m.split(".")[0] for m in modules()} - {"__init__", "__main__"}


def edges(files):
    known = known_rooms()
    return {(room(name), target) for name, tree in files.items() for target in imported_rooms(name, tree, known) if target != room(name)}


def broken(files):
    out = []
    for source, target in sorted(edges(files)):
        allowed = MAY_IMPORT.get(source, set())
        fine = (target in LEAVES or allowed is ANY or target in allowed) and target != "__init__"
        if not fine or (target == "cli" and source != "__main__"):
            out.append(f"{source} imports {target}")
    return out


def test_every_module_has_a_row_in_the_table():
    assert {room(name) for name in FILES} - set(MAY_IMPORT) == set()


def test_imports_keep_to_the_table():
    assert broken(FILES) == []


def test_nobody_imports_the_command_line_but_main():
    assert {source for source, target in edges(FILES) if target == "cli"} == {"__main__"}


def test_the_reference_never_imports_fast():
    assert not {source for source, target in edges(FILES) if target == "fast"} & {*REFERENCE, *SMALL}


def test_no_import_runs_in_a_circle():
    graph = {}
    for source, target in edges(FILES):
        graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(f"a circle of imports: {' -> '.join(e.args[1])}")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("sampler.py", "from lebm.config import Chain", "sampler imports config"),
        ("prior.py", "def f():\n    from lebm import fast", "prior imports fast"),
        ("learn.py", "import lebm.training", "learn imports training"),
        ("generators/image.py", "from ..model import load", "generators imports model"),
        ("training.py", "from lebm.cli import app", "training imports cli"),
        ("results.py", "from lebm import load", "results imports __init__"),
    ],
)
def test_a_forbidden_import_is_seen(name, text, complaint):
    assert broken({name: ast.parse(text)}) == [complaint]


# --- what is called -------------------------------------------------------------------------------------------------


def aliases(tree):
    """Local name -> what it stands for: np -> numpy, load -> pickle.load."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out.update({alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0] for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            out.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return out


def dotted(node):
    """a.b.c as text, or None for anything that is not a plain chain of names."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def names_used(tree):
    """Every name or chain of names in a file, spelled in full, with its line and the node."""
    short = aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            text = dotted(node)
            if text:
                first, dot, rest = text.partition(".")
                yield short.get(first, first) + dot + rest, node


def uses(tree, forbidden):
    return [f"line {node.lineno}: {name}" for name, node in names_used(tree) if name in forbidden]


def test_no_file_touches_a_global_seed():
    assert {name: found for name, tree in FILES.items() if (found := uses(tree, GLOBAL_SEEDS))} == {}


def test_the_global_stream_is_set_only_where_it_is_put_back():
    """model.py sets the state for initial weights inside torch.random.fork_rng, which restores it."""
    for name, tree in FILES.items():
        forks = [n for n in ast.walk(tree) if isinstance(n, ast.With) and any("fork_rng" in ast.dump(item) for item in n.items)]
        inside = {id(n) for fork in forks for n in ast.walk(fork)}
        outside = [n.lineno for full, n in names_used(tree) if full == "torch.random.set_rng_state" and id(n) not in inside]
        assert outside == [], name


def test_every_draw_of_the_reference_names_its_stream():
    for name, tree in FILES.items():
        if room(name) not in (*REFERENCE, "data"):
            continue
        short = aliases(tree)
        assert uses(tree, GLOBAL_DRAWS) == [], name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (text := dotted(node.func)):
                first, dot, rest = text.partition(".")
                if short.get(first, first) + dot + rest in DRAWS:
                    assert "generator" in {k.arg for k in node.keywords}, f"{name} line {node.lineno}: {text} without generator="


def safe_yaml_lines(tree):
    """yaml.load(text, Loader) is as safe as its loader: allowed where that is a class of the same file made from SafeLoader."""
    safe = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and {dotted(b) for b in n.bases} == {"yaml.SafeLoader"}} | {
        "yaml.SafeLoader"
    }
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "yaml.load")
    loaders = ((c.lineno, [*c.args[1:2], *(k.value for k in c.keywords if k.arg == "Loader")]) for c in calls)
    return {line for line, given in loaders if len(given) == 1 and dotted(given[0]) in safe}


def dangerous(name, tree):
    found = uses(tree, RUNS_CODE)
    found = [f for f in found if not (f.endswith(": yaml.load") and int(f.split()[1].rstrip(":")) in safe_yaml_lines(tree))]
    if name == "data/plain_pickle.py":  # the one reader of pickles, behind two walls of its own
        found = [f for f in found if not f.endswith(": pickle.Unpickler")]
    if name == "metrics/inception.py":  # one network, whose bytes are checked first
        found = [f for f in found if not f.endswith(": torch.jit.load")]
    return found


def test_no_file_reads_what_could_run_code():
    assert {name: found for name, tree in FILES.items() if (found := dangerous(name, tree))} == {}


def test_the_one_unpickler_overrides_find_class_and_checks_opcodes_first():
    tree = FILES["data/plain_pickle.py"]
    children = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and "pickle.Unpickler" in {dotted(b) for b in n.bases}]
    assert [{f.name for f in c.body if isinstance(f, ast.FunctionDef)} for c in children] == [{"find_class"}]
    uses_of_base = [node for name, node in names_used(tree) if name == "pickle.Unpickler"]
    assert len(uses_of_base) == 1  # as a base class, never called itself
    load = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "load_plain")
    calls = sorted((c.lineno, c.col_offset, ast.unparse(c.func)) for c in ast.walk(load) if isinstance(c, ast.Call))
    order = [text for _, _, text in calls]
    assert order.index("_check_opcodes") < next(i for i, text in enumerate(order) if "_Plain" in text)


def test_the_one_torchscript_is_checked_before_it_is_loaded():
    load = next(n for n in ast.walk(FILES["metrics/inception.py"]) if isinstance(n, ast.FunctionDef) and n.name == "load_inception")
    checks = [n.lineno for n in ast.walk(load) if isinstance(n, ast.Compare) and "SHA256" in ast.unparse(n)]
    loads = [n for n in ast.walk(load) if isinstance(n, ast.Call) and dotted(n.func) == "torch.jit.load"]
    assert len(checks) == len(loads) == 1 and checks[0] < loads[0].lineno
    assert ast.unparse(loads[0].args[0]) == "io.BytesIO(content)", "the very bytes that were checked"


def test_numpy_never_reads_a_pickle():
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                asked = [k for k in node.keywords if k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and k.value.value is False)]
                assert asked == [], f"{name} line {node.lineno}"


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("import torch\ntorch.manual_seed(1)", GLOBAL_SEEDS),
        ("import numpy as np\nnp.random.seed(1)", GLOBAL_SEEDS),
        ("from torch import manual_seed as go\ngo(1)", GLOBAL_SEEDS),
        ("from pickle import load\nload(f)", RUNS_CODE),
        ("import torch as t\nt.load(f)", RUNS_CODE),
        ("eval('1')", RUNS_CODE),
    ],
)
def test_a_forbidden_call_is_seen(text, forbidden):
    assert uses(ast.parse(text), forbidden)


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("import yaml\nyaml.load(t)", 1),
        ("import yaml\nyaml.load(t, yaml.Loader)", 1),
        ("import yaml\nclass L(yaml.SafeLoader):\n    pass\nyaml.load(t, L)", 0),
        ("import yaml\nclass L(yaml.UnsafeLoader):\n    pass\nyaml.load(t, L)", 1),
    ],
)
def test_yaml_is_read_by_safe_loaders_only(text, bad):
    assert len(dangerous("config.py", ast.parse(text))) == bad


def test_a_generators_own_seed_is_no_global_seed():
    assert uses(ast.parse("import torch\ntorch.Generator().manual_seed(1)"), GLOBAL_SEEDS) == []
