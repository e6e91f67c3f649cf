"""The vocabulary, against words counted by hand."""

import pytest
import torch

from lebm.core.errors import DataError
from lebm.core.words import END, PAD, SPECIAL, UNKNOWN, Vocabulary, checked, from_sentences, lengths, log_probs


def test_a_vocabulary_holds_the_frequent_words_of_a_text():
    v = from_sentences(["b a b", "a b c c", "rare"], 7)
    assert v.words == [*SPECIAL, "b", "a", "c"]  # rare occurs once, so a model reads it as <unk>
    assert v.rows(["a rare b", "c"], 5).tolist() == [[5, UNKNOWN, 4, END], [6, END, PAD, PAD]]
    assert v.sentences(v.rows(["a rare b", "c"], 5)) == ["a <unk> b", "c"]
    assert v.rows(["a b c a b c"], 2).tolist() == [[5, 4, END]]
    assert from_sentences(["b a <unk>"], 100).words == [*SPECIAL, "a", "b"]  # this text contains <unk>
    assert from_sentences(["b b a a c c"], 5).words == [*SPECIAL, "a"]  # ties by the alphabet
    assert v.rows(["<s> </s> <pad> a"], 9).tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, 5, END]]


def test_lengths():
    rows = [[4, 5, 6], [5], [4, 4, 3, 6, 5], [6, 6]]
    x = torch.tensor([[*r, END, *[PAD] * (6 - len(r))] for r in rows])
    assert lengths(x).tolist() == [4, 2, 6, 3]


def test_what_no_terminal_should_show_is_replaced():
    assert Vocabulary([*SPECIAL, "\x1b[31mred"]).sentence([4, END]) == "?[31mred"


@pytest.mark.parametrize(
    "words",
    [
        *(None, [], list(SPECIAL[:3]), ["a", *SPECIAL], [*SPECIAL, "a", "a"]),
        *([*SPECIAL, "a b"], [*SPECIAL, 3], [*SPECIAL, "x" * 101], [*SPECIAL, *"abcdef"]),
    ],
)
def test_a_damaged_vocabulary_is_refused(words):
    with pytest.raises(DataError, match="vocabulary"):
        checked(words, 9)


def test_log_probs_are_the_same_packed_and_padded(monkeypatch):
    x = torch.tensor([[4, 5, END, PAD], [END, PAD, PAD, PAD], [5, 4, 4, END]])
    h = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    by_hand = (h @ table).log_softmax(-1).gather(2, (x - END).clamp_min(0).unsqueeze(2)).squeeze(2).where(x != PAD, 0)
    torch.testing.assert_close(log_probs(lambda s: s @ table, h, x), by_hand.sum(1))
    monkeypatch.setattr("lebm.core.words.packs", lambda x: False)
    torch.testing.assert_close(log_probs(lambda s: s @ table, h, x), by_hand.sum(1))
