"""Teachers that share weights between layers, or keys and values between heads, with separate copies of them.

The students of such a family are ordinary models of it in which every layer, or head, has weights of its own, so that
each is reduced on its own. An ALBERT has as many groups of layers as layers then, and a EuroBERT as many heads of keys
and values as of queries. They compute what they computed before.
"""

import copy
from typing import Any

from torch import Tensor
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from distill.encoders.family import family_of
from distill.encoders.student.anatomy import Family


def unshare_config(config: Any) -> None:
    """Change the configuration of a model to that of the one with separate weights.

    Raises:
        ValueError: the layers or heads are no multiple of what has weights of its own.
    """
    family = family_of(config)
    for key, size in family.unshared.items():
        stored, wanted = getattr(config, key), family.size(config, size)
        if not isinstance(stored, int) or stored < 1 or wanted % stored:
            raise ValueError(f"{key} is {stored!r}, which does not divide {family.sizes[size]}, {wanted}")
        setattr(config, key, wanted)


def shared_config(config: Any, source: str) -> Any:
    """The configuration of the model as it is stored in a folder or on the hub, given that with separate weights."""
    if not (keys := family_of(config).unshared):
        return config
    stored, result = AutoConfig.from_pretrained(source, trust_remote_code=False), copy.deepcopy(config)
    for key in keys:
        setattr(result, key, getattr(stored, key))
    return result


def unshared(model: Any, config: Any) -> Any:
    """A model with separate weights, as in this configuration; the model itself if it has them already."""
    family = family_of(config)
    if all(getattr(model.config, key) == getattr(config, key) for key in family.unshared):
        return model
    with no_init_weights():
        result = type(model)(config)
    result.tie_weights()
    shared = model.state_dict()
    result.load_state_dict({name: _of(name, shared, family, model.config) for name in result.state_dict()})
    return result.train(model.training)


def _of(name: str, shared: dict[str, Tensor], family: Family, config: Any) -> Tensor:
    """The tensor of this name in a model with separate weights, given those of a model with this configuration."""
    if not (parts := family.split(name)):
        return shared[name]
    prefix, layer, inside = parts
    own = {size: getattr(config, key) for key, size in family.unshared.items()}
    if "depth" in own:
        layer = layer * own["depth"] // family.size(config, "depth")
    tensor = shared[f"{prefix}{layer}.{inside}"]
    if "heads" in own and inside.rpartition(".")[0] in (family.key, family.value):
        times = family.size(config, "heads") // own["heads"]
        tensor = tensor.unflatten(0, (own["heads"], -1)).repeat_interleave(times, dim=0).flatten(0, 1)
    return tensor
