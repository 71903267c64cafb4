"""Reading a configuration: presets, a user's own TOML file that may extend another, and overrides."""

import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nas.config.schema import ConfigError, StudyConfig
from search_spaces.errors import did_you_mean


def _keys(place: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at this place."""
    table: Any = StudyConfig
    for key in place:
        field = getattr(table, "model_fields", {}).get(key)
        table = field and field.annotation
    return list(getattr(table, "model_fields", ()))


def presets() -> list[str]:
    """The names that `load_config` knows."""
    folder = resources.files("nas.config") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


# Of two keys a preset gives one; what extends it may give the other.
ALTERNATIVES = {"steps": "epochs", "epochs": "steps"}


def load_config(name: str, overrides: dict[str, Any] | None = None) -> StudyConfig:
    """The preset `name`, or the TOML file at that path, with `overrides` ("space.max_params": ...) put over it.

    Raises:
        ConfigError: no such preset or file, no TOML, or a value that cannot be; the message names the place.
    """
    return parse_config(_source(name), name, overrides)


def _source(name: str) -> str:
    """The text of a preset or file."""
    if name in presets():
        return (resources.files("nas.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    if name.endswith(".toml"):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    known = ", ".join(presets())
    raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, presets())} (presets: {known}; or a .toml file)")


def parse_config(text: str, name: str, overrides: dict[str, Any] | None = None) -> StudyConfig:
    """A configuration from TOML text; errors call it `name`. `extends` names the preset, or the file beside this one,
    whose tables these are put over. The files of `[rows.NAME]` are found as `_absolute_rows` says.
    """
    tables = _extended(_parsed(text, name), name, (name,))
    for place, value in (overrides or {}).items():
        outer, *inner = place.split(".")
        if inner and not isinstance(tables.get(outer, {}), dict):
            continue  # a fault that the check below names
        for key in reversed(inner):
            value = {key: value}
        tables = merged(tables, {outer: value})
    try:
        return StudyConfig.model_validate(tables)
    except ValidationError as error:
        # A misspelt key first: it explains why another one is missing.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        first = faults[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unknown key{did_you_mean(str(first['loc'][-1]), _keys(first['loc'][:-1]))}"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(f"{name}: {place}: {message}{more}") from None


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and deep nesting
        raise ConfigError(f"{name}: not TOML: {error}") from None


def _extended(tables: dict[str, Any], name: str, line: tuple[str, ...]) -> dict[str, Any]:
    """These tables over those that they extend; `line` has the names on the way here."""
    if name.endswith(".toml"):
        tables = _absolute_rows(tables, Path(name))
    if "extends" not in tables:
        return tables
    own = {key: value for key, value in tables.items() if key != "extends"}
    below = tables["extends"]
    if not isinstance(below, str):
        raise ConfigError(f"{name}: extends: is the name of a preset or a .toml file, not {below!r}")
    if below not in presets() and name.endswith(".toml"):
        below = str(Path(name).parent / below)
    if below in line:
        raise ConfigError(f"{name}: extends: {' -> '.join((*line, below))} goes in a circle")
    try:
        return merged(_extended(_parsed(_source(below), below), below, (*line, below)), own)
    except ConfigError as error:
        if len(line) > 1:
            raise
        raise ConfigError(f"{name}: extends: {error}") from None


def _absolute_rows(tables: dict[str, Any], preset: Path) -> dict[str, Any]:
    """These tables with absolute paths in `[rows.NAME]`. Relative ones are relative to the folder of `preset`.

    A study's own config.toml has absolute paths, except where an earlier version wrote it: relative paths in a file of
    that name may also be relative to the working directory, as they were then.

    Raises:
        ConfigError: such a path names one file beside config.toml and another one in the working directory.
    """
    rows = tables.get("rows")
    if not isinstance(rows, dict):
        return tables

    def absolute(place: str, path: str) -> str:
        beside, from_here = Path(os.path.abspath(preset.parent / path)), Path(os.path.abspath(path))
        if preset.name != "config.toml" or not from_here.exists():
            return str(beside)
        if beside.exists() and not beside.samefile(from_here):
            raise ConfigError(f"{preset}: {place}: both {beside} and {from_here} exist; give the absolute path")
        return str(from_here)

    resolved = {
        name: {
            key: absolute(f"rows.{name}.{key}", value) if key in ("train", "dev") and isinstance(value, str) else value
            for key, value in table.items()
        }
        if isinstance(table, dict)
        else table
        for name, table in rows.items()
    }
    return tables | {"rows": resolved}


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables with what `above` says put over `below`. An objective of another name keeps nothing of the one below."""
    replaced = {ALTERNATIVES[key] for key in above if key in ALTERNATIVES} - above.keys()
    result: dict[str, Any] = {key: value for key, value in below.items() if key not in replaced}
    for key, value in above.items():
        old: Any = result.get(key)
        together = isinstance(value, dict) and isinstance(old, dict)
        if together and key == "objective":
            together = value.get("name", old.get("name")) == old.get("name")
        result[key] = merged(old, value) if together else value
    return result
