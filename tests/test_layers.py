"""Who may import whom, and what no file may call. The sources are parsed, not run."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "lebm"

# Seven layers, the lowest first. A file imports from its own layer or a lower one.
LAYERS = (
    {"core"},
    {"sampler", "start", "prior", "generators"},
    {"method", "latent_ebm", "health"},
    {"extensions", "baselines"},
    {"modalities", "data", "config"},
    {"training", "run", "measure", "show", "detect", "fast"},
    {"cli", "__init__", "__main__"},
)
LAYER = {room: i for i, rooms in enumerate(LAYERS) for room in rooms}
PAPER = ("core", "sampler", "start", "prior", "generators", "method", "latent_ebm", "health")
REFERENCE = (*PAPER, "extensions", "baselines", "data")  # every random draw there names its stream
MODALITY_ROOMS = ("modalities", "config", "fast")  # the rooms that may ask which kind of generator they have
MODALITIES = {f"{kind}{what}" for kind in ("Image", "Text", "Table") for what in ("Generator", "Config")}
MOST_ENTRIES, LONGEST_LINE = 26, 120
# Libraries that take long to load: a program waits for them only where it needs them.
LATE = {"scipy", "sklearn", "matplotlib", "pooch", "zuko", "tensorboard", "PIL", "pandas", "triton"}

GLOBAL_SEEDS = {
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.set_rng_state", "torch.cuda.set_rng_state"),
    *("numpy.random.seed", "numpy.random.set_state", "random.seed"),
}
DRAWS = {f"torch.{name}" for name in ("randn", "rand", "randint", "randperm", "normal", "bernoulli", "multinomial")}
GLOBAL_DRAWS = {
    f"torch.{name}" for name in ("randn_like", "rand_like", "randint_like")
}  # these take no generator everywhere
RUNS_CODE = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "torch.jit.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "joblib.load"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("eval", "exec", "compile", "__import__", "importlib.import_module"),
}


def sources():
    paths = sorted(SRC.rglob("*.py"))
    return {path.relative_to(SRC).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


FILES = sources()


def room(name):
    """data/text.py -> data, prior.py -> prior."""
    return name.split("/")[0].removesuffix(".py")


def module(name):
    """data/text.py -> data.text, data/__init__.py -> data."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(name) for name in FILES}


# --- imports ----------------------------------------------------------------------------------------------------------


def is_for_types_only(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node, inside_functions=True):
    """Every import statement below the node but those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif is_for_types_only(child):
            for other in child.orelse:
                yield from statements(other, inside_functions)
        elif inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from statements(child, inside_functions)


def targets(name, node):
    """What an import statement names, spelled in full: lebm.core.errors.UserError, torch.nn."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    package = ["lebm", *Path(name).parent.parts]
    base = package[: len(package) - node.level + 1] if node.level else []
    origin = ".".join([*base, *([node.module] if node.module else [])])
    return [f"{origin}.{alias.name}" for alias in node.names]


def imported(name, tree, inside_functions=True):
    return [target for node in statements(tree, inside_functions) for target in targets(name, node)]


def rooms_imported(name, tree):
    """The rooms of this package that a file imports; `__init__` stands for what the package itself gives, but its
    version."""
    for target in imported(name, tree):
        if target == "lebm.__version__":
            continue
        first, _, rest = target.partition(".")
        if first == "lebm":
            yield rest.split(".")[0] if rest.split(".")[0] in LAYER else "__init__"


def broken(files):
    out = set()
    for name, tree in files.items():
        for other in rooms_imported(name, tree):
            if other != room(name) and LAYER[other] > LAYER[room(name)]:
                out.add(f"{room(name)} imports {other}")
    return sorted(out)


def test_every_file_belongs_to_a_layer():
    assert {room(name) for name in FILES} - set(LAYER) == set()


def test_imports_go_to_the_same_layer_or_a_lower_one():
    known = {name: tree for name, tree in FILES.items() if room(name) in LAYER}
    assert broken(known) == []


def test_the_paper_imports_no_extension():
    assert {room(name) for name, tree in FILES.items() if "extensions" in set(rooms_imported(name, tree))} & set(
        PAPER
    ) == set()


def test_nobody_imports_the_command_line_but_main():
    using = {room(name) for name, tree in FILES.items() if "cli" in set(rooms_imported(name, tree))}
    assert using - {"cli"} == {"__main__"}


def test_only_the_command_line_knows_its_libraries():
    using = {}
    for name, tree in FILES.items():
        found = {t.split(".")[0] for t in imported(name, tree)} & {"typer", "rich", "click"}
        if found and room(name) != "cli":
            using[name] = found
    assert using == {}


def loaded_with(start):
    """The modules of this package that are loaded with the given ones, and the first names of foreign ones."""
    files, queue, ours, foreign = {module(name): name for name in FILES}, list(start), set(), set()
    while queue:
        one = queue.pop()
        if one in ours:
            continue
        ours.add(one)
        queue += [parent for parent in [one.rpartition(".")[0]] if parent]
        for target in imported(files[one], FILES[files[one]], inside_functions=False):
            first, _, path = target.partition(".")
            if first != "lebm":
                foreign.add(first)
            while path and path not in files:
                path = path.rpartition(".")[0]
            queue += [path] if first == "lebm" and path else []
    return ours, foreign


def test_heavy_libraries_are_loaded_only_where_they_are_needed():
    """Not with the package, the paper's files, training, a run, or the command line before it has work."""
    rooms = ("__init__", "cli", "core", "config", "training", "run", "modalities", *PAPER)
    start = ["fast", *(module(n) for n in FILES if room(n) in rooms)]
    assert loaded_with(start)[1] & LATE == set()


def test_the_command_line_answers_before_torch_is_loaded():
    start = [module(n) for n in FILES if room(n) in ("__init__", "__main__", "cli")]
    assert "torch" not in loaded_with(start)[1]


def test_no_import_runs_in_a_circle():
    """Of modules, as they are loaded; what a function imports when it is called cannot close a circle."""
    graph = {}
    for name, tree in FILES.items():
        graph[module(name)] = set()
        for target in imported(name, tree, inside_functions=False):
            first, _, path = target.partition(".")
            while path and path not in MODULES:
                path = path.rpartition(".")[0]
            if first == "lebm" and path and path != module(name):
                graph[module(name)].add(path)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(f"a circle of imports: {' -> '.join(e.args[1])}")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("sampler.py", "from lebm.config import Config", "sampler imports config"),
        ("prior.py", "def f():\n    from lebm import fast", "prior imports fast"),
        ("latent_ebm.py", "from lebm.extensions.bases import MixtureBase", "latent_ebm imports extensions"),
        ("method.py", "import lebm.training.loop", "method imports training"),
        ("generators/images.py", "from ..method import Method", "generators imports method"),
        ("data/text.py", "if True:\n    from lebm.run import load", "data imports run"),
        ("training/train.py", "from lebm.cli import app", "training imports cli"),
        ("measure/fid.py", "from lebm import load", "measure imports __init__"),
        ("measure/fid.py", "import lebm", "measure imports __init__"),
    ],
)
def test_a_forbidden_import_is_found(name, text, complaint):
    assert broken({name: ast.parse(text)}) == [complaint]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("training/train.py", "from lebm.run import load\nfrom lebm import data"),
        ("health.py", "if TYPE_CHECKING:\n    from lebm.training.loop import Loop"),
        ("config/build.py", "def f():\n    from lebm.extensions.bases import MixtureBase"),
        ("data/text.py", "from .batches import Batches"),
    ],
)
def test_an_allowed_import_is_no_complaint(name, text):
    assert broken({name: ast.parse(text)}) == []


# --- the shape of the sources -----------------------------------------------------------------------------------------


def test_a_newcomer_finds_few_entries():
    entries = [path.name for path in SRC.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_lines_fit_on_a_screen():
    long = {}
    for name in FILES:
        lines = (SRC / name).read_text(encoding="utf-8").splitlines()
        found = [i for i, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]
        if found:
            long[name] = found
    assert long == {}


def last_name(node):
    """The last name of a chain: method.generator -> generator."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def calls(tree, *names):
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) in names]


def asks_for_abilities(tree):
    """Where a generator is asked whether it has an attribute, instead of having it with a default."""
    found = [n for n in calls(tree, "getattr", "hasattr") if len(n.args) > 1]
    found = [n for n in found if len(n.args) == 3 or isinstance(n.args[1], ast.Constant)]
    return [n.lineno for n in found if last_name(n.args[0]) in ("generator", "g", "gen")]


def asks_for_modality(tree):
    """Where code branches on the class of a generator or of its section."""
    found = [n for n in calls(tree, "isinstance", "issubclass") if len(n.args) == 2]
    return [n.lineno for n in found if {last_name(part) for part in ast.walk(n.args[1])} & MODALITIES]


def test_no_generator_is_asked_for_optional_abilities():
    assert {name: found for name, tree in FILES.items() if (found := asks_for_abilities(tree))} == {}


def test_only_the_rooms_of_modalities_ask_which_one_they_have():
    found = {name: lines for name, tree in FILES.items() if (lines := asks_for_modality(tree))}
    assert {name: lines for name, lines in found.items() if room(name) not in MODALITY_ROOMS} == {}


def test_questions_to_a_generator_are_found():
    for text in ("getattr(method.generator, 'trim', None)", "hasattr(generator, 'score')", "getattr(g, 'facts')()"):
        assert asks_for_abilities(ast.parse(text))
    for text in (
        "isinstance(g, TextGenerator)",
        "isinstance(c.generator, (ImageConfig, TableConfig))",
        "isinstance(x, generators.ImageGenerator | None)",
    ):
        assert asks_for_modality(ast.parse(text))
    for text in ("getattr(module, 'shape', None)", "getattr(c.generator, c.generator.SIZE_KEY)"):
        assert not asks_for_abilities(ast.parse(text))
    assert not asks_for_modality(ast.parse("isinstance(model, Method)"))


# --- what is called -------------------------------------------------------------------------------------------------


def aliases(tree):
    """Local name -> what it stands for: np -> numpy, load -> pickle.load."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                out[alias.asname or first] = alias.name if alias.asname else first
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
    """config/build.py sets the state for initial weights inside torch.random.fork_rng, which restores it."""
    for name, tree in FILES.items():
        blocks = [n for n in ast.walk(tree) if isinstance(n, ast.With)]
        forks = [n for n in blocks if any("fork_rng" in ast.dump(item) for item in n.items)]
        inside = {id(n) for fork in forks for n in ast.walk(fork)}
        setting = [n for full, n in names_used(tree) if full == "torch.random.set_rng_state"]
        assert [n.lineno for n in setting if id(n) not in inside] == [], name


def test_every_draw_of_the_reference_names_its_stream():
    for name, tree in FILES.items():
        if room(name) not in REFERENCE:
            continue
        short = aliases(tree)
        assert uses(tree, GLOBAL_DRAWS) == [], name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (text := dotted(node.func)):
                first, dot, rest = text.partition(".")
                if short.get(first, first) + dot + rest in DRAWS:
                    assert "generator" in {k.arg for k in node.keywords}, (
                        f"{name} line {node.lineno}: {text} without generator="
                    )


def safe_yaml_lines(tree):
    """yaml.load(text, Loader) is as safe as its loader: allowed where that is a class of the same file made from
    SafeLoader."""
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    safe = {n.name for n in classes if {dotted(b) for b in n.bases} == {"yaml.SafeLoader"}} | {"yaml.SafeLoader"}
    found = calls(tree, "yaml.load")
    loaders = ((c.lineno, [*c.args[1:2], *(k.value for k in c.keywords if k.arg == "Loader")]) for c in found)
    return {line for line, given in loaders if len(given) == 1 and dotted(given[0]) in safe}


def fixed_module_lines(tree):
    """import_module of a module of this package, or of one that a constant table names."""
    found = calls(tree, "importlib.import_module", "import_module")
    texts = ((c.lineno, ast.unparse(c.args[0])) for c in found)
    return {line for line, text in texts if text.startswith(("f'lebm.", "'lebm.", "_PLACES["))}


ALLOWED = {  # the one reader of pickles, behind two walls; and one network, whose bytes are checked first
    "data/plain_pickle.py": "pickle.Unpickler",
    "measure/inception.py": "torch.jit.load",
}


def dangerous(name, tree):
    fine = {("yaml.load", line) for line in safe_yaml_lines(tree)}
    fine |= {("importlib.import_module", line) for line in fixed_module_lines(tree)}
    nodes = [(full, node.lineno) for full, node in names_used(tree) if full in RUNS_CODE]
    return [f"line {line}: {full}" for full, line in nodes if (full, line) not in fine and ALLOWED.get(name) != full]


def test_no_file_reads_what_could_run_code():
    assert {name: found for name, tree in FILES.items() if (found := dangerous(name, tree))} == {}


def test_the_one_unpickler_overrides_find_class_and_checks_opcodes_first():
    tree = FILES["data/plain_pickle.py"]
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    children = [c for c in classes if "pickle.Unpickler" in {dotted(b) for b in c.bases}]
    assert [{f.name for f in c.body if isinstance(f, ast.FunctionDef)} for c in children] == [{"find_class"}]
    uses_of_base = [node for name, node in names_used(tree) if name == "pickle.Unpickler"]
    assert len(uses_of_base) == 1  # as a base class, never called itself
    load = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "load_plain")
    found = [c for c in ast.walk(load) if isinstance(c, ast.Call)]
    order = [text for _, _, text in sorted((c.lineno, c.col_offset, ast.unparse(c.func)) for c in found)]
    assert order.index("_check_opcodes") < next(i for i, text in enumerate(order) if "_Plain" in text)


def test_the_one_torchscript_is_checked_before_it_is_loaded():
    functions = [n for n in ast.walk(FILES["measure/inception.py"]) if isinstance(n, ast.FunctionDef)]
    (load,) = [n for n in functions if calls(n, "torch.jit.load")]
    checks = [n.lineno for n in ast.walk(load) if isinstance(n, ast.Compare) and "SHA256" in ast.unparse(n)]
    loads = calls(load, "torch.jit.load")
    assert len(checks) == len(loads) == 1 and checks[0] < loads[0].lineno
    assert ast.unparse(loads[0].args[0]) == "io.BytesIO(content)", "the very bytes that were checked"


def test_numpy_never_reads_a_pickle():
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                asked = [k.value for k in node.keywords if k.arg == "allow_pickle"]
                assert [v for v in asked if ast.unparse(v) != "False"] == [], f"{name} line {node.lineno}"


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("import torch\ntorch.manual_seed(1)", GLOBAL_SEEDS),
        ("import numpy as np\nnp.random.seed(1)", GLOBAL_SEEDS),
        ("from torch import manual_seed as go\ngo(1)", GLOBAL_SEEDS),
        ("from pickle import load\nload(f)", RUNS_CODE),
        ("import torch as t\nt.load(f)", RUNS_CODE),
        ("eval('1')", RUNS_CODE),
        ("exec('1')", RUNS_CODE),
    ],
)
def test_a_forbidden_call_is_found(text, forbidden):
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


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("import importlib\nimportlib.import_module(name)", 1),
        ("import importlib\nimportlib.import_module(f'lebm.data.{name}')", 0),
        ("import importlib\nimportlib.import_module(_PLACES[name])", 0),
    ],
)
def test_only_modules_of_this_package_are_imported_by_name(text, bad):
    assert len(dangerous("data/__init__.py", ast.parse(text))) == bad


def test_a_generators_seed_is_no_global_seed():
    assert uses(ast.parse("import torch\ntorch.Generator().manual_seed(1)"), GLOBAL_SEEDS) == []
