"""The generator: what is read of it agrees with torch and numpy bit for bit, and nothing is read that is not there."""

import numpy as np
import pytest
import torch
from torch import nn

from attacks import generator, mersenne
from conftest import refused
from experiments import generator as hidden
from training import uniform
from training.images import Part
from utils.kernels import binary, naive

BUILD = hidden.builder("torch", 256, (256, 16))


@pytest.mark.parametrize("n, columns", [(300, 200), (90, 200)])
def test_elimination_agrees_with_the_textbook(n, columns):
    chance = np.random.default_rng(n)
    rows = chance.integers(0, 2, (n, columns))
    rows[:, 5] = rows[:, 6]  # a column without a pivot
    right = rows @ chance.integers(0, 2, columns) % 2
    factors = binary.factor(binary.pack(rows))
    solution, bad = binary.solve(factors, right)
    plain, rank = naive.solve_bits(rows, right)
    assert factors.rank == rank and not bad.any()
    # in both, columns without a pivot are zero
    assert (binary.unpack(solution[None], columns)[0] == plain).all()
    others = binary.solve_homogeneous(factors, columns)
    assert len(others) == columns - rank
    assert not (binary.unpack(np.array(others), columns) @ rows.T % 2).any()
    wanted = chance.integers(0, 2, (n - rank, 40))
    sums = binary.check_sums(factors, wanted).astype(int)
    assert not (sums.T @ rows % 2).any() and sums.any(0).sum() == wanted.any(0).sum()
    right[3] ^= 1  # a contradiction is seen by the checks that hold this equation
    _, bad = binary.solve(factors, right)
    assert (bad @ wanted % 2 == sums[3]).all()


def test_equations_agree_with_the_outputs_of_numpy():
    outputs = mersenne.draw(mersenne.ORDER + 120_000, seed=5)
    bits = outputs[: mersenne.ORDER] >> mersenne.BIT & 1
    unknowns = mersenne.as_words(mersenne.as_polynomial(bits))
    draws = np.random.default_rng(0).choice(120_000, 400, replace=False)
    for mask in (1 << 23, 3 << 22, 1 << 20, 1 << 31):
        said = binary.parity(mersenne.equations(draws, mask) & unknowns)
        assert (said == np.bitwise_count(outputs[draws] & np.uint32(mask)) % 2).all()


def test_every_rule_separates_the_values_that_torch_draws():
    def build():
        net = nn.Sequential(
            nn.Linear(40, 30),
            nn.Conv2d(4, 20, 3),
            nn.Linear(40, 30, dtype=torch.float64),
            nn.Linear(33, 17),
        )
        nn.init.kaiming_normal_(net[1].weight)
        nn.init.normal_(net[3].weight, std=0.02)
        return net.double()

    found = generator.watch(build, seed=3)
    assert [one.name[0] for one in found] == [*"011233"]  # normal numbers follow two rules
    with generator.drawing_from(torch.Generator().manual_seed(8).get_state()):
        module = dict(build().named_parameters())
    outputs = mersenne.draw(20_000, 8)
    for one in found:
        values = module[one.name].detach().flatten()[one.places] - one.middle
        bits = np.bitwise_count(outputs[one.outputs] & np.uint32(one.mask)) % 2 == 1
        clear = values.abs().numpy() > 0.02 * values.std().item()  # as exact as the middle is
        agree = (values > 0).numpy() == (bits == one.above)
        assert agree[clear].all() and clear.mean() > 0.9


@pytest.fixture(scope="module")
def trained():
    """A small network of 65,536 first weights, drawn from a hidden state, whose first layer moved in few directions."""
    with generator.drawing_from(hidden.hide(4)):
        before = {name: p.detach() for name, p in BUILD().named_parameters()}
    chance = torch.Generator().manual_seed(0)
    written = torch.randn(256, 6, generator=chance) @ torch.randn(6, 256, generator=chance) / 60
    return before, before | {"0.weight": before["0.weight"] + written}


def test_a_start_is_read_bit_for_bit_though_three_signs_are_wrong(trained, monkeypatch):
    before, after = trained
    choose = generator.choose_signs

    def choose_some_wrong(*args):
        masks, outputs, right = choose(*args)
        right[[20, 700, 1500]] ^= True
        return masks, outputs, right

    monkeypatch.setattr(generator, "choose_signs", choose_some_wrong)
    start = generator.read(after, BUILD)
    assert all(torch.equal(p, before[name]) for name, p in start.module.named_parameters())
    assert start.mended == 3 and start.spare >= generator.SPARE
    assert start.seed == hidden.choose_secret(4)


def test_of_a_large_layer_the_first_rows_and_columns_are_enough(trained, monkeypatch):
    before, after = trained
    monkeypatch.setattr(generator, "COLUMNS", 240)
    monkeypatch.setattr(generator, "VALUES", 250 * 256)
    start = generator.read(after, BUILD)
    assert all(torch.equal(p, before[name]) for name, p in start.module.named_parameters())


def test_what_cannot_be_read_is_refused(trained):
    def from_numpy():
        net = BUILD()
        hidden.draw_elsewhere(net, np.random.default_rng(1))
        return net

    small = hidden.builder("torch", 256, (64,))
    drawn = dict(small().named_parameters())
    assert "Only 16,384 of its weights" in refused(generator.read, drawn, small)
    assert "No layer of some size is drawn" in refused(generator.read, trained[1], from_numpy)


def test_the_first_papers_network_is_trained_as_autograd_trains_it():
    secret = Part(torch.rand(12, 30, dtype=torch.float64), torch.arange(12) % 2.0)
    net = uniform.draw(30, 20)
    victim = uniform.train(secret, net, rate=1e-5, steps=7)
    descent = torch.optim.SGD(net.double().parameters(), 1e-5)
    for _ in range(7):
        descent.zero_grad()
        z = net(secret.images)[:, 0]
        nn.functional.binary_cross_entropy_with_logits(z, secret.labels).backward()
        descent.step()
    for layer, ours in zip((net[0], net[2]), victim.released.network):
        torch.testing.assert_close((layer.weight, layer.bias), tuple(ours), atol=1e-7, rtol=0)
