"""From an error of pydantic to one sentence that names the key, its value and what would be valid.

The limits are read from the JSON schema, which is made from the annotations of the sections: they are written down
once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from lebm.core.lookup import did_you_mean
from lebm.core.section import show

Node = Mapping[str, Any]  # a part of a JSON schema


def sentence(schema: Node, error: Mapping[str, Any]) -> str:
    """What is wrong, in words; `error` is an entry of `ValidationError.errors()`."""
    *parents, last = error["loc"] or ("",)
    if error["type"] == "extra_forbidden":
        return _unknown_key(schema, parents, str(last))
    loc, value = error["loc"], error["input"]
    if error["type"] == "missing" and isinstance(value, list | tuple):  # too few entries
        loc = parents
    key, node = _locate(schema, loc)
    if error["type"] == "missing" and loc == error["loc"]:
        return f"{key} is missing; it must be {_must_be(node)}"
    kinds = list(node.get("discriminator", {}).get("mapping", ()))
    if error["type"] == "union_tag_invalid":
        key, value, node = f"{key}.kind", value["kind"], {"enum": kinds}
    close = did_you_mean(value, node["enum"]) if "enum" in node and isinstance(value, str) else ""
    return f"{key or 'the configuration'} is {show(value)}{close}; it must be {_must_be(node)}"


def _unknown_key(schema: Node, parents: list[Any], name: str) -> str:
    section, node = _locate(schema, parents)
    prefix = f"{section}." if section else ""
    here = list(node.get("properties", ()))
    close = [prefix + n for n in get_close_matches(name, here, n=1)]
    paths = dict.fromkeys(path for path in _all_keys(schema, schema, "") if path.rpartition(".")[2] == name)
    suggestions = " or ".join([*close, *paths][:4])
    hint = f" (did you mean {suggestions}?)" if suggestions else ""
    _, union = _locate(schema, parents[:-1])
    kinds = union.get("discriminator", {}).get("mapping", {})
    others = [kind for kind, ref in kinds.items() if name in _resolved(schema, {"$ref": ref})["properties"]]
    if others:
        hint = f" (it is a key of {section}.kind {' or '.join(others)})"
    return f"unknown key {prefix}{name[:60]}{hint}; valid here: {', '.join(prefix + n for n in here)}"


def _resolved(schema: Node, node: Node) -> Node:
    """The node with its reference followed; of a node that may be null, the other alternative."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    if "anyOf" in node:
        other = next(n for n in node["anyOf"] if n.get("type") != "null")
        return {**_resolved(schema, other), "nullable": True}
    return node


def _locate(schema: Node, loc: Any) -> tuple[str, Node]:
    """The dotted key of an error's place, and its part of the schema. The kinds of sections are in the place, not in
    the key."""
    key, node = "", schema
    for part in loc:
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            node = {"$ref": kinds[part]}
        elif isinstance(part, int):
            key, inner = f"{key}[{part}]", node.get("prefixItems", [])
            node = inner[part] if part < len(inner) else node.get("items", {})
        elif part != "[key]":
            key = f"{key}.{part}" if key else str(part)
            node = node.get("properties", {}).get(part, node.get("additionalProperties") or {})
        node = _resolved(schema, node)
    return key, node


def _all_keys(schema: Node, node: Node, prefix: str) -> Iterator[str]:
    """Every dotted key of every kind of section."""
    node = _resolved(schema, node)
    for alternative in node.get("oneOf", ()):
        yield from _all_keys(schema, alternative, prefix)
    for name, inner in node.get("properties", {}).items():
        yield prefix + name
        yield from _all_keys(schema, inner, f"{prefix}{name}.")


def _must_be(node: Node) -> str:
    return _type(node) + (", or null" if node.get("nullable") else "")


def _type(node: Node) -> str:
    if "const" in node or "enum" in node:
        values = [str(v) for v in node.get("enum", [node.get("const")])]
        return f"one of {', '.join(values)}" if len(values) > 1 else values[0]
    if "discriminator" in node:
        return f"a section whose kind is one of {', '.join(node['discriminator']['mapping'])}"
    if "properties" in node:
        return f"a section with the keys {', '.join(node['properties'])}"
    if "prefixItems" in node:
        return f"a list of {len(node['prefixItems'])} entries"
    if node.get("type") == "array":
        most = f" of at most {node['maxItems']:,} entries" if "maxItems" in node else ""
        return f"a list{most} such as [2, 1]"
    return _TYPES.get(node.get("type", ""), "a section of names and values") + _limits(node)


def _limits(node: Node) -> str:
    if "minimum" in node and "maximum" in node:
        return f" between {_digits(node['minimum'])} and {_digits(node['maximum'])}"
    limits = [f"{words} {_digits(node[key])}" for key, words in _LIMITS.items() if key in node]
    return f" {' and '.join(limits)}" if limits else ""


_TYPES = {"integer": "a whole number", "number": "a finite number", "boolean": "true or false", "string": "text"}
_LIMITS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _digits(limit: float) -> str:
    return f"{int(limit):,}" if float(limit).is_integer() else f"{limit:g}".replace("e-0", "e-")
