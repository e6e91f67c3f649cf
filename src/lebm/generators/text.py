"""The paper's text generator: a one-layer LSTM that reads z with every word and starts from it.

x is a batch of sentences as numbers, (n, T) with padding (lebm.core.words); log p(x|z) is the sum over words, </s>
included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.core.words import END, PAD, START, UNKNOWN, Vocabulary, checked, lengths, log_probs
from lebm.generators.base import Generator, check_rows

LogWords = Callable[..., Tensor]  # states, weight, bias, words (negative: padding) -> log p, a number a state
PIECE = 1 << 27  # numbers in a table of words x vocabulary at once: half a gigabyte


@dataclass(frozen=True)
class Masks:
    """What dropout leaves out of one learning iteration."""

    words: Tensor  # (n, T), True: the LSTM reads <unk> instead
    inputs: Tensor  # (n, T, embedding), 0 or 1 / (1 - p)
    states: Tensor  # (n, T, hidden)

    def rows(self, part: slice) -> Masks:
        return Masks(self.words[part], self.inputs[part], self.states[part])


class TextGenerator(Generator):
    """p(x|z) = prod over t of p(x_t | x_<t, z), by a one-layer LSTM."""

    modality = "text"
    autoregressive = True  # it could do without z, and training watches for that

    def __init__(
        self,
        nz: int,
        vocabulary: int = 10_003,
        length: int = 200,
        embedding: int = 128,
        hidden: int = 512,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.nz, self.capacity, self.length = nz, vocabulary, length
        self.dropout, self.word_dropout = dropout, word_dropout
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding + nz, hidden, batch_first=True)
        self.start = nn.Linear(nz, 2 * hidden)  # z -> the first state and cell
        self.out = nn.Linear(hidden, vocabulary)
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)
        self.vocabulary: Vocabulary | None = None
        self.log_words: LogWords | None = None  # an engine's faster log softmax at words, where one is installed

    # --- the vocabulary -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of words in use; the tables may have room for more."""
        return len(self.vocabulary) if self.vocabulary is not None else self.capacity

    def facts(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary.words} if self.vocabulary is not None else {}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        new = checked(facts.get("vocabulary"), self.capacity)
        if self.vocabulary is not None and new.words != self.vocabulary.words:
            raise DataError(
                f"the text has another vocabulary ({len(new)} words) than the model ({self.size}); give the text it "
                "learned from"
            )
        self.vocabulary = new

    def words(self) -> Vocabulary:
        if self.vocabulary is None:
            raise DataError("the model has no vocabulary yet; train it on a text, or load one that was")
        return self.vocabulary

    def as_input(self, x: Any) -> Tensor:
        """A list of sentences, or rows of word numbers from this model's vocabulary."""
        check_rows(x, np.ndarray | Tensor | list | tuple, "a list of sentences, or an array of word numbers")
        if isinstance(x, list | tuple):
            for i, s in enumerate(x):
                if not isinstance(s, str):
                    raise DataError(f"row {i} of the input is a {type(s).__name__} and no text; give sentences")
                if not s.split():
                    raise DataError(f"sentence {i} has no words; give at least one")
            return self.words().rows(x, self.length)
        t = torch.as_tensor(x)
        if t.ndim != 2 or not t.numel() or t.is_floating_point() or t.dtype == torch.bool:
            raise DataError(
                f"the input has shape {tuple(t.shape)} and type {t.dtype}; give sentences, or whole numbers of shape "
                "(n, words)"
            )
        if not 0 <= int(t.min()) <= int(t.max()) < self.size:
            raise DataError(
                f"the input holds numbers from {int(t.min())} to {int(t.max())}; the vocabulary has {self.size} words"
            )
        ends = (t == END).cumsum(1)  # how many there were so far
        sentences = (ends[:, -1] == 1) & (((ends == 1) & (t != END)) == (t == PAD)).all(1)
        if not bool(sentences.all()):
            raise DataError(
                f"row {int((~sentences).nonzero()[0])} of the input is no sentence: words, then </s> ({END}) once, "
                f"then padding ({PAD})"
            )
        return t

    # --- log p(x|z) -----------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, z: Tensor, *masks: Masks) -> Tensor:
        """log p(x|z) in nats, one number a row; with `masks`, of what dropout has left."""
        if torch.is_grad_enabled() or x.numel() * self.size <= PIECE:
            return self._log_prob(x, z, masks[0] if masks else None)
        return torch.cat([self._log_prob(x[p], z[p], m) for p, m in self._pieces(x, *masks)])

    def score(self, x: Tensor, z: Tensor, *masks: Masks) -> Tensor:
        """The gradient of log p(x|z) in z, in pieces small enough for memory."""
        out = []
        with torch.enable_grad():
            for p, part_masks in self._pieces(x, *masks):
                part = z[p].detach().requires_grad_()
                log_px = self._log_prob(x[p], part, part_masks, table_learns=False)
                out.append(torch.autograd.grad(log_px.sum(), part)[0])
        return torch.cat(out)

    def _pieces(self, x: Tensor, masks: Masks | None = None) -> Iterator[tuple[slice, Masks | None]]:
        rows = max(1, PIECE // (x.shape[1] * self.size))
        for i in range(0, len(x), rows):
            part = slice(i, i + rows)
            yield part, masks.rows(part) if masks is not None else None

    def _log_prob(self, x: Tensor, z: Tensor, masks: Masks | None = None, table_learns: bool = True) -> Tensor:
        x = x.long()
        read = F.pad(x[:, :-1], (1, 0), value=START)
        e = self.embed(read if masks is None else read.masked_fill(masks.words, UNKNOWN))
        h, _ = self._run(e if masks is None else e * masks.inputs, z, self._first(z))
        h = h if masks is None else h * masks.states
        if self.log_words is None:
            return log_probs(self._logits, h, x)
        # Gradients of the table would cost as much as that of z.
        table = self._table() if table_learns else (t.detach() for t in self._table())
        return self.log_words(h.flatten(0, 1), *table, x.flatten() - END).view(x.shape).sum(1)

    def draw_masks(self, x: Tensor, rng: torch.Generator) -> tuple[Masks, ...]:
        """What dropout leaves out of one learning iteration."""
        if not (self.dropout or self.word_dropout):
            return ()
        words = torch.rand(x.shape, generator=rng, device=x.device) < self.word_dropout
        words[:, 0] = False  # <s> is always read as it is

        def keep(units: int) -> Tensor:
            uniform = torch.rand(*x.shape, units, generator=rng, device=x.device)
            return (uniform >= self.dropout).to(self.out.weight.dtype) / (1 - self.dropout)

        return (Masks(words, keep(self.embed.embedding_dim), keep(self.lstm.hidden_size)),)

    @torch.no_grad()
    def scalars(self, x: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Nats a word, and what the likelihood loses when sentences exchange their z with a neighbour: does z matter at
        all?"""
        if len(x) < 2:
            return {}
        matching, other = (self.log_prob(x, each).double().mean() for each in (z, z.roll(1, 0)))
        words = (x != PAD).sum() / len(x)
        return {"nll_word": -matching / words, "z_gain": matching - other, "z_share": (matching - other) / other.abs()}

    def _first(self, z: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.start(z).chunk(2, -1)
        return h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous()

    def _run(self, e: Tensor, z: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The LSTM over embeddings (n, T, embedding). Always in the mode of training: cuDNN has no gradients in the
        other."""
        inputs = torch.cat([e, z.to(e.dtype).unsqueeze(1).expand(-1, e.shape[1], -1)], -1)
        weights = cast(list[Tensor], self.lstm._flat_weights)
        h, a, b = torch.lstm(inputs, state, weights, True, 1, 0.0, True, False, True)
        return h, (a, b)

    def _logits(self, h: Tensor) -> Tensor:
        """Of </s> and the words after it: <pad> and <s> never come."""
        return F.linear(h, *self._table())

    def _table(self) -> tuple[Tensor, Tensor]:
        return self.out.weight[END : self.size], self.out.bias[END : self.size]

    # --- sentences from z -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, z: Tensor, rng: torch.Generator, rows: int = 0, beam: int = 0, **options: Any) -> Tensor:
        """Each word drawn from p(word | words before, z): a draw of p(x|z) at the options temperature 1 and top_p 1,
        their defaults. With a beam, the best it finds."""
        if beam:
            return self.decode(z, beam=beam)
        u = torch.rand(self.length + 1, max(rows, len(z)), generator=rng, device=z.device)
        return self.decode(z, u[:, : len(z)], **options)

    @torch.no_grad()
    def decode(
        self, z: Tensor, u: Tensor | None = None, temperature: float = 1.0, top_p: float = 1.0, beam: int = 0
    ) -> Tensor:
        """Rows of word numbers, (n, length + 1). Greedy; or sampled, where u (steps, n) are uniform numbers that choose
        the words; or the best sentence that a beam of that width finds."""
        check_decoding(temperature, top_p, beam)
        if beam > 1:
            return torch.cat([self._beam(row, beam) for row in z.split(1)])
        steps, state = self.length + 1, self._first(z)
        out = torch.full((len(z), steps), PAD, dtype=torch.int64, device=z.device)
        word = torch.full((len(z),), START, dtype=torch.int64, device=z.device)
        open_ = torch.ones(len(z), dtype=torch.bool, device=z.device)
        for t in range(steps):
            logits, state = self._next(word, z, state)
            word = END + (logits.argmax(-1) if u is None else choose(logits, u[t], temperature, top_p))
            word = torch.where(open_, word if t < steps - 1 else torch.full_like(word, END), PAD)
            out[:, t] = word
            open_ = open_ & (word != END)
            if t % 8 == 7 and not bool(open_.any()):
                break
        return out

    def _next(self, word: Tensor, z: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits of what comes after `word`, </s> first."""
        h, state = self._run(self.embed(word).unsqueeze(1), z, state)
        return self._logits(h.squeeze(1)), state

    def _beam(self, z: Tensor, width: int) -> Tensor:
        """The likeliest finished sentence among `width` kept at every length."""
        steps = self.length + 1
        score, words = torch.zeros(1, device=z.device), torch.empty(1, 0, dtype=torch.int64, device=z.device)
        state, last = self._first(z), torch.full((1,), START, dtype=torch.int64, device=z.device)
        best, best_words = -torch.inf, words
        for t in range(steps):
            logits, state = self._next(last, z.expand(len(last), -1), state)
            total = score.unsqueeze(1) + logits.log_softmax(-1)
            ended = total[:, 0]
            if float(ended.max()) > best:
                i = int(ended.argmax())
                best, best_words = float(ended[i]), F.pad(words[i], (0, 1), value=END)
            total[:, 0] = -torch.inf
            score, flat = total.flatten().topk(min(width, total.numel() - len(total)))
            if float(score[0]) <= best or t == steps - 1:  # longer ones are only less likely
                break
            row, last = flat // total.shape[1], END + flat % total.shape[1]
            words = torch.cat([words[row], last.unsqueeze(1)], 1)
            state = (state[0][:, row].contiguous(), state[1][:, row].contiguous())
        return F.pad(best_words, (0, steps - len(best_words)), value=PAD).unsqueeze(0)

    def to_text(self, rows: Tensor) -> list[str]:
        return self.words().sentences(rows)

    def trim(self, x: Tensor) -> Tensor:
        """Without the columns that are all padding."""
        return x[:, : max(1, int(lengths(x).max()))]

    def flops(self, rows: int) -> float:
        """Multiply-adds, times two, of one forward pass, for one word a row."""
        hidden, embedding = self.lstm.hidden_size, self.embed.embedding_dim
        return 2.0 * rows * (4 * hidden * (embedding + self.nz + hidden) + hidden * self.size)

    def make_encoder(self, nz: int, width: int, depth: int) -> nn.Module:
        """Two recurrent networks of `width` units, one from either end of the sentence."""
        from lebm.generators.encoders import TextNet

        return TextNet(self.capacity, self.embed.embedding_dim, nz, width)


def choose(logits: Tensor, u: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """What lies at u, in [0, 1), of the cumulative distribution; top_p < 1 keeps only the likeliest that have this mass
    together."""
    p = (logits / temperature).softmax(-1).double()
    order = None
    if top_p < 1:
        p, order = p.sort(-1, descending=True)
        p = torch.where(p.cumsum(-1) - p < top_p, p, 0.0)
    mass = p.cumsum(-1)
    place = torch.searchsorted(mass, (u.double() * mass[:, -1]).unsqueeze(1), right=True)
    return (place if order is None else order.gather(1, place)).squeeze(1)


def check_decoding(temperature: float, top_p: float, beam: int) -> None:
    if not temperature > 0:
        raise DataError(
            f"the temperature is {temperature}; it must be above 0 (greedy decoding takes the likeliest word)"
        )
    if not 0 < top_p <= 1:
        raise DataError(f"top_p is {top_p}; it must be above 0 and at most 1")
    if not 0 <= beam <= 100:
        raise DataError(f"the beam is {beam} wide; it must be between 0 (off) and 100")
