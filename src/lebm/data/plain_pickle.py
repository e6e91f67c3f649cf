"""Unpickling that cannot run code: dicts, lists, tuples, bytes, text, numbers and uint8 arrays, and nothing else.

There are two barriers. Before anything is built, every opcode must be on a short list. Then the few names that a
pickled array mentions are resolved to stand-ins defined here: a pickle never reaches a function or class of numpy or
Python.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from lebm.core.errors import DataError, one_line

OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 "
    "BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8 "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS "
    "BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD"
)
MAX_MEMO = 1 << 20  # the memo is a table as long as its largest index


class Refused(Exception):
    """The pickle asks for something that plain data never needs."""


class _StandIn:
    """What a name in a pickle becomes. A pickle can call it; it can set the state of an object so made, but nothing of
    the class itself, where `__setstate__` lacks an argument."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _UInt8(_StandIn):
    """The stand-in for numpy.dtype('u1'). Byte order and alignment have no meaning for single bytes."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise Refused(f"it holds an array of {code!r}")


class _Array(_StandIn):
    """The stand-in for an array under construction."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        sane = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 4
        plain = isinstance(kind, _UInt8) and fortran is False and type(raw) is bytes
        if not sane or not plain or len(raw) != math.prod(shape):
            raise Refused("it holds a malformed array")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _Encode(_StandIn):
    """The stand-in for _codecs.encode, by which Python 3 writes bytes into old protocols."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if type(text) is not str or encoding not in ("latin1", b"latin1"):
            raise Refused("it encodes something other than bytes")
        return text.encode("latin1")


NAMES = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _UInt8,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Encode,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise Refused(f"it asks for {module}.{name}")
        return NAMES[module, name]


def _check_opcodes(raw: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name not in OPCODES.split():
            raise Refused(f"it contains the instruction {opcode.name}")
        if opcode.name == "LONG_BINPUT" and (argument is None or argument > MAX_MEMO):
            raise Refused(f"it numbers an entry {argument}")


def load_plain(path: Path) -> Any:
    """The value in a pickle file; anything but plain data is a DataError, and nothing of it has run."""
    try:
        raw = path.read_bytes()
        _check_opcodes(raw)
        value = _Plain(io.BytesIO(raw), encoding="bytes").load()
    except Refused as e:
        raise DataError(
            f"{path} is not a plain batch of images: {one_line(e)}, which could run code, so it was not loaded; "
            "fetch the official file"
        ) from None
    except Exception as e:
        raise DataError(f"{path} is not a readable pickle ({one_line(e)}); fetch it again") from None
    if not isinstance(value, dict):
        return value
    return {key: v.value if isinstance(v, _Array) else v for key, v in value.items()}
