"""The stacked network beside one written out by its definition."""

from __future__ import annotations

import pytest
import torch

from labelveil.feature_party.model.network import EMBEDDING, Ensemble, NetworkShape


def _plain(
    network: Ensemble, member: int, numeric: torch.Tensor, categories: torch.Tensor
) -> torch.Tensor:
    """One member: embed, put everything into one row, and go through the layers."""
    shape, hidden = network.shape, [numeric]
    tables = network.embeddings.view(shape.members, -1, EMBEDDING)[member]
    for column, table in enumerate(tables.split(list(shape.cardinalities))):
        hidden.append(table[categories[:, column]])
    values = torch.cat(hidden, dim=1)
    layers = list(zip(network.weights, network.biases, strict=True))
    for index, (weight, bias) in enumerate(layers):
        values = values @ weight[member] + bias[member]
        if index < len(layers) - 1:
            values = values.relu()
    return values


@pytest.mark.parametrize("rows", [11, 3000])
@pytest.mark.parametrize("cardinalities", [(), (3,), (4, 2)])
def test_outputs_and_gradients_are_those_of_the_definition(
    cardinalities: tuple[int, ...], rows: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    network = Ensemble(NetworkShape(5, cardinalities, (7, 6), 2, 3), generator)
    numeric = torch.randn(3, rows, 5, generator=generator)
    columns = [torch.randint(size, (3, rows), generator=generator) for size in cardinalities]
    categories = torch.stack(columns, dim=2) if columns else torch.zeros(3, rows, 0).long()
    trained = [value for value in network.parameters() if value.requires_grad]

    found = network(numeric, categories)
    found.square().mean().backward()
    gradients = [value.grad.clone() for value in trained if value.grad is not None]
    network.zero_grad()
    members = range(3)
    expected = torch.stack([_plain(network, m, numeric[m], categories[m]) for m in members])
    expected.square().mean().backward()
    torch.testing.assert_close(found, expected)
    assert len(gradients) == len(trained)
    for value, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(value.grad, gradient)


def test_laws_on_the_same_hidden_layers_are_asked_together() -> None:
    network = Ensemble(NetworkShape(5, (4, 2), (7, 6), 5, 3), torch.Generator().manual_seed(1))
    first, second = network.only(slice(0, 2)), network.only(slice(2, 5))
    both = first.joined(second)
    assert both is not None
    rows = torch.randn(1, 11, 5), torch.randint(2, (1, 11, 2))
    torch.testing.assert_close(both(*rows), network(*rows))
    torch.testing.assert_close(both(*rows, members=slice(1, 3)), network(*rows)[1:])
    for name in ("embeddings", "weights.0", "biases.1"):
        other = network.only(slice(2, 5))
        other.get_parameter(name).data.view(-1)[-1] += 1
        assert first.joined(other) is None
