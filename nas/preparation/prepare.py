"""Prepares everything that a search needs before its first trial. Each part is made once and kept in the user's cache,
under a key that depends on everything that the part depends on.
"""

from dataclasses import replace

from distill.training.progress import ProgressCallback, ignore_progress
from nas.config.schema import StudyConfig
from nas.preparation.calibration import prepare_calibration
from nas.preparation.checks import check
from nas.preparation.context import preparation_context
from nas.preparation.outputs import prepare_outputs
from nas.preparation.phases import CANDIDATE
from nas.preparation.predictions import prepare_predictions
from nas.preparation.supernet import prepare_supernet
from nas.preparation.teacher import prepare_task
from nas.preparation.text import prepare_texts
from nas.preparation.workspace import Workspace


def prepare(
    config: StudyConfig,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
    *,
    outputs: bool = True,
    texts: tuple[str, ...] = ("warmup", *CANDIDATE),
) -> Workspace:
    """Prepare the data, the fine-tuned teacher and the supernet of a study, and what its candidates need of both: the
    calibration, the predicted losses and the teacher's outputs.

    Args:
        device: "auto", "cpu" or "cuda": where models are trained.
        outputs: whether to prepare the teacher's outputs, which only the training of candidates needs.
        texts: the tables of the trainings whose text is prepared if they learn from text.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration names what does not exist or cannot work.
    """
    check(config)
    context = preparation_context(config, device, on_progress)
    folders = replace(prepare_task(context), texts=prepare_texts(context, texts))
    supernet = prepare_supernet(context, folders)
    calibration = prepare_calibration(context, folders, supernet)
    predictions = prepare_predictions(context, folders, supernet)
    saved = prepare_outputs(context, folders, supernet) if outputs else ()
    return Workspace(config, folders.data, folders.teacher, supernet, saved, folders.texts, calibration, predictions)
