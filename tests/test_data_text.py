"""Text sets: official layouts and a user's files written by hand here, and the real ones where LEBM_DATA has them."""

import pytest
import torch

from lebm.config import resolve
from lebm.core.errors import DataError
from lebm.core.words import SPECIAL, UNKNOWN, Vocabulary, lengths
from lebm.data import DATASETS, SentenceBatches, data_root, load
from lebm.data.batches import width


def text_config(path, *settings, name="text"):
    values = {"generator.kind": "text", "data.name": name, "data.path": None if path is None else str(path)}
    return resolve(values, settings)


def demo():
    return load(text_config(None, "generator.vocabulary=130", "generator.length=20", name="text-demo"))


def test_a_text_file_is_split_and_counted(tmp_path):
    lines = [f"w{i % 5} w{i % 7} x" for i in range(40)]
    file = tmp_path / "my.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\n".join(["", *lines, "  ", "x " * 30]).encode() + b"\r\n")
    s = load(text_config(file, "generator.length=10", "data.test_fraction=0.25"))
    assert (len(s.train), len(s.validation), len(s.test)) == (21, 10, 10)
    vocabulary = Vocabulary(s.facts["vocabulary"])
    everything = [vocabulary.sentence(r) for part in (s.train, s.validation, s.test) for r in part.tolist()]
    assert sorted(everything) == sorted([*lines, " ".join(["x"] * 10)])
    assert s.notes[0].startswith("2 empty lines") and any("generator.length = 10" in n for n in s.notes)
    again = load(text_config(file, "generator.length=10", "data.test_fraction=0.25"))
    assert torch.equal(s.train, again.train)


def test_unknown_words_are_counted(tmp_path):
    for name, text in (("train", "a b\n" * 3 + "rare\n"), ("valid", "a b\n"), ("test", "a new\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    s = load(text_config(tmp_path))
    assert s.facts["vocabulary"] == [*SPECIAL, "a", "b"]
    assert any("1 of 2 test words (50.00%)" in n for n in s.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"good line\nbad \xff line\n", ["line 2", "not UTF-8", "0xff"]),
        (b"\n\n \n", ["0 sentences"]),
        (b"one\ntwo\n", ["2 sentences", "at least three"]),
        (None, ["does not exist"]),
    ],
)
def test_bad_text_is_refused_in_a_sentence(tmp_path, content, words):
    file = tmp_path / "my.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as e:
        load(text_config(file))
    assert all(w in str(e.value) for w in words)


def test_text_needs_a_path_and_a_text_generator(tmp_path):
    with pytest.raises(DataError, match="data.path is not set"):
        load(text_config(None))
    with pytest.raises(DataError, match=r"ptb cannot be read .*ptb.train.txt"):
        load(text_config(None, name="ptb"), tmp_path)
    with pytest.raises(DataError, match=r"generator.kind is image; use --set generator.kind=text"):
        load(resolve("digits/paper", ["data.name=text-demo"]))
    with pytest.raises(DataError, match="has no train.txt"):
        load(text_config(tmp_path))


def test_the_official_layout(tmp_path):
    (tmp_path / "yahoo").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "yahoo" / f"yahoo.{part}.txt").write_text("_UNK a\na _UNK b\n")
    s = load(text_config(None, name="yahoo"), tmp_path)
    assert s.facts["vocabulary"] == [*SPECIAL, "a", "b"] and s.validation.shape == (2, 4)
    assert s.train.tolist() == [[3, 4, 2, 0], [4, 3, 5, 2]]


def test_the_demo_text_is_always_the_same():
    a, b = demo(), demo()
    assert (len(a.train), len(a.validation), len(a.test)) == (2400, 300, 300) and not a.notes
    assert torch.equal(a.train, b.train) and len(a.facts["vocabulary"]) < 130


def test_batches_hold_sentences_of_like_length_and_every_row_once():
    rows = demo().train
    b = SentenceBatches(rows, 16, 1)
    seen = torch.cat([b.indices(i) for i in range(b.per_epoch)])
    assert sorted(seen.tolist()) == list(range(2400))
    spread = [lengths(b(i)).double().std() for i in range(b.per_epoch)]
    assert float(torch.stack(spread).mean()) < 0.3 * float(lengths(rows).double().std())
    for i in (7, 3, 160):  # a function of the update alone; nothing but padding is cut
        x = b(i)
        assert torch.equal(x, SentenceBatches(rows, 16, 1)(i))
        assert torch.equal(lengths(x), lengths(rows[b.indices(i)]))
    assert b(0).tolist() != b(b.per_epoch).tolist()
    assert [width(n) for n in (1, 8, 9, 64, 65, 200)] == [8, 8, 16, 64, 80, 208]


@pytest.mark.parametrize(
    ("name", "train", "valid", "test", "words", "longest"),
    [
        ("ptb", 42068, 3370, 3761, 10002, 83),
        ("snli", 37322, 5000, 5000, 6687, 60),
        ("yahoo", 9000, 1000, 10000, 16494, 201),
    ],
)
def test_the_real_texts(name, train, valid, test, words, longest):
    root = data_root()
    if root is None or not DATASETS[name].find(root):
        pytest.skip(f"needs LEBM_DATA to be a folder that holds {name}")
    s = load(resolve(f"{name}/paper"), root)
    assert (len(s.train), len(s.validation), len(s.test)) == (train, valid, test)
    assert len(s.facts["vocabulary"]) == words and s.train.shape[1] == longest
    assert int((s.train == UNKNOWN).sum()) > 1000  # the model meets <unk> while it learns
