"""The objective of sentence encoders."""

import pytest
import torch
from torch.nn import functional as F

from distill.objectives import embeddings
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, Outputs, of_layers
from distill.tasks.types import EMBEDDINGS
from tests.tiny import SIZES, bert

MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
BATCH = {"attention_mask": MASK}
CONFIG = bert().config


def outputs(seed: int, scale: float = 1.0) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: scale * torch.randn(*shape, generator=generator)  # noqa: E731
    states = tuple(draw(4, 3, SIZES["hidden_size"]) for _ in range(SIZES["num_hidden_layers"] + 1))
    return Outputs(draw(4, 5), EMBEDDINGS, hidden_states=states)


def test_the_teacher_itself_has_no_loss() -> None:
    same = outputs(0)
    assert float(embeddings(CONFIG, CONFIG)(same, same, BATCH)) == pytest.approx(0, abs=1e-6)


def test_the_terms() -> None:
    student, teacher = outputs(0), outputs(1)
    weights = {"vector": 0.0, "similarity": 0.0, "hidden": 0.0}
    s, t = student.logits, teacher.logits
    loss = embeddings(CONFIG, CONFIG, **weights | {"vector": 2.0})(student, teacher, BATCH)
    torch.testing.assert_close(loss, 2 * F.mse_loss(s, t) / (t**2).mean())
    divergences = []
    for row in range(4):
        others = [other for other in range(4) if other != row]
        logs = [F.log_softmax(F.cosine_similarity(v[row], v[others]) / 0.1, dim=0) for v in (s, t)]
        divergences.append(float((logs[1].exp() * (logs[1] - logs[0])).sum()))
    settings = weights | {"similarity": 1.0, "temperature": 0.1}
    loss = embeddings(CONFIG, CONFIG, **settings)(student, teacher, BATCH)
    assert float(loss) == pytest.approx(sum(divergences) / 4, rel=1e-5)
    loss = embeddings(CONFIG, CONFIG, **weights | {"hidden": 1.0})(student, teacher, BATCH)
    pairs = zip(student.hidden_states[1:], teacher.hidden_states[1:], strict=True)
    torch.testing.assert_close(loss, sum((a - b)[MASK.bool()].square().mean() for a, b in pairs))


def test_vectors_of_length_1_are_compared_by_their_cosine() -> None:
    student, teacher = (Outputs(F.normalize(of.logits, dim=1), EMBEDDINGS) for of in (outputs(0), outputs(1)))
    loss = embeddings(CONFIG, CONFIG, hidden=0.0)(student, teacher, BATCH)
    torch.testing.assert_close(loss, 2 * (1 - F.cosine_similarity(student.logits, teacher.logits).mean()))


def test_what_is_not_weighted_is_not_needed() -> None:
    objective = embeddings(CONFIG, CONFIG, hidden=0.0)
    assert objective.needs == objective.teacher_needs == {LOGITS}
    assert embeddings(CONFIG, CONFIG).teacher_needs == {LOGITS} | of_layers(HIDDEN_STATES, [1, 2])


def test_a_single_sentence_has_no_similarities() -> None:
    student, teacher = (Outputs(of.logits[:1], EMBEDDINGS) for of in (outputs(0), outputs(1)))
    assert float(embeddings(CONFIG, CONFIG, vector=0.0, similarity=1.0, hidden=0.0)(student, teacher, BATCH)) == 0
