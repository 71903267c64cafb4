"""What a forward pass hands over, against the library's own attention and hidden states."""

import pytest
import torch

from distill.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, run
from supernet.build import build
from tests.tiny import BASE, architectures, batch, bert, inputs, shaken


@torch.no_grad()
def test_scores_are_what_eager_attention_normalises() -> None:
    model, given = bert(attn_implementation="eager"), batch()
    scores = run(model, given, frozenset({ATTENTION_SCORES})).attention_scores
    expected = model(**inputs(given), output_attentions=True).attentions
    hidden_keys = (1 - given["attention_mask"][:, None, None, :]).bool()
    assert len(scores) == len(expected) == 2
    for score, attention in zip(scores, expected, strict=True):
        assert score.shape == (4, 4, 9, 9)
        masked = score.masked_fill(hidden_keys, float("-inf"))
        torch.testing.assert_close(masked.softmax(dim=-1), attention)


@torch.no_grad()
def test_scores_do_not_depend_on_the_form_of_attention() -> None:
    needs = frozenset({ATTENTION_SCORES})
    fused = run(bert(), batch(), needs).attention_scores
    eager = run(bert(attn_implementation="eager"), batch(), needs).attention_scores
    for a, b in zip(fused, eager, strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
@pytest.mark.parametrize("searched", [False, True])
def test_hidden_states_and_logits(searched: bool) -> None:
    model = shaken(build(next(architectures(1)), labels=3)).eval() if searched else bert()
    found = run(model, batch(), frozenset({HIDDEN_STATES, LOGITS}))
    expected = model(**inputs(batch()), output_hidden_states=True)
    assert torch.equal(found.logits, expected.logits)
    assert len(found.hidden_states) == model.config.num_hidden_layers + 1
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert torch.equal(a, b)
    embedded = model.base_model.embeddings(batch()["input_ids"], batch()["token_type_ids"])
    torch.testing.assert_close(found.hidden_states[0], embedded)
    if searched:
        assert found.hidden_states[-1].shape[-1] == BASE.width


@pytest.mark.parametrize(
    ("needs", "hidden", "scores"),
    [
        ({LOGITS}, 0, 0),
        ({HIDDEN_STATES}, 3, 0),
        ({ATTENTION_SCORES}, 0, 2),
        ({HIDDEN_STATES, ATTENTION_SCORES}, 3, 2),
    ],
)
def test_only_what_is_needed(needs: set[str], hidden: int, scores: int) -> None:
    found = run(bert(), batch(), frozenset(needs))
    assert (len(found.hidden_states), len(found.attention_scores)) == (hidden, scores)


def test_no_hook_stays_after_an_error() -> None:
    model = bert()
    with pytest.raises(IndexError):
        run(model, {**batch(), "input_ids": torch.full((4, 9), 1000)}, frozenset({ATTENTION_SCORES}))
    assert not any(module._forward_hooks for module in model.modules())
    assert len(run(model, batch(), frozenset({ATTENTION_SCORES})).attention_scores) == 2


def test_scores_carry_gradients() -> None:
    model = bert()
    run(model, batch(), frozenset({ATTENTION_SCORES})).attention_scores[1].sum().backward()
    assert model.base_model.encoder.layer[1].attention.self.query.weight.grad.abs().sum() > 0
