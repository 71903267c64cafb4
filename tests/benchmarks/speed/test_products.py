import torch
from torch import nn

from benchmarks.speed.products import Recorder, operations, seconds


def test_products_of_both_passes_are_counted() -> None:
    linear = nn.Linear(5, 7)
    x = torch.randn(3, 5, requires_grad=True)
    with Recorder() as seen:
        linear(x).sum().backward()
    found = {(tuple(left), tuple(right)): times for (left, right, _), times in seen.counts.items()}
    # The product itself, the gradient of x and that of the weights.
    assert found == {((3, 5), (5, 7)): 1, ((3, 7), (7, 5)): 1, ((7, 3), (3, 5)): 1}
    assert operations(seen.counts) == 3 * 2 * 3 * 5 * 7


def test_types_and_batches_are_kept() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    with Recorder() as seen, torch.autocast("cpu", torch.bfloat16):
        a @ b
        a @ b
        torch.randn(4, 4).bfloat16() @ torch.randn(4, 1).bfloat16()
    assert {(len(left), dtype): times for (left, _, dtype), times in seen.counts.items()} == {
        (3, torch.bfloat16): 2,
        (2, torch.bfloat16): 1,
    }
    assert operations(seen.counts) == 2 * 2 * 2 * 3 * 4 * 5 + 2 * 4 * 4
    assert seconds(seen.counts, torch.device("cpu")) > 0
