"""The supernet of a preset and the data that orders its channels, for benchmarks that look at it layer by layer."""

from nas.config.schema import StudyConfig
from nas.preparation.context import preparation_context
from nas.preparation.phases import training_phase
from nas.preparation.prepare import prepare
from nas.preparation.supernet import load_supernet, order_inputs
from nas.preparation.workspace import projections
from search_spaces.graph import FFNGraph
from supernet.order.orders import OrderInputs


def prepared_inputs(config: StudyConfig) -> tuple[FFNGraph, OrderInputs]:
    """The base graph, and the supernet in eval mode on the CPU, with the batches and losses that order its channels."""
    workspace = prepare(config, "cpu", outputs=False)
    _, graph = workspace.base()
    model = load_supernet(config, workspace.folders, workspace.supernet).eval()
    phase = training_phase(config, "warmup", workspace.folders)
    context = preparation_context(config, "cpu")
    return graph, order_inputs(context, workspace.folders, model, phase, projections(workspace.supernet))
