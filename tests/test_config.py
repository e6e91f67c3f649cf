"""One immutable object: preset < file < --set; everything else is refused in a sentence that names the key."""

import contextlib
import json
import math
import re
import subprocess
import sys

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lebm.config import (
    MAX_CONFIG_BYTES,
    Config,
    ImageConfig,
    LatentEBMConfig,
    MixtureBase,
    Schedule,
    TextConfig,
    check_learning,
    differences,
    expand,
    flatten,
    from_dict,
    json_schema,
    merge,
    preset_names,
    resolve,
)
from lebm.core.errors import ConfigError
from lebm.core.image_sizes import hidden_layers

PRESETS = [
    "celeba128/paper", "celeba64/best", "celeba64/paper", "cifar10/best", "cifar10/first", "cifar10/paper", "cifar10/warm", "digits/paper",
    "images/paper", "mnist/anomaly", "mnist/anomaly-paper", "mnist/paper", "ptb/gaussian", "ptb/paper", "snli/gaussian", "snli/paper",
    "svhn/best", "svhn/gaussian", "svhn/paper", "svhn/warm", "text-demo/paper", "text/paper", "yahoo/gaussian", "yahoo/paper",
]  # fmt: skip


def refused(source, *parts, settings=()):
    """The source is refused in one short line that contains all the parts."""
    with pytest.raises(ConfigError) as e:
        resolve(source, settings)
    message = str(e.value)
    assert "\n" not in message and len(message) < 600 and all(str(p) in message for p in parts), message
    return message


def chain(section):
    return section.steps, section.step_size


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="my.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


# --- layers -------------------------------------------------------------------------------------------------------


def test_every_preset_is_there():
    assert set(PRESETS) <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_a_run_folder_and_may_begin_to_learn(name, tmp_path):
    config = resolve(name)
    assert config.name == config.based_on == name
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert resolve(tmp_path / "config.yaml") == resolve(tmp_path) == resolve(str(tmp_path)) == config
    assert from_dict(config.to_dict()) == config and resolve(config) == config
    assert hash(config) == hash(resolve(name))
    assert config.to_yaml() == resolve(tmp_path).to_yaml()
    check_learning(config)


@pytest.mark.parametrize(
    ("name", "nz", "size", "ngf", "k0", "k1"),
    [("svhn", 100, 32, 64, 60, 20), ("cifar10", 128, 32, 128, 60, 40), ("celeba64", 100, 64, 128, 60, 20), ("celeba128", 100, 128, 128, 80, 40)],
)  # fmt: skip
def test_the_papers_settings(name, nz, size, ngf, k0, k1):
    c = resolve(name)
    assert c == resolve(f"{name}/paper")
    assert (c.nz, c.generator.size, c.generator.ngf, c.generator.sigma) == (nz, size, ngf, 0.3)
    assert chain(c.method.prior_chain) == (k0, 0.4) and chain(c.method.posterior_chain) == (k1, 0.1)
    for section in (c.method.prior_chain, c.method.posterior_chain):
        assert (section.first_steps, section.noise, section.drift_limit) == ((), 1.0, 0.0)
    assert (c.optimizers["prior"].rate, c.optimizers["generator"].rate, c.method.energy.leak) == (2e-5, 1e-4, 0.2)


def test_preset_under_file_under_set(write):
    file = write("preset: svhn\nname: mine\nnz: 50\nmethod: {prior_chain: {steps: 30}}\ntraining.updates: 7\n")
    c = resolve(file, ["nz=20", "optimizers.prior.rate=2e-5"])
    assert (c.name, c.based_on, c.nz) == ("mine", "svhn/paper", 20)
    assert chain(c.method.prior_chain) == (30, 0.4)  # the file's number of steps, the preset's step size
    assert c.data.name == "svhn" and c.generator.widths == (8, 4, 2)  # from the preset
    assert c.training.updates == 7 and c.training.batch == 100


def test_a_setting_reaches_a_default_that_no_preset_names():
    assert chain(resolve("digits", ["method.prior_chain.steps=5"]).method.prior_chain) == (5, 0.4)
    assert chain(resolve({"method.posterior_chain": {"step_size": 0.2}}).method.posterior_chain) == (20, 0.2)
    assert resolve("digits", ["optimizers.generator.weight_decay=0.1"]).optimizers["generator"].rate == 2e-3
    assert resolve({}, ["optimizers.prior.weight_decay=0.1"]).optimizers["prior"].rate == 2e-5


def test_later_settings_win():
    assert resolve("digits", ["seed=1", "seed=2", "seed=3"]).seed == 3


def test_a_mapping_takes_dotted_and_nested_keys():
    mapping = {"preset": "digits", "training.updates": 3, "training": {"batch": 4}}
    assert resolve(mapping) == resolve("digits", ["training.updates=3", "training.batch=4"])
    assert resolve("digits").with_values(**{"training.updates": 9}).training.updates == 9
    assert expand({"a.b": 1, "a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert flatten({"a": {"b": 1, "c": [2]}}) == {"a.b": 1, "a.c": [2]}
    assert merge({"a": {"b": 1}, "c": 1}, {"a": {"d": 2}, "c": {"e": 3}}) == {"a": {"b": 1, "d": 2}, "c": {"e": 3}}


def test_a_folder_or_file_named_like_a_preset_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist" / "paper").mkdir(parents=True)
    (tmp_path / "svhn").write_text("not: a config")
    assert resolve("mnist").name == resolve("mnist/paper").name == "mnist/paper"
    assert resolve("svhn").name == "svhn/paper"


def test_frozen():
    config = resolve("digits")
    with pytest.raises(pydantic.ValidationError):
        config.nz = 3
    with pytest.raises(pydantic.ValidationError):
        config.training.updates = 3


def test_without_an_energy_the_base_is_drawn_exactly():
    assert resolve("svhn/gaussian").method.prior_chain.steps == 0
    config = resolve("digits", ["method.energy=null"])
    assert config.method.prior_chain.steps == 0 and config.method.energy is None
    refused("digits", "method.prior_chain.steps is 5", settings=["method.energy=null", "method.prior_chain.steps=5"])
    refused("svhn", "method.prior_chain.steps is 60", settings=["method.energy=null"])
    refused("digits", "method.prior_start.kind is 'replay'",
            settings=["method.energy=null", "method.prior_start.kind=replay"])  # fmt: skip


def test_what_differs_from_the_preset_or_from_the_defaults():
    assert differences(resolve("svhn/warm")) == {} == differences(Config())
    config = resolve("digits", ["nz=3", "method.energy=null", "method.base={kind: whitened, memory: 9}"])
    energy = {"width": 100, "depth": 2, "activation": "leaky_relu", "leak": 0.2, "l2": 0.0}
    assert differences(config) == {
        "nz": (16, 3),
        "method.energy": (energy, None),
        "method.base": ({"kind": "standard"}, {"kind": "whitened", "memory": 9}),
        "method.prior_chain.steps": (60, 0),
    }
    assert differences(resolve({"training.batch": 7})) == {"training.batch": (100, 7)}


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("2e-5", 2e-5), ("1E-3", 1e-3), ("3", 3.0), ("0.5", 0.5)])
def test_numbers_as_people_write_them(text, value, write):
    got = resolve("digits", [f"optimizers.prior.rate={text}"]).optimizers["prior"].rate
    assert got == value and isinstance(got, float)
    assert resolve(write(f"optimizers: {{prior: {{rate: {text}}}}}")).optimizers["prior"].rate == value


def test_whole_numbers_in_scientific_form():
    updates = resolve("digits", ["training.updates=1e4"]).training.updates
    assert updates == 10_000 and isinstance(updates, int)


def test_lists_null_and_text():
    c = resolve("digits", ["optimizers.prior.betas=[0.9, 0.99]", "generator.widths=null", "name=2024", "data.path=a=b"])
    assert c.optimizers["prior"].betas == (0.9, 0.99) and c.generator.widths is None
    assert c.name == "2024" and c.data.path == "a=b"
    assert yaml.safe_load(c.to_yaml())["optimizers"]["prior"]["betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("foo=1", ["unknown key foo", "training", "method"]),
        ("updates=1", ["unknown key updates", "did you mean training.updates"]),
        ("steps=1", ["unknown key steps", "method.prior_chain.steps or method.posterior_chain.steps"]),
        ("preset=svhn", ["unknown key preset"]),
        ("training.updtes=1", ["unknown key training.updtes", "did you mean training.updates", "training.checkpoint_every"]),
        ("method.prior_chain.step=1", ["method.prior_chain.step", "method.prior_chain.steps", "method.prior_chain.step_size"]),
        ("trainning.updates=1", ["unknown key trainning", "did you mean training"]),
        ("training.updates.more=1", ["training.updates", "whole number"]),
        ("training=5", ["training is 5", "updates, batch"]),
        ("training.updates=many", ["training.updates is 'many'", "whole number"]),
        ("training.updates=1.5", ["training.updates is 1.5", "whole number"]),
        ("training.updates=true", ["training.updates is True", "whole number"]),
        ("training.updates=-1", ["training.updates is -1", "between 0 and"]),
        ("training.updates=", ["training.updates is ''"]),
        ("training.updates=1e99", ["training.updates", "1,000,000,000,000"]),
        ("training.batch=1e20", ["training.batch", "1,000,000"]),
        ("optimizers.generator.rate=1e300", ["optimizers.generator.rate", "1,000,000,000"]),
        ("optimizers.genrator.rate=1", ["optimizers.genrator", "did you mean generator", "optimizers.encoder"]),
        ("optimizers.prior.kind=adm", ["optimizers.prior.kind is 'adm'", "did you mean adam?", "adamw"]),
        ("optimizers=3", ["optimizers is 3"]),
        ("method.prior_chain.step_size=1e20", ["method.prior_chain.step_size", "at most 1,000"]),
        ("method.posterior_chain.first_steps=[1e20]", ["method.posterior_chain.first_steps", "at most 1,000"]),
        ("method.posterior_chain.first_steps=[" + "1," * 1001 + "]", ["method.posterior_chain.first_steps", "1,000"]),
        ("method.posterior_chain.noise=2", ["method.posterior_chain.noise", "between 0 and 1"]),
        ("method.posterior_chain.drift_limit=-1", ["method.posterior_chain.drift_limit", "at least 0"]),
        ("method.energy.l2=1e300", ["method.energy.l2", "1,000,000"]),
        ("generator.sigma=1e-30", ["generator.sigma", "1e-6"]),
        ("training.batch=0", ["training.batch", "between 1 and"]),
        ("data.flip=1", ["data.flip is 1", "true or false"]),
        ("data.shift=-1", ["data.shift is -1", "between 0 and 63"]),
        ("optimizers.prior.rate=fast", ["optimizers.prior.rate is 'fast'", "finite number"]),
        ("optimizers.prior.rate=nan", ["optimizers.prior.rate", "finite number"]),
        ("optimizers.prior.rate=.inf", ["optimizers.prior.rate", "finite number"]),
        ("optimizers.prior.rate=-1", ["optimizers.prior.rate is -1", "between 0 and"]),
        ("optimizers.prior.rate=" + "9" * 400, ["optimizers.prior.rate", "finite number"]),
        ("optimizers.prior.betas=0.5", ["optimizers.prior.betas is 0.5", "list"]),
        ("optimizers.prior.betas=[0.5]", ["optimizers.prior.betas", "2 entries"]),
        ("optimizers.prior.betas=[0.5, x]", ["optimizers.prior.betas[1]", "finite number"]),
        ("optimizers.prior.betas=[0.5, 1]", ["optimizers.prior.betas", "below 1"]),
        ("training.ema=1", ["training.ema", "below 1"]),
        ("training.decay=0", ["training.decay", "above 0"]),
        ("training.clip=-1", ["training.clip", "at least 0"]),
        ("method.kind=vae", ["method.kind is 'vae'", "latent-ebm"]),
        ("method.base.kind=mixtre", ["method.base.kind is 'mixtre'", "did you mean mixture", "standard", "whitened"]),
        ("method.base=mixture", ["method.base is 'mixture'", "kind", "mixture"]),
        ("method.base.components=3", ["method.base.components", "method.base.kind mixture"]),
        ("method.energy=5", ["method.energy is 5", "width", "null"]),
        ("method.energy.depth=0", ["method.energy.depth", "between 1 and 64"]),
        ("method.energy.leak=1", ["method.energy.leak"]),
        ("method.base={kind: mixture, components: 0}", ["method.base.components is 0", "between 1 and 1,000"]),
        ("method.prior_start={kind: replay, chains: 99}", ["method.prior_start.chains is 99", "training.batch"]),
        ("method.prior_start={kind: replay, chains: 10000000, refresh: 0}", []),
        ("method.prior_start={kind: replay, refresh: 1e-10}", ["method.prior_start.refresh", "1e-9"]),
        ("method.prior_start={kind: flow, bins: 1}", ["method.prior_start.bins is 1", "between 2 and 64"]),
        ("generator.sigma=0", ["generator.sigma", "between 1e-6 and"]),
        ("generator.channels=2", ["generator.channels is 2", "1, 3"]),
        ("generator.size=48", ["generator.size is 48", "power of two"]),
        ("generator.size=4", ["generator.size is 4"]),
        ("generator.widths=[1, 2, 3]", ["generator.widths", "1 positive"]),
        ("generator.widths=[0]", ["generator.widths", "between 1 and"]),
        ("generator.widths=[1000000000]", ["generator.widths", "4,096"]),
        ("method.energy.width=65537", ["method.energy.width", "65,536"]),
        ("method.prior_chain.step_size=0", ["method.prior_chain.step_size", "above 0"]),
        ("method.posterior_chain.steps=-3", ["method.posterior_chain.steps", "between 0 and"]),
        ("nz=0", ["nz is 0", "between 1 and 4,096"]),
        ("seed=-1", ["seed is -1"]),
        ("seed=" + "1" * 5000, ["seed is", "whole number"]),
        ("name=", ["name is ''"]),
        ("name=../../elsewhere", ["name", ".."]),
        ("data.limit=0", ["data.limit"]),
        ("data.held_out=-1", ["data.held_out"]),
        ("data.test_fraction=1", ["data.test_fraction"]),
        ("data.name=[1]", ["data.name is [1]", "text"]),
        ("data.labels=own", ["data.labels", "dataset, clusters"]),
        ("anomaly.epochs=0", ["anomaly.epochs"]),
        ("engine=warp", ["engine is 'warp'", "auto"]),
        ("training.updates", ["KEY=VALUE"]),
        ("=3", ["KEY=VALUE"]),
        ("nz={a: 1}", ["nz is {'a': 1}", "whole number"]),
        ("data.name=" + "[" * 2000, []),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(setting, parts):
    if parts:
        refused("digits", *parts, settings=[setting])
    else:
        resolve("digits", [setting])  # unusual, and allowed


def test_buffers_that_would_take_all_memory():
    mixture = "method.base={kind: mixture, components: 1000}"
    refused("digits", "method.base.components is 1000", "5.0e+10 numbers", settings=[mixture, "nz=4096"])
    assert resolve("digits", [mixture, "nz=100"]).method.base == MixtureBase(components=1000)
    refused(
        "digits", "method.prior_start.chains", settings=["method.prior_start={kind: replay, chains: 1e7}", "nz=128"]
    )


def test_the_message_of_a_long_value_is_short():
    assert len(refused("digits", settings=["training.updates=" + "x" * 100_000])) < 250
    assert len(refused("digits", settings=["x" * 100_000 + "=1"])) < 250


def test_a_config_made_in_python_is_checked_in_the_same_words():
    with pytest.raises(ConfigError, match=r"training\.updates is -1"):
        Config(training={"updates": -1})
    assert Config(generator=TextConfig(hidden=3)).generator.hidden == 3


@pytest.mark.parametrize("source", ["digtis", "no/such/file.yaml", "nothing", "", ".", "svhn/"])
def test_a_source_that_is_not_there(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="svhn/paper"):
        resolve(source)
    if source == "digtis":
        with pytest.raises(ConfigError, match=r"did you mean digits\?"):
            resolve(source)


def test_a_preset_of_another_spelling():
    with pytest.raises(ConfigError, match=r"did you mean svhn/warm\?"):
        resolve("svhn-warm")


def test_a_source_of_another_type():
    refused(3, "int")


def test_keys_that_are_not_text(write):
    refused({1: 2}, "1", "not text")
    refused(write("1: 2"), "1", "not text")


# --- files that are not what they should be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: [1,\nb: }", ["not readable as YAML", "line 2"]),
        ("\tnz: 3", ["not readable as YAML"]),
        ("- nz\n- 3\n", ["a list", "mapping"]),
        ("just words", ["a str", "mapping"]),
        ("", ["nothing", "mapping"]),
        (b"\xff\xfe\x00nz: 3", ["not readable as YAML"]),
        (b"nz: 3 # caf\xe9", ["not readable as YAML"]),
        ("nz: 3\nnz: 4\n", ["twice", "'nz'", "line 2"]),
        ("training: {updates: 1, updates: 2}", ["twice", "'updates'"]),
        ("[a, b]: 3", ["not readable as YAML"]),
        ("a: &a [1]\nb: *a", ["aliases", "line 2"]),
        ("a: &a {b: *a}", ["aliases"]),
        ("nz: !!binary YQ==", ["nz is b'a'", "whole number"]),
        ("generator.widths: !!set {1, 2}", ["generator.widths", "list"]),
        ("nz: 2024-13-45", ["not readable as YAML"]),
        ("preset: digtis", ["digtis", "did you mean digits"]),
        ("preset: [1]", ["preset", "svhn"]),
        ("nzz: 3", ["unknown key nzz", "did you mean nz"]),
        ("training:\n", ["training is None", "updates"]),
        ("nz: " + "[" * 3_000, ["not readable as YAML"]),
        ("{a: " * 2_000, ["not readable as YAML"]),
    ],
)
def test_hazards_of_yaml(text, parts, write):
    file = write(text)
    for source in (file, str(file)):
        with pytest.raises(ConfigError) as e:
            resolve(source)
        assert "\n" not in str(e.value) and all(part in str(e.value) for part in parts), str(e.value)


def test_a_few_lines_do_not_unfold_to_gigabytes(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    refused(write("\n".join(lines)), "aliases")


def test_a_file_of_megabytes(write):
    refused(write("# " + "x" * 2_000_000), "2000002 bytes", MAX_CONFIG_BYTES)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch CANARY']",
        "!!python/object/new:os.system ['touch CANARY']",
        "!!python/name:os.system",
        "!own {}",
    ],
)
def test_an_object_is_never_made(tag, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(write(f"nz: {tag}"), "not readable as YAML")
    refused("digits", "nz is", settings=[f"nz={tag}"])
    assert not (tmp_path / "CANARY").exists()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet="nz: [{}]&*!-'\"#\n\t|>%@`1.e5", max_size=60).map(str.encode))
def test_any_file_is_a_config_or_a_config_error(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    try:
        resolve(file)
    except ConfigError as e:
        assert "\n" not in str(e)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([
        "nz", "training", "optimizers.prior.betas", "generator.widths", "data.limit", "method.kind", "method.base", "name",
        "training.stages", "method", "optimizers", "method.energy", "generator",
    ]),
    st.text(max_size=30) | st.text(alphabet="untilse: [{}],0", max_size=20),
)  # fmt: skip
def test_any_setting_is_a_config_or_a_config_error(key, text):
    with contextlib.suppress(ConfigError):
        resolve("digits", [f"{key}={text}"])


# --- what follows from a config -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_power_of_two_has_a_generator(size, channels):
    from lebm.config.build import build

    config = resolve("images", [f"generator.size={size}", f"generator.channels={channels}", "generator.ngf=2", "nz=3"])
    method = build(config.with_values(**{"method.prior_chain.steps": 0}))
    assert method.generator.shape == (channels, size, size) and method.sample(2).shape == (2, channels, size, size)
    g = config.generator
    assert hidden_layers(g.size, g.base, g.last) == int(math.log2(size)) - 2


def test_the_default_is_a_config():
    assert from_dict({}) == Config() == resolve({})


def test_reading_a_config_does_not_import_torch():
    code = "import sys, lebm.config as c; c.resolve('svhn/warm'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_a_generator_of_another_kind_starts_from_its_own_defaults():
    config = resolve("digits", ["generator.hidden=7", "generator.kind=text"])  # in either order
    assert config.generator == TextConfig(hidden=7)
    assert resolve(config) == config == from_dict(config.to_dict())
    text = resolve({"preset": "digits", "generator": {"kind": "text", "embedding": 3}})
    assert text.generator == TextConfig(embedding=3)


def test_a_kind_named_again_changes_nothing_else():
    assert resolve("digits", ["generator.kind=image"]) == resolve("digits")
    text = resolve({"generator": {"kind": "text", "hidden": 9}})
    assert text.with_values(**{"generator.embedding": 3}).generator == TextConfig(embedding=3, hidden=9)


def test_a_base_or_start_of_another_kind_starts_from_its_own_defaults():
    config = resolve("svhn/warm", ["method.base.kind=whitened", "method.posterior_start.kind=noise"])
    assert config.method.base.model_dump() == {"kind": "whitened", "memory": 1000}
    assert config.method.posterior_start.model_dump() == {"kind": "noise"}
    assert resolve("svhn/warm", ["method.base.kind=mixture"]).method.base.memory == 250


def test_an_optimiser_of_another_kind_keeps_its_rate():
    assert resolve("digits", ["optimizers.prior.kind=adamw"]).optimizers["prior"].rate == 2e-4


def test_every_network_has_an_optimiser_with_its_default_rate():
    assert list(Config().optimizers) == ["prior", "generator"]
    settings = ["method.posterior_start.kind=encoder", "method.prior_start.kind=flow", "method.base.kind=flow"]
    config = resolve({}, settings)
    rates = {"prior": 2e-5, "generator": 1e-4, "encoder": 1e-4, "flow": 1e-3, "base": 1e-4}
    assert {name: o.rate for name, o in config.optimizers.items()} == rates == LatentEBMConfig.DEFAULT_RATES
    assert config.method.networks() == tuple(rates)
    assert all(o.kind == "adam" and o.betas == (0.5, 0.999) for o in config.optimizers.values())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["generator.kind=txt"], ["generator.kind is 'txt'", "did you mean text?", "image", "text"]),
        (["generator.kind=[text]"], ["generator.kind is ['text']", "image", "text"]),
        (["generator.kind=text", "generator.size=8"], ["unknown key generator.size", "generator.embedding"]),
        (["generator.hidden=8"], ["unknown key generator.hidden", "generator.ngf", "generator.kind text"]),
        (["generator.kind=text", "generator.dropout=1"], ["generator.dropout is 1.0", "below 1"]),
        (["generator.kind=text", "data.flip=true"], ["data.flip is True", "only images can be mirrored"]),
        (["generator.kind=text", "data.shift=2"], ["data.shift is 2", "only images can be moved"]),
        (["generator={kind: table, sigma: 0}"], ["generator.sigma is 0.0", "1e-6", "null"]),
        (["method.posterior_start={kind: encoder, objective: forward_kl}", "method.base.kind=mixture"],
         ["method.posterior_start.objective", "reverse_kl", "mixture"]),
    ],
)  # fmt: skip
def test_wrong_kinds_and_keys_of_other_kinds_are_said(settings, words):
    with pytest.raises(ConfigError) as e:
        resolve("digits", settings)
    for word in words:
        assert word in str(e.value)


def test_code_for_images_refuses_other_kinds_in_a_sentence():
    assert isinstance(resolve("digits").image, ImageConfig)
    with pytest.raises(ConfigError, match=r"generator.kind is text"):
        _ = resolve("digits", ["generator.kind=text"]).image


# --- stages -----------------------------------------------------------------------------------------------------------

ENCODER = "method.posterior_start.kind=encoder"


def staged(*stages, settings=(ENCODER,)):
    return resolve("digits", [*settings, f"training.stages={json.dumps(stages)}"])


def test_a_stage_applies_while_fewer_updates_have_been_made():
    config = staged(
        {"until": 10, "set": {"method.posterior_chain.steps": 0, "optimizers": {"prior": {"rate": "2e-5"}}}},
        {"until": 30, "set": {"training.clip": 0.5}, "networks": ["generator"]},
    )
    steps = [config.at(u).method.posterior_chain.steps for u in (0, 9, 10, 29, 30, 10**9)]
    assert steps == [0, 0, 20, 20, 20, 20]
    assert [config.at(u).training.clip for u in (0, 10, 29, 30)] == [0.0, 0.5, 0.5, 0.0]
    assert config.at(3).optimizers["prior"].rate == 2e-5 and config.at(10).optimizers["prior"].rate == 2e-4
    assert config.stage_at(9).networks is None and config.stage_at(10).networks == ("generator",)
    assert config.stage_at(30) is None and config.at(30) == config
    assert from_dict(config.to_dict()) == config


def test_a_coefficient_is_a_number_or_moves_along_a_line():
    line = {"start": 0, "end": 2, "over": 10}
    config = staged(
        {"until": 20, "coefficients": {"energy_l2": line}}, {"until": 30, "coefficients": {"energy_l2": "3e-1"}}
    )
    moving, constant = (config.stage_at(n).coefficients["energy_l2"] for n in (0, 20))
    assert [moving.at(n) for n in (0, 5, 10, 15)] == [0.0, 1.0, 2.0, 2.0]
    assert constant == Schedule(start=0.3, end=0.3) and constant.at(0) == constant.at(99) == 0.3


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"until": 5, "set": {"nz": 3}}, ["training.stages[0].set", "nz"]),
        ({"until": 5, "set": {"method.posterior_start.kind": "noise"}}, ["method.posterior_start.kind"]),
        ({"until": 5, "set": {"method.kl": 0.5}}, ["method.kl", "a coefficient of the method goes under coefficients"]),
        ({"until": 5, "set": {"optimizers.prior.betas": [0, 0]}}, ["optimizers.prior.betas"]),
        ({"until": 5, "set": {"training.batch": 3}}, ["training.batch"]),
        ({"until": 5, "set": {"method.posterior_chain.steps": -1}}, ["stages[0]", "method.posterior_chain.steps is -1"]),
        ({"until": 5, "set": {"optimizers.encodr.rate": 1}}, ["optimizers.encodr", "encoder"]),
        ({"until": 0}, ["training.stages[0].until is 0"]),
        ({"set": {}}, ["training.stages[0].until is missing", "whole number"]),
        ({"until": 5, "networks": ["flow"]}, ["training.stages[0].networks", "flow", "prior, generator, encoder"]),
        ({"until": 5, "nets": []}, ["training.stages[0].nets"]),
        ({"until": 5, "coefficients": {"kl": "x"}}, ["training.stages[0].coefficients.kl", "finite number"]),
        ({"until": 5, "coefficients": {"kl": {"start": 1}}}, ["training.stages[0].coefficients.kl.end is missing"]),
        (3, ["training.stages[0] is 3", "until"]),
    ],
)  # fmt: skip
def test_stages_that_cannot_be(stage, words):
    with pytest.raises(ConfigError) as e:
        staged(stage)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_stages_follow_each_other():
    with pytest.raises(ConfigError, match=r"training\.stages\[1\]\.until"):
        staged({"until": 5}, {"until": 5})


# --- what a run must have that begins to learn --------------------------------------------------------------------------

FORWARD = "method.posterior_start={kind: encoder, objective: forward_kl}"
NO_STEPS = {"method.posterior_chain.steps": 0}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["method.posterior_chain.steps=0"], "method.posterior_chain.steps"),
        ([FORWARD, "method.posterior_chain.steps=0"], "method.posterior_chain.steps"),
        (["method.prior_chain.steps=0"], "method.prior_chain.steps"),
        (["method.prior_chain.steps=0", "method.prior_start.kind=replay"], "method.prior_chain.steps"),
        (["method.prior_chain.steps=0", "method.prior_start={kind: flow, objective: forward_kl}"], "method.prior_chain.steps"),
        ([f"training.stages={json.dumps([{'until': 5, 'set': NO_STEPS}])}"], "until update 5, method.posterior_chain.steps"),
        ([FORWARD, f"training.stages={json.dumps([{'until': 5, 'set': NO_STEPS}])}"], "reverse_kl"),
    ],
)  # fmt: skip
def test_a_chain_without_steps_needs_a_start_that_learns_without(settings, key):
    config = resolve("digits", settings)  # it may be read
    with pytest.raises(ConfigError) as e:
        check_learning(config)
    assert key in str(e.value)


@pytest.mark.parametrize(
    "settings",
    [
        [ENCODER, "method.posterior_chain.steps=0"],
        [FORWARD],
        ["method.prior_start.kind=flow", "method.prior_chain.steps=0"],
        ["method.energy=null"],
        [ENCODER, f"training.stages={json.dumps([{'until': 5, 'set': NO_STEPS}])}"],
    ],
)
def test_what_may_begin_to_learn(settings):
    check_learning(resolve("digits", settings))


# --- the JSON schema --------------------------------------------------------------------------------------------------


def test_the_schema_tells_editors_keys_limits_and_kinds():
    schema = json.loads(json.dumps(json_schema()))
    defs, top = schema["$defs"], schema["properties"]
    assert (top["nz"]["minimum"], top["nz"]["maximum"]) == (1, 4096) and "preset" in top
    assert schema["additionalProperties"] is False
    assert set(top["generator"]["discriminator"]["mapping"]) == {"image", "text", "table"}
    assert set(top["optimizers"]["propertyNames"]["enum"]) == set(LatentEBMConfig.DEFAULT_RATES)
    size = defs["ChainConfig"]["properties"]["step_size"]
    assert (size["exclusiveMinimum"], size["maximum"]) == (0, 1000)
    assert {"type": "number"} in defs["Schedule"]["anyOf"]
    assert "required" not in schema


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"until": 5, "coefficients": {"energy_l2": -5}}, ["training.stages[0].coefficients.energy_l2", "-5"]),
        ({"until": 5, "coefficients": {"energy_l2": {"start": 0, "end": 1e9}}}, ["energy_l2", "1e+06"]),
        ({"until": 5, "coefficients": {"energy_l1": 1}}, ["energy_l1", "did you mean energy_l2"]),
        ({"until": 5, "set": {"training.decay": 0.5}}, ["training.decay"]),
    ],
)
def test_coefficients_and_stages_have_limits(stage, words):
    with pytest.raises(ConfigError) as error:
        staged(stage)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\ud800"])
def test_a_name_must_be_printable(name):
    with pytest.raises(ConfigError, match="name"):
        resolve({"name": name})


def test_the_schema_allows_what_presets_and_files_leave_out():
    """A section without its kind fits several kinds; oneOf would refuse it."""
    text = json.dumps(json_schema())
    assert '"oneOf"' not in text and '"anyOf"' in text
    schema = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["properties"]["name"]["type"]) == {"string", "number"}
    assert any(re.search(pattern, "training.updates") for pattern in schema["patternProperties"])
