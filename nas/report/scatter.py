"""Scores against latencies of models that were exported (EfficientBERT, figure 1)."""

from pathlib import Path

from distill.table import plural
from foundation.errors import UserError
from foundation.files import read_json
from nas.latency.settings import TORCH
from nas.report import figures

# The names of models in metrics.json and latency.json.
STUDENT, TEACHER = "student", "teacher"


def points(folders: list[Path]) -> tuple[list[tuple[str, float, float]], str, int]:
    """The students in these folders of `nas.export`, in every form that was timed, and the teacher of the first one,
    each with its name, its milliseconds for one batch and its score on the dev split; the metric; and the number of
    sentences in a batch, the largest that was timed for all of them.

    Raises:
        UserError: a folder has no scores or latencies, or they have no metric or batch in common.
    """
    files = {}
    for folder in folders:
        missing = [name for name in ("metrics.json", "latency.json") if not (folder / name).exists()]
        if missing:
            raise UserError(f"{folder} has no {' and no '.join(missing)}: give folders that nas.export wrote")
        files[folder] = read_json(folder / "metrics.json"), read_json(folder / "latency.json")["timings"]
    names = {metrics["metrics"][0] if metrics["metrics"] else "no score" for metrics, _ in files.values()}
    if len(names) > 1 or "no score" in names:
        raise UserError(f"the models cannot be drawn together: their scores are {' and '.join(sorted(names))}")
    (metric,) = names
    batches = set.intersection(*({timing["batch"] for timing in timings} for _, timings in files.values()))
    if not batches:
        raise UserError("no batch was timed for all models: export them with the same --batches")
    found = []
    # Exports have the same name by default, but are in different folders.
    are_different = len({folder.name for folder in folders}) == len(folders)
    for number, (folder, (metrics, timings)) in enumerate(files.items()):
        for timing in timings:
            model, form = timing["model"], timing["form"]
            scored = metrics["models"].get(model, {}).get(metric)
            shown = model == STUDENT or (model == TEACHER and number == 0)
            if shown and scored is not None and timing["batch"] == max(batches):
                name = model if model == TEACHER else folder.name if are_different else str(folder)
                label = name if form == TORCH else f"{name}, {form}"
                found.append((label, timing["median_ms"], scored["value"]))
    return found, metric, max(batches)


def draw(folders: list[Path], path: Path) -> None:
    """Write a drawing of the models in these folders.

    Raises:
        UserError: as `points`; or the drawing cannot be written.
    """
    found, metric, batch = points(folders)
    with figures.styled():
        figures.write(figures.scatter(found, f"latency of {plural(batch, 'sentence')}, ms", metric), path)
