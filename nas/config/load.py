"""Reading a configuration: presets, a user's own TOML file that may extend another, and overrides."""

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
    """A configuration from TOML text; `name` is what errors call it. `extends` names the preset, or the file beside
    this one, whose tables these are put over.
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
