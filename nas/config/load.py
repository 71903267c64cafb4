"""Loads a configuration from a preset or from a TOML file, which may extend another one, and applies overrides."""

import os
import tomllib
from argparse import Namespace
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from foundation.errors import beginning, did_you_mean, shortened
from nas.config.schema import ConfigError, StudyConfig
from nas.config.stages import SAMPLER_SETTINGS, StageTable


class Given(NamedTuple):
    """A value from a command-line option that overrides the configuration; errors name the option, not the key."""

    option: str
    value: Any


def given_values(options: Namespace, *places: str) -> dict[str, Given]:
    """The values of those of the options that are given, by their places in the configuration, which are dotted paths
    that end in the names of the options.
    """
    names = {place: place.rpartition(".")[2] for place in places}
    return {
        place: Given(f"--{name.replace('_', '-')}", value)
        for place, name in names.items()
        if (value := getattr(options, name)) is not None
    }


def presets() -> list[str]:
    folder = resources.files("nas.config") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


# If a file that extends a preset gives one of these keys, the preset's other one is dropped.
ALTERNATIVES = {"steps": "epochs", "epochs": "steps"}


def load_config(name: str | Path, overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """The configuration of the preset `name`, or of the TOML file at that path.

    Args:
        overrides: values by dotted path, such as `{"space.max_params": 15_000_000}`; those from options are
            wrapped in `Given`. Files of rows are relative to the working directory.

    Raises:
        ConfigError: the preset or file does not exist, is not TOML, or has an invalid value; the message names the key,
            or the option that gave the value. Or the arguments are of other types.
    """
    name = str(name) if isinstance(name, Path) else name
    if not isinstance(name, str):
        raise ConfigError(f"name: must be the name of a preset or a .toml file, not {shortened(name)}")
    if not isinstance(overrides, Mapping | None) or not all(isinstance(place, str) for place in overrides or ()):
        form = '{"space.max_params": 15_000_000}'
        raise ConfigError(f"overrides: must be values by dotted path, such as {form}, not {shortened(overrides)}")
    return parse_config(_source(name), name, overrides)


def preset_text(name: str) -> str:
    return (resources.files("nas.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def _source(name: str) -> str:
    if name in presets():
        return preset_text(name)
    if name.endswith(".toml"):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    known = ", ".join(presets())
    raise ConfigError(
        f"unknown preset {shortened(name, 300)}{did_you_mean(name, presets())} (presets: {known}; or a .toml file)"
    )


def parse_config(text: str, name: str, overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """Parse a configuration from TOML text. Its key `extends` names a preset, or a file relative to this one, whose
    tables it overrides. See `_absolute_rows` for how the files of `[rows.NAME]` are found.

    Args:
        name: the file or preset that the text is from; error messages begin with it.
        overrides: see `load_config`.

    Raises:
        ConfigError: see `load_config`.
    """
    tables = _extended(_parsed(text, name), name, (name,))
    options, values = {}, {}
    for place, value in (overrides or {}).items():
        if isinstance(value, Given):
            options[place], value = value
        outer, *inner = place.split(".")
        if inner and not isinstance(tables.get(outer, {}), dict):
            continue  # the validation below reports this mistake
        values[place] = value
    tables = merged(tables, _absolute_rows(_nested(values), Path()))
    try:
        return StudyConfig.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_first_mistake(error, name, options)) from None


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with these values, which are given by dotted path."""
    result: dict[str, Any] = {}
    for place, value in values.items():
        *outer, key = place.split(".")
        table = result
        for name in outer:
            table = table.setdefault(name, {})
        table[key] = dict(value) if isinstance(value, dict) else value
    return result


def _first_mistake(error: ValidationError, name: str, options: Mapping[str, str]) -> str:
    """The message for one validation error: the file and key, or the option that gave the value; what is wrong with it,
    and how many more errors there are. A misspelt key is reported first, because it may be the reason why another key
    is missing.

    Args:
        name: the file or preset.
        options: the options that gave values, by dotted path.
    """
    first = min(error.errors(), key=lambda mistake: mistake["type"] != "extra_forbidden")
    path = first["loc"]
    message = _cut(first["msg"].removeprefix("Value error, "))
    if first["type"] == "extra_forbidden":
        message = f"unknown key{did_you_mean(_cut(str(path[-1])), _keys(path[:-1]))}"
    elif message.startswith("Input should be"):
        message = f"{_in_toml(message, first['type'])}, not {shortened(first['input'])}"
    others = len({_where(mistake, name, options) for mistake in error.errors()}) - 1
    return ": ".join([*_where(first, name, options), f"{message} (and {others} more)" if others else message])


def _where(mistake: Any, name: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Where the mistake is: the option that gave the value, or the file and the key."""
    place = _cut(".".join(map(str, mistake["loc"])))
    given = [option for key, option in options.items() if f"{place}.".startswith(f"{key}.")]
    return tuple(given[:1]) or (name, *([place] if place else []))


def _in_toml(message: str, kind: str) -> str:
    """A message of pydantic in the words of TOML, without what it says of Python.

    Args:
        kind: pydantic's name of the mistake.
    """
    if kind == "model_type":
        return "Input should be a table"
    return (message.partition(", ")[0] if kind.endswith("_parsing") else message).replace("tuple", "list")


def _cut(text: str, limit: int = 500) -> str:
    return text if len(text) <= limit else f"{beginning(text, limit)}..."


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the table at this path of the configuration may have."""
    table: Any = StudyConfig
    for key in path:
        field = getattr(table, "model_fields", {}).get(key)
        table = field and field.annotation
    return list(getattr(table, "model_fields", ()))


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and deep nesting
        raise ConfigError(f"{name}: not TOML: {error}") from None


def _extended(tables: dict[str, Any], name: str, chain: tuple[str, ...]) -> dict[str, Any]:
    """The tables of the file `name`, merged into those of the file that it extends, and so on.

    Args:
        chain: the files that extend each other so far, ending with this one.

    Raises:
        ConfigError: a file in the chain cannot be read, or the chain is a circle.
    """
    if name.endswith(".toml"):
        tables = _absolute_rows(tables, Path(name))
    if "extends" not in tables:
        return tables
    base = tables["extends"]
    overriding = {key: value for key, value in tables.items() if key != "extends"}
    if not isinstance(base, str):
        raise ConfigError(f"{name}: extends: must be the name of a preset or a .toml file, not {shortened(base)}")
    if base not in presets() and name.endswith(".toml"):
        base = str(Path(name).parent / base)
    if base in chain:
        raise ConfigError(f"{name}: extends: {' -> '.join((*chain, base))} is a cycle")
    try:
        return merged(_extended(_parsed(_source(base), base), base, (*chain, base)), overriding)
    except ConfigError as error:
        if len(chain) > 1:
            raise
        raise ConfigError(f"{name}: extends: {error}") from None


def _absolute_rows(tables: dict[str, Any], preset: Path) -> dict[str, Any]:
    """These tables with absolute paths in `[rows.NAME]`. Relative paths are relative to the folder of `preset`, and "~"
    is the user's home.
    """
    rows = tables.get("rows")
    if not isinstance(rows, dict):
        return tables
    resolved = {
        name: {
            key: os.path.abspath(preset.parent / os.path.expanduser(value))
            if key in ("train", "dev") and isinstance(value, str | Path)
            else value
            for key, value in table.items()
        }
        if isinstance(table, dict)
        else table
        for name, table in rows.items()
    }
    return tables | {"rows": resolved}


def merged(base: dict[str, Any], overriding: dict[str, Any]) -> dict[str, Any]:
    """The tables of `base` with those of `overriding` merged into them, key by key. An objective with another name
    replaces the whole table of the objective, because it has other settings, and another sampler those of the sampler.
    """
    replaced = {ALTERNATIVES[key] for key in overriding if key in ALTERNATIVES} - overriding.keys()
    sampler = base.get("sampler", StageTable.model_fields["sampler"].default)
    if overriding.get("sampler", sampler) != sampler:
        replaced |= set(SAMPLER_SETTINGS)
    result: dict[str, Any] = {key: value for key, value in base.items() if key not in replaced}
    for key, value in overriding.items():
        old: Any = result.get(key)
        mergeable = isinstance(value, dict) and isinstance(old, dict)
        if mergeable and key == "objective":
            mergeable = value.get("name", old.get("name")) == old.get("name")
        result[key] = merged(old, value) if mergeable else value
    return result
