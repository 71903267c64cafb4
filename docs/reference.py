"""Generates the references of the documentation: the configuration from the pydantic models, the commands from their
parsers, the types of encoders from their families.
"""

import inspect
import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from distill.encoders.family import supported
from distill.encoders.student.families import FAMILIES
from distill.encoders.student.modeling_nas import classes_of
from nas.__main__ import COMMANDS
from nas.config.schema import StudyConfig

COLUMNS = 100


def commands() -> str:
    """The help of every command, as Markdown."""
    os.environ["COLUMNS"] = str(COLUMNS)
    parts = []
    for command, module in COMMANDS.items():
        parser: Callable[[], ArgumentParser] = import_module(module).parser
        text = parser().format_help().rstrip()
        usage = re.sub(r"^usage: (python -m )?\S+", f"usage: {command}", text)
        parts.append(f"## {command}\n\n```text\n{usage}\n```\n")
    return "\n".join(parts)


def configuration() -> str:
    """The tables of a preset with their keys, as Markdown."""
    schema = StudyConfig.model_json_schema()
    tables = dict(_tables(StudyConfig))
    parts = []
    for name, table in tables.items():
        properties = schema["properties"] if table is StudyConfig else schema["$defs"][name]["properties"]
        meanings = _meanings(table)
        parts += [f"### {name}\n", f"{_summary(table)}\n", "| key | value | default | meaning |", "|---|---|---|---|"]
        for key, field in table.model_fields.items():
            default = "required" if field.is_required() else _default(properties[key].get("default"))
            parts.append(f"| `{key}` | {_value(properties[key])} | {default} | {_cell(meanings[key])} |")
        parts.append("")
    return "\n".join(parts)


def families() -> str:
    """The types of encoders that are supported, as Markdown."""
    rows = ["| `model_type` | class of its students | what they cannot have |", "|---|---|---|"]
    for model_type in supported():
        family, model = FAMILIES[model_type], classes_of(model_type)["AutoModel"]
        lacking = {
            "experts": not family.experts,
            "experts of attention": family.experts and not family.attention_experts,
            "experts of the head, trigrams": model_type != "bert",
        }
        rows.append(
            f"| `{model_type}` | `{model.__name__}` | {', '.join(name for name, true in lacking.items() if true)} |"
        )
    return "\n".join(rows)


def _tables(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """A model and all models of its fields by their names, each once."""
    waiting, seen = [model], set()
    while waiting:
        table = waiting.pop(0)
        if table in seen:
            continue
        seen.add(table)
        yield table.__name__, table
        for field in table.model_fields.values():
            types = [field.annotation, *getattr(field.annotation, "__args__", ())]
            waiting += [part for part in types if inspect.isclass(part) and issubclass(part, BaseModel)]


def _summary(table: type[BaseModel]) -> str:
    return inspect.cleandoc(table.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _meanings(table: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a table and of the tables that it extends say of its keys."""
    meanings: dict[str, str] = {}
    for base in reversed(table.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for names, text in re.findall(r"^    ([\w, ]+): ((?:.|\n        )+)", section, re.M):
            meanings |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return meanings


def _value(schema: dict[str, Any]) -> str:
    """The values that a key takes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        parts = [_value(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(parts)
    if "enum" in schema:
        return ", ".join(f'`"{choice}"`' for choice in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_value(schema['items'])}" if schema.get("items") else "list"
    if kind == "object":
        inner = schema["additionalProperties"]
        return "table" if inner is True else f"tables: {_value(inner)}"
    if kind in ("integer", "number"):
        signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
        bounds = [f"{sign} {schema[key]:,}" for key, sign in signs.items() if key in schema]
        return " ".join(["whole number" if kind == "integer" else "number", ", ".join(bounds)]).strip()
    if schema.get("format") == "fraction":
        return 'fraction such as `"1/8"`'
    return {"boolean": "true or false", "string": "text"}.get(str(kind), "table")


def _default(value: Any) -> str:
    """The default of a key; empty for a table, whose defaults are in its own section."""
    match value:
        case None | dict() | []:
            return ""
        case bool():
            return str(value).lower()
        case list() | str():
            return f"`{_toml(value)}`"
    return f"{value:,}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items() if part is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    return re.sub(r"[.;] None: ", "; without it ", text).replace("|", "\\|")
