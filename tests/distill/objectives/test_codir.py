"""CoDIR: its loss, and the bank that its negatives come from."""

import collections
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from distill.objectives import Objective, codir
from distill.objectives.codir import Bank, bank_arguments
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, of_layers
from distill.tasks.encoding import Encoded
from distill.tasks.types import CLASSIFICATION, TASK_TYPES, get_task_type
from tests.distill.objectives import references
from tests.distill.objectives.cases import KINDS, Case, array, case, exactly, hard, reached, soft

CLASSES = [0, 1, 1, 2, 0, 1, 2, 0]
SHAPE = {"widths": (6, 12)}
MAPS = {f"projections.{side}.{part}" for side in ("student", "teacher") for part in ("weight", "bias")}


def made(given: Case, **settings: object) -> Objective:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return codir(*given.configs, **{"rows": 8, "labels": CLASSES, "negatives": 5, **settings})


def seeded(objective: Objective, given: Case) -> Tensor:
    """The negatives are the same in every call."""
    torch.manual_seed(1)
    return objective(*given.given)


def features(given: Case, objective: Objective, pooling: str) -> tuple[np.ndarray, np.ndarray]:
    """Student layers 1 and 2, teacher layers 2 and 4."""
    sides = []
    for side, outputs, states in (("student", given.student, (1, 2)), ("teacher", given.teacher, (2, 4))):
        vectors = []
        for row, length in enumerate(given.lengths):
            tokens = [array(outputs.hidden_states[state])[row, :length] for state in states]
            vectors.append(np.concatenate([t.mean(0) if pooling == "mean" else t[0] for t in tokens]))
        module = objective.projections[side]
        mapped = np.array(vectors) @ array(module.weight).T + array(module.bias)
        sides.append(np.array([references.unit(vector) for vector in mapped]))
    return sides[0], sides[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_codir(kind: str, pooling: str) -> None:
    given = case(kind, **SHAPE)
    objective = made(given, pooling=pooling, beta=0.3, temperature=4.0, contrastive=2.0).eval()
    assert objective.needs == {LOGITS, HIDDEN_STATES}
    assert objective.teacher_needs == {LOGITS} | of_layers(HIDDEN_STATES, [2, 4])
    student, teacher = features(given, objective, pooling)
    bank = objective.projections["bank"]
    torch.manual_seed(1)
    others = bank.others(given.batch["rows"], 5)
    forth = references.contrastive(student, teacher, array(bank.teacher[others]), 0.07)
    back = references.contrastive(teacher, student, array(bank.student[others]), 0.07)
    expected = 0.7 * hard(given) + 0.3 * soft(given, "soft_kl", 4.0) + 2 * (forth + back) / 2
    loss = seeded(objective, given)
    # Float32 products of features are divided by 0.07.
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(seeded(objective, case(kind, **SHAPE, extra=2)), loss)
    loss.backward()
    assert reached(given) == {"logits", "hidden_states.1", "hidden_states.2"}
    learned = {name for name, parameter in objective.named_parameters() if parameter.grad.abs().sum() > 0}
    assert learned == MAPS


def test_shares_and_weights_of_zero() -> None:
    given = case(**SHAPE)
    alone = made(given, beta=1.0).eval()
    assert [term.name for term in alone.terms] == ["soft", "contrastive"]
    assert seeded(alone, given.unlabeled()) > 0
    plain = made(given, contrastive=0.0)
    assert plain.needs == plain.teacher_needs == {LOGITS}
    assert not plain.projections
    expected = 0.5 * hard(given) + 0.5 * soft(given, "soft_kl", 2.0)
    assert plain(*given.given).item() == exactly(expected)


def test_the_bank_follows_the_features() -> None:
    given = case(**SHAPE)
    objective = made(given, momentum=0.75)
    bank, rows = objective.projections["bank"], given.batch["rows"].tolist()
    before = {"student": array(bank.student).copy(), "teacher": array(bank.teacher).copy()}
    sides = dict(zip(("student", "teacher"), features(given, objective, "mean"), strict=True))
    objective(*given.given).backward()
    for name, old in before.items():
        after = array(getattr(bank, name))
        assert not getattr(bank, name).requires_grad
        for row in range(8):
            expected = old[row]
            if row in rows:
                expected = references.unit(0.75 * old[row] + 0.25 * sides[name][rows.index(row)])
            np.testing.assert_allclose(after[row], expected, atol=1e-6)


def test_a_loss_that_is_only_measured_leaves_the_bank_as_it_is() -> None:
    given = case(**SHAPE)
    objective = made(given).eval()
    before = objective.projections["bank"].student.clone()
    assert torch.equal(seeded(objective, given), seeded(objective, given))
    assert torch.equal(before, objective.projections["bank"].student)


@pytest.mark.parametrize("labels", [CLASSES, [7, -1, 7, 900], None])
def test_negatives_are_all_rows_of_other_classes(labels: list[int] | None) -> None:
    classes = list(range(5)) if labels is None else labels
    drawn = Bank(len(classes), labels, 0.5).others(torch.arange(len(classes)), 4000)
    for row, others in enumerate(drawn.tolist()):
        counts = collections.Counter(others)
        assert set(counts) == {other for other, name in enumerate(classes) if name != classes[row]}
        # Uniformly: five standard deviations of a fraction.
        p = 1 / len(counts)
        assert max(abs(count / 4000 - p) for count in counts.values()) <= 5 * (p * (1 - p) / 4000) ** 0.5


def test_only_the_maps_are_kept() -> None:
    """What was learned on some rows carries over to others."""
    given = case(**SHAPE)
    state = made(given).state_dict()
    assert set(state) == MAPS
    made(given, rows=30, labels=None).load_state_dict(state)


def test_a_sentence_of_padding_alone_counts_nowhere() -> None:
    given = case(**SHAPE)
    objective = made(given)
    given.batch["attention_mask"] = torch.zeros_like(given.batch["attention_mask"])
    before = objective.projections["bank"].student.clone()
    term = next(term for term in objective.terms if term.name == "contrastive")
    assert term.loss(*given.given) == 0
    assert torch.equal(before, objective.projections["bank"].student)


def test_a_batch_of_other_rows() -> None:
    given = case(**SHAPE)
    given.batch["rows"][1] = 8
    with pytest.raises(ValueError, match="codir was made for 8 training rows; the batch has row 8"):
        made(given)(*given.given)


def test_a_batch_without_rows() -> None:
    given = case(**SHAPE)
    del given.batch["rows"]
    with pytest.raises(ValueError, match=r"codir needs the number of each sentence .*: batch\['rows'\], \(B,\)"):
        made(given)(*given.given)


@pytest.mark.parametrize("name", ["single_label_classification", "multi_label_classification"])
def test_negatives_of_an_added_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have another class where each sentence has one class."""
    monkeypatch.setitem(TASK_TYPES, "added", replace(get_task_type(CLASSIFICATION), name="added", problem_type=name))
    one = np.ones(4, np.int32)
    rows = Encoded(one, one, np.arange(5), np.array([0, 1, 1, 0]), task_type="added")
    single = name.startswith("single")
    assert bank_arguments(rows) == {"rows": 4, "labels": [0, 1, 1, 0] if single else None}
