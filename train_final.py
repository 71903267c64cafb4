"""Train a searched architecture and leave an ordinary Hugging Face checkpoint.

    python train_final.py results/demo/architecture.json [--out DIR]

The student inherits its weights from the study's supernet, learns from the teacher on text without labels, then on the
task, and is measured on the whole dev split beside its teacher and its base model, which gets the same training.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that wait in a spin make a machine with other work on it many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from distill.cli import DONE, INTERRUPTED, Parser, guard
from nas.config import ConfigError, RecipeTable, StudyConfig, load_config
from search_spaces import cost
from search_spaces.architecture import Architecture, ArchitectureError


def parser() -> Parser:
    result = Parser(prog="train_final.py", description="Train a searched architecture by distillation.")
    result.add_argument("architecture", type=Path, help="architecture.json of a study, or a file of that format")
    result.add_argument("--out", type=Path, help="folder of the checkpoint (default: final beside the architecture)")
    result.add_argument("--preset", help="preset or .toml file (default: config.toml beside the architecture)")
    result.add_argument("--seed", type=int, help="of the order of batches and of dropout (default: the study's)")
    result.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    result.add_argument("--skip-base", action="store_true", help="do not train and measure the base model")
    return result


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def command() -> int:
        architecture = Architecture.load(options.architecture)
        beside = options.architecture.parent / "config.toml"
        preset = options.preset or (str(beside) if beside.exists() else "demo")
        config = load_config(preset)
        out = options.out or options.architecture.parent / "final"
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out} exists and is not empty: choose another folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {out}: {error.strerror}") from None
        seed = config.seed if options.seed is None else options.seed
        if not 0 <= seed < 2**31:
            raise ConfigError(f"--seed {seed}: from 0 to {2**31 - 1}")
        return run(config, architecture, out, seed, options.device, with_base=not options.skip_base)

    try:
        return guard("train_final.py", command, (ConfigError, ArchitectureError))
    except KeyboardInterrupt:
        print("train_final.py: interrupted", file=sys.stderr)
        return INTERRUPTED


def run(
    config: StudyConfig, architecture: Architecture, out: Path, seed: int, device: str, with_base: bool
) -> int:
    """Train, measure, save."""
    import torch
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from distill.data import collate, load_encoded, training_batches
    from distill.evaluation import measure
    from distill.loop import make_accelerator, train
    from distill.metrics import standard_error
    from distill.teacher import LiveTeacher, TeacherError, load_model
    from nas.evaluate import Evaluator
    from nas.latency import latencies
    from nas.prepare import objective, prepare, training
    from nas.progress import Progress

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()

    def command() -> int:
        console = Console(highlight=False)
        with Progress(console) as progress:
            workspace = prepare(config, device, progress.prepare)
            base, graph = workspace.base()
            if architecture.base != base:
                raise ConfigError(f"the architecture's base is {architecture.base}; this configuration's is {base}")
            stack = max(genes.stack for genes in architecture.layers)
            if stack > max(config.space.stacks):
                most = max(config.space.stacks)
                raise ConfigError(f"the architecture has a stack of {stack}; the supernet has {most}")
            accelerator = make_accelerator(device)
            evaluator = Evaluator(workspace, device)
            pad_id = evaluator.like.pad_token_id
            teacher_config = AutoConfig.from_pretrained(workspace.teacher)
            teacher = load_model(str(workspace.teacher), list(teacher_config.id2label.values())).eval()
            text = load_encoded(workspace.data / "text.npz")
            task = load_encoded(workspace.data / "train.npz")
            dev = load_encoded(workspace.data / "dev.npz")

            def told(what: str, steps: int) -> Callable[[int, float], None]:
                return lambda step, loss: progress.prepare(what, step / steps)

            def trained(name: str, genes: Architecture) -> Any:
                model = evaluator.student(genes)
                projections: dict[str, Any] = {}
                for phase, place, rows, weights in (
                    # Text has no labels: EfficientBERT pre-trains with gamma = 0.
                    ("pre-training", "pretrain", text, config.objective.without_labels()),
                    ("fine-tuning", "final", task, config.objective),
                ):
                    table: RecipeTable = getattr(config, place)
                    phase_config = config.model_copy(update={"objective": weights})
                    goal = objective(phase_config, model.config, teacher_config, workspace.supernet)
                    if not goal.needs_teacher:  # the study's objective has only terms that need labels
                        continue
                    if projections:
                        goal.load_state_dict(projections)
                    with training(place):
                        train(
                            model,
                            training_batches(rows, table.batch_size, table.steps, seed, pad_id),
                            goal,
                            table.build(),
                            accelerator=accelerator,
                            teacher=LiveTeacher(teacher, goal.teacher_needs, accelerator),
                            seed=seed,
                            after_step=told(f"{name}: {phase}", table.steps),
                        )
                    projections = goal.state_dict()
                return model.eval()

            architectures = {"student": architecture}
            if with_base:
                architectures["base model"] = Architecture.uniform(base, graph=graph)
            models = {"teacher": teacher}
            models |= {name: trained(name, genes) for name, genes in architectures.items()}
            progress.prepare("measuring", None)
            measured: dict[str, dict[str, Any]] = {}
            loads = evaluator.loads(models["student"], dev)
            example = collate(dev, dev.lengths.argsort()[len(dev) // 2 : len(dev) // 2 + 1], pad_id)
            batch = {key: tensor.to(accelerator.device) for key, tensor in example.items()}
            for name, model in models.items():
                score = measure(model, dev, accelerator=accelerator, pad_id=pad_id)
                measured[name] = {"accuracy": score, "standard_error": standard_error(score, len(dev))}
            for name, latency in latencies(models, batch).items():
                measured[name]["latency_ms"] = 1e3 * latency.median
                measured[name]["latency_quartiles_ms"] = [1e3 * latency.lower, 1e3 * latency.upper]
            tokens = batch["input_ids"].shape[1]
            for name, genes in ({"teacher": Architecture.uniform(base, graph=graph)} | architectures).items():
                if name == "teacher" and config.base != "teacher":
                    continue
                measured[name]["params_active"] = cost.params_active(genes, workspace.labels)
                measured[name]["ffn_params"] = sum(cost.ffn_params(base, layer) for layer in genes.layers)
                measured[name]["macs"] = cost.macs(genes, tokens, workspace.labels)
            for name, model in models.items():
                measured[name]["params"] = sum(parameter.numel() for parameter in model.parameters())

        models["student"].save_pretrained(out)
        AutoTokenizer.from_pretrained(workspace.teacher).save_pretrained(out)
        architecture.save(out / "architecture.json")
        (out / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        facts = {
            "task": config.task,
            "dev_rows": len(dev),
            "seed": seed,
            "tokens": tokens,
            "batch": 1,
            "device": str(accelerator.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "models": measured,
            "expert_load": [load.to_json() for load in loads],
        }
        (out / "metrics.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in ("model", "accuracy", "parameters", "in FFNs", "MACs", "latency", "speed-up"):
            table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
        slowest = measured["teacher"]["latency_ms"]
        for name, row in measured.items():
            table.add_row(
                name,
                f"{row['accuracy']:.4f} ± {row['standard_error']:.4f}",
                f"{row['params'] / 1e6:.2f} M",
                f"{row['ffn_params'] / 1e6:.2f} M" if "ffn_params" in row else "",
                f"{row['macs'] / 1e6:.0f} M" if "macs" in row else "",
                f"{row['latency_ms']:.1f} ms",
                f"{slowest / row['latency_ms']:.2f}×",
            )
        what = f"{config.task}: accuracy on {len(dev)} dev rows; MACs and latency of one sentence of {tokens} tokens"
        console.print(what, soft_wrap=True)
        console.print(table)
        for load in loads:
            console.print(f"experts of {load}", soft_wrap=True)
        console.print(f"wrote {out}: AutoModelForSequenceClassification.from_pretrained(..., trust_remote_code=True)")
        return DONE

    return guard("train_final.py", command, (ConfigError, TeacherError))


if __name__ == "__main__":
    sys.exit(main())
