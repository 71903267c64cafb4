"""docs/papers.md, walked: every test that it names exists, every command parses, and its smallest form runs."""

import ast
import json
import random
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertPreTrainedModel,
)

from distill import augment
from distill.__main__ import main as distill_main
from distill.__main__ import parser as distill_parser
from distill.tasks.readers.glue import TASKS
from nas import compare, inspect
from nas.config.load import load_config
from nas.export import command as export
from nas.final import command as final
from nas.report import command as report
from nas.search import command as search
from nas.search.options import parser as search_parser
from search_spaces import PUBLISHED
from supernet import prune, student
from supernet.experts import command as experts
from tests.checkout import ROOT, tree
from tests.tiny import saved

PAGE = ROOT / "docs" / "papers.md"
# The program of a command -> its parser and its function.
PROGRAMS: dict[str, tuple[Callable[[], ArgumentParser], Callable[[list[str]], int]]] = {
    "nas.search": (search_parser, search.main),
    "nas.inspect": (inspect.parser, inspect.main),
    "nas.report": (report.parser, report.main),
    "nas.compare": (compare.parser, compare.main),
    "nas.export": (export.parser, export.main),
    "train_final.py": (final.parser, final.main),
    "distill": (distill_parser, distill_main),
    "distill.augment": (augment.parser, augment.main),
    "supernet.experts": (experts.parser, experts.main),
    "supernet.prune": (prune.parser, prune.main),
    "supernet.student": (student.parser, student.main),
}
BENCHMARKS = "benchmarks"
# Files of the reader's own, as the page or docs/final_training.md says; without `extends` they extend `efficientbert`.
OWN_FILES: dict[str, dict[str, Any]] = {
    "xy.toml": {"extends": "minimoe", "space": {"attention_experts": [1, 4]}},
    "one_step.toml": {"extends": "minimoe", "final": {"objective": {"relation": 0.0, "balance": 0.0}}},
    "scratch.toml": {"final": {"start": "random"}},
    "dynabert.toml": {
        "supernet": {"order": "importance"},
        "one_shot": {"widths": ["1", "1/2", "1/4"]},
        "final": {"start": "one_shot"},
    },
}


@dataclass(frozen=True)
class Row:
    """A row of one of the page's tables."""

    part: str
    command: str
    test: str
    difference: str


def rows() -> list[Row]:
    text = PAGE.read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    assert all(len(cells) == 4 for cells in table), [cells for cells in table if len(cells) != 4]
    return [Row(*cells) for cells in table if cells[0] != "part"]


def commands() -> list[str]:
    """The commands of the page, each once."""
    text = PAGE.read_text(encoding="utf-8")
    lines = re.findall(r"`python (?:-m )?([^`]+)`", text) + re.findall(r"^    python (?:-m )?(.+)$", text, re.M)
    return list(dict.fromkeys(lines))


def test_rows_are_whole_and_their_tests_exist() -> None:
    assert len(rows()) > 50
    for row in rows():
        assert row.part and row.difference, row
        named = re.fullmatch(r"`([\w/]+\.py)::(\w+)`", row.test)
        assert named, row
        functions = (node for node in ast.walk(tree(ROOT / "tests" / named[1])) if isinstance(node, ast.FunctionDef))
        assert named[2] in {function.name for function in functions}, row.test


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    program, *words = shlex.split(command)
    if program == BENCHMARKS:
        name, *words = words
        module = import_module(f"benchmarks.{name}")
        parser = ArgumentParser()
        module.add_options(parser)
        parser.parse_args(words)
        return
    options = PROGRAMS[program][0]().parse_args(words)
    if program == "nas.inspect" and not options.singular_values:
        assert options.architecture in PUBLISHED
    preset = getattr(options, "preset", None)
    if preset is not None and preset not in OWN_FILES:
        load_config(preset)


# The values of options in the smallest form of a command.
FEW = {"--trials": "2", "--steps": "2", "--rounds": "2", "--epochs": "0.1", "--batch-size": "4", "--batches": "3"}
# The trainings of the published presets, shortened; their models, spaces and budgets stay.
SHORT = {"steps": 2, "batch_size": 4}
PHASES = (
    "finetune",
    "candidate_pretrain",
    "candidate",
    "one_shot_warmup",
    "one_shot_pretrain",
    "one_shot",
    "pretrain",
    "warmup",
    "final",
)
STAGE = {"trials": 2, "confirm": 1, "confirm_seeds": 0}
WORDS = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


class World:
    """A folder with a small model, text and rows for the names in capitals of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fresh(self, name: str) -> Path:
        """A path that does not exist yet."""
        return self.folder / f"{name}-{sum(1 for _ in self.folder.iterdir())}"

    def bert(
        self, name: str, inner: int, layers: int, kind: type[BertPreTrainedModel] = BertForSequenceClassification
    ) -> Path:
        """A checkpoint in BERT's vocabulary and depth, but 96 wide."""
        path = self.folder / name
        if not path.exists():
            unused = [f"unused{number}" for number in range(30522 - 5 - len(WORDS))]
            config = BertConfig(hidden_size=96, num_hidden_layers=layers, intermediate_size=inner, num_labels=2)
            saved(kind(config), path, [*WORDS, *unused])
        return path

    @property
    def teacher(self) -> Path:
        return self.bert("bert", 3072, 12)

    @property
    def on_sst2(self) -> str:
        """Options with which experts are split, and channels pruned, on few rows."""
        return f"--task sst2 --data {self.glue} --max-length 16 --importance-batches 1"

    @cached_property
    def text(self) -> Path:
        path, rng = self.folder / "text", random.Random(0)
        path.mkdir()
        lines = (" ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "." for _ in range(200))
        (path / "all.txt").write_text("\n".join(lines) + "\n")
        return path

    @cached_property
    def glue(self) -> Path:
        path, rng = self.folder / "glue", random.Random(0)
        for task in ("sst2", "rte", "mnli", "mnli_mismatched"):
            write_rows(path, task, "train.tsv", 40, rng)
            write_rows(path, task, TASKS[task].dev_file, 12, rng)
            write_rows(path, task, "test.tsv", 6, rng, labelled=False)
        return path

    @cached_property
    def squad(self) -> Path:
        path, rng = self.folder / "squad", random.Random(0)
        path.mkdir()
        for name in ("train", "dev"):
            paragraphs = []
            for number in range(20):
                context = rng.choices(WORDS, k=8)
                answer = {"text": context[-1], "answer_start": len(" ".join(context[:-1])) + 1}
                asked = {"id": f"{number}", "question": context[0], "answers": [answer]}
                paragraphs.append({"context": " ".join(context), "qas": [asked]})
            content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
            (path / f"{name}.json").write_text(json.dumps(content))
        return path

    @cached_property
    def searched(self) -> Path:
        """The folder of a search that has ended with the published architecture."""
        path = self.folder / "searched"
        path.mkdir()
        PUBLISHED["efficientbert"].save(path / "architecture.json")
        return path

    def preset(self, name: str) -> Path:
        """The preset with short trainings, on the small model and text."""
        own = OWN_FILES.get(name, {})
        published = own.get("extends", "efficientbert") if own else name
        config = load_config(published)
        tables = {phase: SHORT for phase in PHASES if getattr(config, phase) is not None}
        tables["warmup"] = SHORT | {"importance_batches": 2}
        if config.pretrain.steps == 0:
            tables["pretrain"] = {"steps": 0, "batch_size": 4}
        # TinyBERT's layers are copied from a checkpoint, here a smaller one.
        shape = ("four", 1200, 4) if published == "microbert" else ("six", 3072, 6)
        base = {"base": str(self.bert(*shape))} if isinstance(config.base, str) else {}
        settings = {
            "extends": published,
            "teacher": str(self.teacher),
            "corpus": str(self.text),
            "max_length": 16,
            "tasks": ["sst2"],
            "data": str(self.glue),
            **base,
            **own,
            **{phase: table | own.get(phase, {}) for phase, table in tables.items()},
            **{f"stage{number}": STAGE for number in (1, 2, 3)},
        }
        if base or published == "moe":  # budgets that belong to other widths
            settings["space"] = {"min_params": 1, "max_params": "200M", "max_macs": "100G"}
        path = self.folder / f"{Path(name).stem}.toml"
        path.write_text(tomli_w.dumps(settings))
        return path

    def run(self, program: str, line: str, name: str) -> Path:
        """Run a command that writes to a folder of this name; returns the folder."""
        out = self.folder / name
        assert PROGRAMS[program][1]([*line.split(), "--out", str(out)]) == 0
        return out

    @cached_property
    def trained(self) -> Path:
        """Students of two tasks, as `train_final.py --tasks` leaves them."""
        options = f"--preset {self.preset('efficientbert')} --tasks sst2,rte --data {self.glue} --skip-base --quiet"
        return self.run("train_final.py", f"efficientbert {options}", "trained")

    def exported(self, task: str) -> Path:
        """The student of one of these tasks, exported, with its latencies."""
        name = f"exported-{task}"
        options = f"{self.trained / task} --batches 3 --rounds 2 --skip-scores"
        return self.folder / name if (self.folder / name).exists() else self.run("nas.export", options, name)

    @cached_property
    def tiny(self) -> Path:
        return self.run("supernet.student", f"tinybert-4 --like {self.teacher} --fresh", "tiny")

    @cached_property
    def study(self) -> Path:
        options = f"--stage 1 --preset {self.preset('efficientbert')} --study efficientbert --workers 1"
        return self.run("nas.search", options, "results") / "efficientbert"

    @cached_property
    def mixture(self) -> Path:
        options = f"{self.on_sst2} --experts 1 --head-experts 4"
        return self.run("supernet.experts", f"{self.teacher} {options}", "mixture")

    @cached_property
    def pruned(self) -> Path:
        return self.run("supernet.prune", f"{self.teacher} {self.on_sst2} --keep-params 5%", "pruned")

    @cached_property
    def started(self) -> Path:
        return self.run("supernet.student", f"minilm-12l-384h --like {self.teacher} --fresh", "started")

    @cached_property
    def conll(self) -> Path:
        path, rng = self.folder / "conll", random.Random(0)
        path.mkdir()
        for name in ("train", "dev"):
            lines = (
                f"{rng.choice(WORDS)} {rng.choice(['O', 'B-PER'])}\n" + "\n" * (row % 6 == 5) for row in range(180)
            )
            (path / f"{name}.conll").write_text("".join(lines))
        return path

    def smallest(self, program: str, words: Sequence[str]) -> list[str]:
        """The command with the files of this folder for the names in capitals, and with few and small steps."""
        names: dict[str, Callable[[], object]] = {
            "TEACHER": lambda: self.teacher,
            "bert-base-uncased": lambda: (
                self.bert("words", 3072, 12, BertForMaskedLM) if program == "distill.augment" else self.teacher
            ),
            "LARGE": lambda: self.bert("large", 4096, 24),
            "READER": lambda: self.bert("reader", 3072, 12, BertForQuestionAnswering),
            "google/bert_uncased_L-4_H-512_A-8": lambda: self.bert("small", 2048, 4),
            "TINY": lambda: self.tiny,
            "OTHER": lambda: self.exported("rte"),
            "GLUE": lambda: self.glue,
            "SQUAD": lambda: self.squad,
            "CONLL": lambda: self.conll,
            "START": lambda: self.started,
            "ASSISTANT": lambda: self.started,
            "TEXT": lambda: self.text,
            "ARCH": lambda: self.searched / "architecture.json",
            "MIXTURE": lambda: self.mixture,
            "PRUNED": lambda: self.pruned,
            "PREDICTIONS": lambda: self.fresh("predictions"),
            "results/efficientbert": lambda: self.study,
        }
        trained = dict.fromkeys(("nas.export", "nas.report", "nas.inspect"), lambda: self.trained / "sst2")
        trained["nas.compare"] = lambda: self.exported("sst2")
        result: list[str] = []
        for place, word in enumerate(words):
            before = words[place - 1] if place else ""
            if before in FEW:
                result.append(FEW[before])
            elif before == "--preset":
                result.append(str(self.preset(word)))
            elif before == "--evaluate":
                result.append(str(self.trained))
            elif before in ("--out", "--plot"):
                result.append(f"{self.fresh('out')}{Path(word).suffix}")
            elif word == "OUT":
                result.append(str(trained[program]()))
            elif before == "--tasks" and program == "train_final.py" and "mnli" in word:
                result.append("mnli,mnli_mismatched,rte")
            else:
                result.append(str(names[word]()) if word in names else word)
        small, few = ["--max-length", "16"], ["--batch-size", "4"]
        long = {"--steps", "--epochs"} & set(words)
        more = {
            "distill.augment": ["--copies", "2"],
            "distill": [*small, *few, *([] if long else ["--steps", "2"])],
            "supernet.experts": [*small, "--importance-batches", "1", *([] if "--batch-size" in words else few)],
            "supernet.prune": [*small, *few, "--importance-batches", "1"],
            "nas.search": ["--out", str(self.fresh("results")), "--workers", "1"],
            "nas.export": ["--out", str(self.fresh("export")), "--skip-scores"],
            "nas.report": ["--out", str(self.fresh("report") / "report.html")],
        }
        skip = ["--skip-base"] if program == "train_final.py" and "--evaluate" not in words else []
        return [*result, *more.get(program, []), *skip]


def write_rows(data: Path, task: str, file: str, count: int, rng: random.Random, labelled: bool = True) -> None:
    """A file in GLUE's layout."""
    source = TASKS[task]
    folder = data / source.folder
    columns = ["index", *source.texts, *([source.label] if labelled else [])]
    lines = ["\t".join(columns)]
    for number in range(count):
        texts = [" ".join(rng.choices(WORDS, k=6)) for _ in source.texts]
        classes = source.task.labels
        label = str(rng.randrange(len(classes))) if source.numbers else rng.choice(classes)
        lines.append("\t".join([str(number), *texts, *([label] if labelled else [])]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("papers"))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_without_tokens")
@pytest.mark.parametrize("command", [one for one in commands() if not one.startswith(BENCHMARKS)])
def test_the_smallest_form_runs(command: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are run by their own tests."""
    monkeypatch.setenv("FFN_NAS_CACHE", str(world.folder / "cache"))
    program, *words = shlex.split(command)
    assert PROGRAMS[program][1](world.smallest(program, words)) == 0
