"""One frozen object: preset < file < --set; everything else is refused in a sentence that names the key."""

import contextlib
import dataclasses
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lebm.config import MAX_CONFIG_BYTES, Chain, Config, TextGenerator, expand, from_dict, hidden_layers, merge, preset_names, resolve
from lebm.data import load
from lebm.errors import ConfigError, DataError
from lebm.model import LatentEBM

PRESETS = ["celeba128", "celeba64", "cifar10", "digits", "images", "mnist", "svhn", "svhn-gaussian"]


def refused(source, *parts, settings=()):
    """The source is refused in one short line that contains all the parts."""
    with pytest.raises(ConfigError) as e:
        resolve(source, settings)
    message = str(e.value)
    assert "\n" not in message and len(message) < 600 and all(str(p) in message for p in parts), message
    return message


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


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_the_way_through_a_run_folder(name, tmp_path):
    config = resolve(name)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert resolve(tmp_path / "config.yaml") == resolve(tmp_path) == resolve(str(tmp_path)) == config
    assert from_dict(config.to_dict()) == config and resolve(config) == config
    assert hash(config) == hash(resolve(name))


@pytest.mark.parametrize(
    ("name", "nz", "size", "ngf", "k0", "k1"),
    [("svhn", 100, 32, 64, 60, 20), ("cifar10", 128, 32, 128, 60, 40), ("celeba64", 100, 64, 128, 60, 20), ("celeba128", 100, 128, 128, 80, 40)],
)
def test_the_papers_settings(name, nz, size, ngf, k0, k1):
    c = resolve(name)
    assert (c.nz, c.generator.size, c.generator.ngf, c.generator.sigma) == (nz, size, ngf, 0.3)
    assert c.chains.prior == Chain(k0, 0.4) and c.chains.posterior == Chain(k1, 0.1)
    assert (c.learning.prior_rate, c.learning.generator_rate, c.prior.leak) == (2e-5, 1e-4, 0.2)


def test_preset_under_file_under_set(write):
    file = write("preset: svhn\nexperiment: mine\nnz: 50\nchains: {prior: {steps: 30}}\ntraining.steps: 7\n")
    c = resolve(file, ["nz=20", "learning.prior_rate=2e-5"])
    assert (c.experiment, c.nz) == ("mine", 20)
    assert c.chains.prior == Chain(30, 0.4)  # the file's K0, the preset's step
    assert c.data.name == "svhn" and c.generator.widths == (8, 4, 2)  # from the preset
    assert c.training.steps == 7 and c.training.batch == 100


def test_a_setting_reaches_a_default_that_no_preset_names():
    assert resolve("digits", ["chains.prior.steps=5"]).chains.prior == Chain(5, 0.4)
    assert resolve({"chains.posterior": {"step_size": 0.2}}).chains.posterior == Chain(20, 0.2)


def test_later_settings_win():
    assert resolve("digits", ["seed=1", "seed=2", "seed=3"]).seed == 3


def test_a_mapping_takes_dotted_and_nested_keys():
    assert resolve({"preset": "digits", "training.steps": 3, "training": {"batch": 4}}) == resolve("digits", ["training.steps=3", "training.batch=4"])
    assert resolve("digits").with_values(**{"training.steps": 9}).training.steps == 9
    assert expand({"a.b": 1, "a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert merge({"a": {"b": 1}, "c": 1}, {"a": {"d": 2}, "c": {"e": 3}}) == {"a": {"b": 1, "d": 2}, "c": {"e": 3}}


def test_a_folder_or_file_named_like_a_preset_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "svhn").write_text("not: a config")
    assert resolve("mnist").experiment == "mnist" and resolve("svhn").experiment == "svhn"


def test_frozen():
    config = resolve("digits")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.nz = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.training.steps = 3


def test_the_fixed_prior_is_drawn_exactly():
    assert resolve("svhn-gaussian").chains.prior.steps == 0
    assert resolve("digits", ["prior.kind=gaussian"]).chains.prior.steps == 0


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("2e-5", 2e-5), ("1E-3", 1e-3), ("3", 3.0), ("0.5", 0.5)])
def test_numbers_as_people_write_them(text, value, write):
    got = resolve("digits", [f"learning.prior_rate={text}"]).learning.prior_rate
    assert got == value and isinstance(got, float)
    assert resolve(write(f"learning: {{prior_rate: {text}}}")).learning.prior_rate == value


def test_whole_numbers_in_scientific_form():
    steps = resolve("digits", ["training.steps=1e4"]).training.steps
    assert steps == 10_000 and isinstance(steps, int)


def test_lists_null_and_text():
    c = resolve("digits", ["learning.betas=[0.9, 0.99]", "generator.widths=null", "experiment=2024", "data.path=a=b"])
    assert c.learning.betas == (0.9, 0.99) and c.generator.widths is None and c.experiment == "2024" and c.data.path == "a=b"
    assert yaml.safe_load(c.to_yaml())["learning"]["betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("foo=1", ["unknown key foo", "training", "learning"]),
        ("training.stpes=1", ["unknown key training.stpes", "did you mean steps", "training.checkpoint_every"]),
        ("chains.prior.step=1", ["chains.prior.step", "chains.prior.steps", "chains.prior.step_size"]),
        ("trainning.steps=1", ["unknown key trainning", "did you mean training"]),
        ("training.steps.more=1", ["training.steps", "whole number"]),
        ("training=5", ["training is 5", "steps, batch"]),
        ("training.steps=many", ["training.steps is 'many'", "whole number"]),
        ("training.steps=1.5", ["training.steps is 1.5", "whole number"]),
        ("training.steps=true", ["training.steps is True", "whole number"]),
        ("training.steps=-1", ["training.steps is -1", "between 0 and"]),
        ("training.steps=", ["training.steps is ''"]),
        ("training.steps=1e99", ["training.steps", "10^12"]),
        ("training.batch=1e20", ["training.batch", "1,000,000"]),
        ("learning.generator_rate=1e300", ["learning.generator_rate", "1e9"]),
        ("chains.prior.step_size=1e20", ["chains.prior.step_size", "at most 1000"]),
        ("chains.posterior.first_steps=[1e20]", ["chains.posterior.first_steps", "at most 1000"]),
        ("learning.l2=1e300", ["learning.l2", "1e6"]),
        ("generator.sigma=1e-30", ["generator.sigma", "1e-6"]),
        ("training.batch=0", ["training.batch", "between 1 and"]),
        ("data.flip=1", ["data.flip is 1", "true or false"]),
        ("data.shift=-1", ["data.shift is -1", "between 0 (off) and 63"]),
        ("learning.prior_rate=fast", ["learning.prior_rate is 'fast'", "finite number"]),
        ("learning.prior_rate=nan", ["learning.prior_rate", "finite number"]),
        ("learning.prior_rate=.inf", ["learning.prior_rate", "finite number"]),
        ("learning.prior_rate=-1", ["learning.prior_rate is -1", "between 0 and"]),
        ("learning.prior_rate=" + "9" * 400, ["learning.prior_rate", "finite number"]),
        ("learning.betas=0.5", ["learning.betas is 0.5", "list"]),
        ("learning.betas=[0.5]", ["learning.betas", "2 entries"]),
        ("learning.betas=[0.5, x]", ["learning.betas[1]", "finite number"]),
        ("learning.betas=[0.5, 1]", ["learning.betas", "below 1"]),
        ("learning.ema=1", ["learning.ema", "below 1"]),
        ("learning.decay=0", ["learning.decay", "above 0"]),
        ("prior.kind=gausian", ["prior.kind is 'gausian'", "did you mean gaussian", "energy, gaussian"]),
        ("prior.depth=0", ["prior.depth", "between 1 and 64"]),
        ("prior.leak=1", ["prior.leak"]),
        ("prior.parts=0", ["prior.parts is 0", "between 1 and 1000"]),
        ("generator.sigma=0", ["generator.sigma", "between 1e-6 and"]),
        ("generator.channels=2", ["generator.channels is 2", "1 (grey) or 3"]),
        ("generator.size=48", ["generator.size is 48", "power of two"]),
        ("generator.size=4", ["generator.size is 4"]),
        ("generator.widths=[1, 2, 3]", ["generator.widths", "1 positive"]),
        ("generator.widths=[0]", ["generator.widths", "positive"]),
        ("generator.widths=[1000000000]", ["generator.ngf", "weights"]),
        ("prior.width=65536", ["prior.width", "weights"]),
        ("chains.prior.step_size=0", ["chains.prior.step_size", "above 0"]),
        ("chains.posterior.steps=-3", ["chains.posterior.steps", "between 0 and"]),
        ("nz=0", ["nz is 0", "between 1 and 4096"]),
        ("seed=-1", ["seed is -1"]),
        ("seed=" + "1" * 5000, ["seed is", "whole number"]),
        ("experiment=", ["experiment", "name"]),
        ("experiment=../../elsewhere", ["experiment", ".."]),
        ("data.limit=0", ["data.limit"]),
        ("data.test_fraction=1", ["data.test_fraction"]),
        ("data.name=[1]", ["data.name is [1]", "text"]),
        ("engine=warp", ["engine is 'warp'", "auto"]),
        ("training.steps", ["KEY=VALUE"]),
        ("=3", ["KEY=VALUE"]),
        ("nz={a: 1}", ["nz is {'a': 1}", "whole number"]),
        ("data.name=" + "[" * 2000, []),
    ],
)
def test_what_cannot_be_is_refused(setting, parts):
    if parts:
        refused("digits", *parts, settings=[setting])
    else:
        resolve("digits", [setting])  # odd text is still text


def test_a_mixture_that_would_take_all_memory():
    refused("digits", "prior.parts is 1000", "5.0e+10 numbers", settings=["prior.base=mixture", "prior.parts=1000", "nz=4096"])
    assert resolve("digits", ["prior.parts=1000", "nz=4096"]).prior.parts == 1000  # not read where p_0 is no mixture


def test_the_message_of_a_long_value_is_short():
    assert len(refused("digits", settings=["training.steps=" + "x" * 100_000])) < 250


@pytest.mark.parametrize("source", ["digtis", "no/such/file.yaml", "nothing", "", "."])
def test_a_source_that_is_not_there(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(source, "svhn")
    if source == "digtis":
        refused(source, "did you mean digits")


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
        ("training: {steps: 1, steps: 2}", ["twice", "'steps'"]),
        ("[a, b]: 3", ["not readable as YAML"]),
        ("a: &a [1]\nb: *a", ["aliases", "line 2"]),
        ("a: &a {b: *a}", ["aliases"]),
        ("nz: !!binary YQ==", ["nz is b'a'", "whole number"]),
        ("nz: 2024-13-45", ["not readable as YAML"]),
        ("preset: digtis", ["digtis", "did you mean digits"]),
        ("preset: [1]", ["preset", "svhn"]),
        ("nzz: 3", ["unknown key nzz", "did you mean nz"]),
        ("training:\n", ["training is None", "steps"]),
        ("nz: " + "[" * 3_000, ["not readable as YAML"]),
        ("{a: " * 2_000, ["not readable as YAML"]),
    ],
)
def test_hazards_of_yaml(text, parts, write):
    file = write(text)
    refused(file, *parts)
    refused(file.parent if file.name == "config.yaml" else str(file), *parts)


def test_a_few_lines_do_not_unfold_to_gigabytes(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    refused(write("\n".join(lines)), "aliases")


def test_a_file_of_megabytes(write):
    refused(write("# " + "x" * 2_000_000), "2000002 bytes", MAX_CONFIG_BYTES)


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system ['touch CANARY']", "!!python/object/new:os.system ['touch CANARY']", "!!python/name:os.system", "!own {}"],
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
@given(st.sampled_from(["nz", "training", "learning.betas", "generator.widths", "data.limit", "prior.kind", "experiment"]), st.text(max_size=30))
def test_any_setting_is_a_config_or_a_config_error(key, text):
    with contextlib.suppress(ConfigError):
        resolve("digits", [f"{key}={text}"])


# --- what follows from a config -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_power_of_two_has_a_generator(size, channels):
    config = resolve("images", [f"generator.size={size}", f"generator.channels={channels}", "generator.ngf=2", "nz=3"])
    model = LatentEBM(config)
    assert model.generator.shape == (channels, size, size) and model.sample(2, steps=0).shape == (2, channels, size, size)
    assert hidden_layers(config.generator) == int(math.log2(size)) - 2


def test_the_default_is_a_config():
    assert from_dict({}) == Config()


# --- kinds of generators ----------------------------------------------------------------------------------------------


def test_a_generator_of_another_kind_starts_from_its_own_defaults():
    config = resolve("digits", ["generator.hidden=7", "generator.kind=text"])  # in either order
    assert config.generator == TextGenerator(hidden=7)
    assert resolve(config) == config == from_dict(config.to_dict())
    assert resolve({"preset": "digits", "generator": {"kind": "text", "embedding": 3}}).generator == TextGenerator(embedding=3)


def test_a_kind_named_again_keeps_what_was_set():
    assert resolve("digits", ["generator.kind=image"]) == resolve("digits")
    text = resolve({"generator": {"kind": "text", "hidden": 9}})
    assert text.with_values(**{"generator.embedding": 3}).generator == TextGenerator(embedding=3, hidden=9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["generator.kind=txt"], ["generator.kind is 'txt'", "did you mean text?", "image, text"]),
        (["generator.kind=[text]"], ["generator.kind is ['text']", "image, text"]),
        (["generator.kind=text", "generator.size=8"], ["unknown key generator.size", "generator.embedding"]),
        (["generator.hidden=8"], ["unknown key generator.hidden", "generator.ngf"]),
        (["generator.kind=text", "generator.dropout=1"], ["generator.dropout is 1.0", "below 1"]),
        (["generator.kind=text", "data.flip=true"], ["data.flip is True", "only images can be mirrored"]),
        (["generator.kind=text", "data.shift=2"], ["data.shift is 2", "only images can be moved"]),
        (["generator.kind=text", "generator.hidden=60000"], ["generator.hidden is 60000", "weights"]),
    ],
)
def test_wrong_kinds_and_keys_of_other_kinds_are_said(settings, words):
    with pytest.raises(ConfigError) as e:
        resolve("digits", settings)
    for word in words:
        assert word in str(e.value)


def test_code_for_images_refuses_other_kinds_in_a_sentence():
    with pytest.raises(ConfigError, match=r"generator.kind is text; .*image generators only"):
        _ = resolve("digits", ["generator.kind=text"]).image
    with pytest.raises(DataError, match="digits is a set of kind image and generator.kind is text"):
        load(resolve("digits", ["generator.kind=text"]))
