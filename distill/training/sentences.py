"""The files that make a folder with an encoder a SentenceTransformer: its pooling and further modules, and prompts.

They are copied with the module names and settings of older versions of sentence-transformers, which newer ones read
too. The package itself is not needed.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import Lowercase, Sequence
from transformers.utils import cached_file

from distill.tasks.types.embeddings import CLS, MAX, MEAN, MEAN_SQRT, MODES
from foundation.errors import UserError, shortened
from foundation.files import read_json, write_text
from foundation.hub import why_unreachable

MODULES, TRANSFORMER = "modules.json", "sentence_bert_config.json"
# The names that the settings of the Transformer module have had, one for every type of encoder.
FORMER = "sentence_*_config.json"
PROMPTS = "config_sentence_transformers.json"
# The modules that all sentence encoders begin with.
KINDS = ["Transformer", "Pooling"]
# The settings of older versions that stand for the kinds of pooling.
FLAGS = {
    CLS: "pooling_mode_cls_token",
    MEAN: "pooling_mode_mean_tokens",
    MAX: "pooling_mode_max_tokens",
    MEAN_SQRT: "pooling_mode_mean_sqrt_len_tokens",
}
# Settings of modules that older versions do not know.
NEW_SETTINGS = ("module_input_name", "module_output_name")


class SentencesError(UserError, ValueError):
    """A model is no sentence encoder that can be compressed."""


def files_of(source: str) -> Path:
    """The folder of a model's files except its weights; those of a name on the hub are downloaded.

    Raises:
        SentencesError: there is no sentence encoder.
    """
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            if why := why_unreachable(source):
                raise SentencesError(f"no model at {source!r}: {why}")
            folder = Path(snapshot_download(source, allow_patterns=["*.json", "[0-9]*_*/*"]))
        except (OSError, HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
            raise SentencesError(f"the model {source!r}: {error}") from None
    if not (folder / MODULES).is_file():
        raise SentencesError(
            f"the model {source!r} is no sentence encoder: it has no {MODULES}, which says how its states become a "
            "vector; save it with sentence-transformers"
        )
    return folder


def is_sentence_encoder(source: str) -> bool:
    """Whether the modules of a folder or name make it one, whatever head its config.json names: often it is that of the
    encoder's pre-training, which the folder no longer has.
    """
    try:
        file = cached_file(source, MODULES)
        return file is not None and [_kind(module) for module in _modules(Path(file).parent)][:2] == KINDS
    except (OSError, SentencesError):  # there is no such file, or it names modules of others
        return False


def pooling_of(source: str) -> dict[str, Any]:
    """How the states of a sentence encoder become vectors: `distill.tasks.types.embeddings.POOLING`.

    Args:
        source: a folder, or a name on the hub.

    Raises:
        SentencesError: it is no sentence encoder, or pools in another way, such as without the tokens of its prompts.
    """
    folder = files_of(source)
    modules = _modules(folder)
    kinds = [_kind(module) for module in modules]
    if kinds[:2] != KINDS:
        raise SentencesError(
            f"{folder / MODULES}: the modules are {', '.join(kinds)}; Transformer and Pooling are needed"
        )
    described = read_json(folder / modules[1]["path"] / "config.json")
    if not isinstance(described, dict):
        raise SentencesError(f"{folder / modules[1]['path'] / 'config.json'}: must be an object")
    names = {flag: mode for mode, flag in FLAGS.items()}
    flags = [flag for flag, on in described.items() if flag.startswith("pooling_mode_") and on]
    mode = described.get("pooling_mode") or [names.get(flag, flag) for flag in flags]
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if mode not in MODES:
        raise SentencesError(f"the model {source!r}: pooling {shortened(mode)} is not one of {', '.join(MODES)}")
    if described.get("include_prompt") is False and (prompts := list(filter(None, _prompts(folder).values()))):
        raise SentencesError(
            f"the model {source!r} leaves the tokens of prompts such as {shortened(prompts[0])} out of its vectors, "
            f"which is not supported: for texts without prompts, remove them from its {PROMPTS}"
        )
    return {"mode": mode, "normalize": kinds[2:3] == ["Normalize"]}


def check_prompt(source: str) -> None:
    """Raise SentencesError if sentence-transformers puts a prompt before texts for which none is asked."""
    folder = files_of(source)
    if prompt := _prompts(folder).get(_stored(folder / PROMPTS).get("default_prompt_name")):
        raise SentencesError(
            f"the model {source!r} puts {shortened(prompt)} before every text, as default_prompt_name in its {PROMPTS} "
            "says: put it into your texts, and set default_prompt_name to null there; the student may have it again"
        )


def lower_cases(source: str) -> bool:
    """Whether sentence-transformers lower-cases the texts of this model, whatever its tokenizer does."""
    return is_sentence_encoder(source) and bool(_transformer(files_of(source)).get("do_lower_case"))


def lower_case(tokenizer: Any) -> None:
    """Let a tokenizer lower-case texts first, as sentence-transformers does. Many types of tokenizers forget it when
    they are saved and loaded.
    """
    former = tokenizer.backend_tokenizer.normalizer
    several = isinstance(former, Sequence)
    steps = [*former] if several else [] if former is None else [former]
    if not any(isinstance(step, Lowercase) for step in steps):
        tokenizer.backend_tokenizer.normalizer = Sequence([Lowercase(), *steps])


def prompts_of(source: str) -> tuple[str, str]:
    """What stands before queries and before passages."""
    prompts = _prompts(files_of(source))
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)), "")
    return prompts.get("query") or "", passage


def compares_by_products(source: str) -> bool:
    """Whether vectors are compared by their products instead of their cosines."""
    file = files_of(source) / PROMPTS
    return file.is_file() and read_json(file).get("similarity_fn_name") in ("dot", "dot_score")


def copy_modules(source: str, out: Path) -> None:
    """Make a folder with an encoder a SentenceTransformer with the modules and prompts of another one.

    Args:
        source: the folder or name of a SentenceTransformer.
    """
    folder = files_of(source)
    modules = _modules(folder)
    for number, module in enumerate(modules):
        kind, path = ("Transformer", "") if number == 0 else (_kind(module), module["path"])
        module |= {"type": f"sentence_transformers.models.{kind}", "path": path}
        if path:
            (out / path).mkdir(parents=True, exist_ok=True)
            for file in filter(Path.is_file, (folder / path).glob("*")):
                shutil.copyfile(file, out / path / file.name)
            if (file := out / path / "config.json").is_file():
                _write(file, _older(kind, read_json(file)))
    _write(out / MODULES, modules)
    stored = _transformer(folder)
    # Newer versions of sentence-transformers keep the length with the tokenizer.
    length = stored.get("max_seq_length") or _stored(folder / "tokenizer_config.json").get("model_max_length")
    settings = {"max_seq_length": length, "do_lower_case": stored.get("do_lower_case", False)}
    _write(out / TRANSFORMER, {name: value for name, value in settings.items() if value is not None})
    if (folder / PROMPTS).is_file():
        shutil.copyfile(folder / PROMPTS, out / PROMPTS)


def read_modules(folder: Path) -> dict[str, bytes]:
    """The files by which a folder with an encoder is a SentenceTransformer, by their paths in it."""
    files = [folder / name for name in (MODULES, TRANSFORMER, PROMPTS)]
    for module in _modules(folder)[1:]:
        files += (folder / module["path"]).glob("*")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}


def _stored(file: Path) -> dict[str, Any]:
    return dict(read_json(file)) if file.is_file() else {}


def _transformer(folder: Path) -> dict[str, Any]:
    """The settings of the Transformer module."""
    files = (folder / TRANSFORMER, *sorted(folder.glob(FORMER)))
    return next(filter(None, map(_stored, files)), {})


def _prompts(folder: Path) -> dict[Any, str]:
    return _stored(folder / PROMPTS).get("prompts") or {}


def _older(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a module in the words of older versions."""
    result = {name: value for name, value in settings.items() if name not in NEW_SETTINGS}
    if kind == "Pooling" and "pooling_mode" in result:
        mode = result.pop("pooling_mode")
        if "embedding_dimension" in result:
            result["word_embedding_dimension"] = result.pop("embedding_dimension")
        modes = [mode] if isinstance(mode, str) else mode
        result |= {flag: name in modes for name, flag in FLAGS.items()}
    return result


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise SentencesError(f"{folder / MODULES}: must be a list of modules with type and path")
    for module in modules[1:]:
        if not module["type"].startswith("sentence_transformers."):
            raise SentencesError(f"{folder / MODULES}: {module['type']!r} is no module of sentence-transformers")
        if module["path"] != Path(module["path"]).name:
            raise SentencesError(f"{folder / MODULES}: {module['path']!r} is not the name of a folder in it")
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _write(file: Path, content: Any) -> None:
    write_text(file, json.dumps(content, indent=2) + "\n")
