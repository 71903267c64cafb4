"""What can be chosen by name on the command line, with a line each: objectives and tasks.

This module imports nothing that takes long, so that `--help` can show its tables at once.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from foundation.errors import UserError
from foundation.extensions import load_extensions

# Stands for a name in an option that has a list of its names: `--objective '?'`.
ASK = "?"

# The keys of `distill.objectives.OBJECTIVES`.
OBJECTIVES = {
    "efficientbert": "attention scores, states and embeddings of all layers, soft labels (the default of searches)",
    "tinybert": "attention scores and states of all layers, then soft labels",
    "moebert": "labels, states of all layers, symmetric divergence of the predictions; for experts",
    "minimoe": "the self-attention relations of one layer; for experts",
    "microbert": "labels, soft labels, pooled states, and a critic that is trained against the student",
    "kd": "labels and soft labels (the default of distill)",
    "pkd": "labels, soft labels, [CLS] states of the layers between",
    "distilbert": "labels, soft labels, the direction of the last states",
    "minilm": "attention and value relations of the last layer",
    "minilmv2": "relations of queries, keys and values of one layer",
    "codir": "labels, soft labels, and which sentence it is among others",
    "theseus": "labels, while the student's layers stand in for the teacher's",
    "embeddings": "vectors of sentences, their similarities, states of all layers; for sentence encoders",
    "reranking": "scores of pairs, their differences for one query, states of all layers; for rerankers",
    "none": "labels alone, without a teacher",
}

# The tasks of `distill.tasks.readers.READERS`.
TASKS = {
    "library": "which library the sentence documents (text of this installation)",
    "neighbours": "whether the second sentence follows the first (text of this installation)",
    "word_order": "whether two neighboring words were swapped (text of this installation)",
    "cola": "whether the sentence is grammatical (GLUE)",
    "sst2": "whether the review is positive (GLUE)",
    "mrpc": "whether two sentences mean the same (GLUE)",
    "stsb": "how similar two sentences are, a number (GLUE)",
    "qqp": "whether two questions ask the same (GLUE)",
    "mnli": "entailment, contradiction or neither; matched dev rows (GLUE)",
    "mnli_mismatched": "the same; mismatched dev rows (GLUE)",
    "qnli": "whether the sentence answers the question (GLUE)",
    "rte": "whether the second sentence follows from the first (GLUE)",
    "wnli": "whether a sentence with its pronoun replaced follows (GLUE)",
    "snli": "entailment, contradiction or neither, of captions",
    "squad": "where the answer is in a paragraph (SQuAD 1.1)",
    "squad_v2": "the same, with questions that have no answer (SQuAD 2.0)",
    "conll2003": "names of persons, organizations, places and others",
    "wnut17": "names in posts and comments",
    "conll": "tags of words, in files of your own (--data)",
}


def objectives() -> dict[str, str]:
    """All objectives with their lines, also those that extensions have added."""
    from distill.objectives import OBJECTIVES as known  # imports torch, which takes seconds

    return described(OBJECTIVES, known)


def all_settings() -> dict[str, str]:
    """All objectives with their settings and the defaults of these."""
    from distill.objectives import OBJECTIVES as known

    defaults = {
        name: ", ".join(f"{key}={value}" for key, value in spec.defaults.items()) for name, spec in known.items()
    }
    return {name: text or "no settings" for name, text in defaults.items()}


def tasks() -> dict[str, str]:
    """All tasks with their lines, also those that extensions have added."""
    from distill.tasks.readers import READERS

    return described(TASKS, [task for reader in READERS for task in reader.TASKS])


def described(lines: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The lines of these names; those without one are from extensions."""
    return {name: lines.get(name, "from an extension") for name in names}


def columns(lines: Mapping[str, str]) -> str:
    """Names and their lines, one below the other."""
    width = max(map(len, lines))
    return "\n".join(f"  {name:<{width}}  {line}" for name, line in lines.items())


def listing(choices: Callable[[], Mapping[str, str]]) -> type[argparse.Action]:
    """The action of an option whose value `?` prints the choices and ends the command, whatever else it lacks. If its
    default is a list, it may be repeated.
    """

    class Listing(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            if values == ASK:
                try:
                    load_extensions()
                except UserError as error:
                    parser.error(str(error))
                print(columns(choices()))
                parser.exit()
            setattr(
                namespace,
                self.dest,
                [*getattr(namespace, self.dest), values] if isinstance(self.default, list) else values,
            )

    return Listing
