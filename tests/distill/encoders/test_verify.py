"""The tests of a family at load: they find whatever is not where the family says, and leave the model as it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distill.encoders import family as families
from distill.encoders.family import FamilyError
from distill.encoders.verify import verify
from distill.training.teacher import load_model
from tests.renamed import of_every_kind
from tests.tiny import batch, bert, inputs


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "relu"}, {"intermediate_size": 3}, {"num_attention_heads": 1}])
def test_encoders_of_a_family_pass(changes: dict[str, Any]) -> None:
    for model in of_every_kind(bert(1, **changes)).values():
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        expected = model(**inputs(batch())).logits
        model.train()
        verify(model, "it")
        assert model.training and list(before) == list(model.state_dict())
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert torch.equal(model.eval()(**inputs(batch())).logits, expected)


class Mixing(nn.Module):
    """An activation that is no function of single channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)


class TwoHeads(nn.Module):
    """A map before whose input the heads have been mixed."""

    def __init__(self, own: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = own.weight, own.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flip(-1), self.weight, self.bias)


class Scaled(nn.Module):
    """An FFN of more than three modules."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.dense = own.dense
        self.intermediate_act_fn = own.intermediate_act_fn

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.intermediate_act_fn(self.dense(x))


def change(model: Any, kind: str) -> None:
    for layer in model.bert.encoder.layer:
        if kind == "activation":
            layer.intermediate.intermediate_act_fn = Mixing()
        elif kind == "heads":
            layer.attention.output.dense = TwoHeads(layer.attention.output.dense)
        else:
            layer.intermediate = Scaled(layer.intermediate)


@pytest.mark.parametrize(
    ("kind", "test"),
    [("activation", "some of its channels"), ("heads", "some of its heads"), ("scaled", "its FFN replaced")],
)
def test_what_computes_otherwise_is_found(kind: str, test: str) -> None:
    model = bert(1)
    change(model, kind)
    with pytest.raises(FamilyError, match=rf"^the model 'it' is not built like other .* \(with {test}: hidden .*\)$"):
        verify(model, "it")


@pytest.mark.parametrize("changes", [{"expand": "attention.output.dense"}, {"project": "no.such.map"}])
def test_a_family_that_is_wrong(changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bert(1).save_pretrained(tmp_path)
    monkeypatch.setitem(families.FAMILIES, "bert", replace(families.FAMILIES["bert"], **changes))  # type: ignore[arg-type]
    with pytest.raises(FamilyError, match="is not built like other encoders of type 'bert', so it is not") as caught:
        load_model(str(tmp_path), ["a", "b", "c"])
    assert len(str(caught.value).splitlines()) == 1
