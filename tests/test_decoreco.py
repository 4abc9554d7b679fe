"""The stationarity attack: what it may see, how it stops, what it refuses; and the victims it attacks."""

import pytest
import torch

from utils import decoreco, decoreco_trials, evaluate, hidden, images, losses, mlp, report, rules, starts
from utils.errors import InputError
from utils.stationarity import Stationarity


@pytest.fixture(scope="module")
def data(toy_npz):
    return images.split(images.load(str(toy_npz)), 10, 20)


@pytest.fixture(scope="module")
def victim(data):
    return mlp.victim(*data.secret, mlp.RECIPES["regression"]._replace(epochs=500), 40)


def plain_training(network, x, labels, recipe):
    """The same descent in all weights, with gradients by autograd."""
    theta = [p.clone().requires_grad_() for layer in network for p in layer if p is not None]

    def energy():
        z = mlp.forward(mlp.unflatten(torch.cat([p.flatten() for p in theta]), network), x)[1][-1]
        return losses.LOSSES[recipe.loss].value(z, labels).mean() + recipe.weight_decay / 2 * sum(
            p.square().sum() for p in theta
        )

    def objective(flat):
        with torch.no_grad():
            for p, q in zip(theta, flat.split([p.numel() for p in theta])):
                p.copy_(q.view(p.shape))
        value = energy()
        return value.detach(), torch.cat([g.flatten() for g in torch.autograd.grad(value, theta)])

    return mlp.descend(objective, mlp.flatten(network), recipe)


@pytest.mark.parametrize("name", mlp.RECIPES)
@pytest.mark.parametrize("biases", [False, True])
def test_training_in_coordinates_is_training(name, biases):
    x = torch.rand(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    many = name == "many_classes"
    labels = (torch.arange(12) % (3 if many else 2)).double()
    recipe = mlp.RECIPES[name]._replace(epochs=40, small=0.1, dtype=torch.float64)
    network = mlp.initial_weights([30, 9, 8, 3 if many else 1], 0, recipe.small, biases)
    ours = mlp.train(network, x, labels, recipe)
    theirs = plain_training(network, x - x.mean(0), labels, recipe)
    assert (mlp.flatten(ours.weights) - theirs).norm() <= 1e-8 * theirs.norm()


def test_a_victim_is_trained_once(data, monkeypatch):
    recipe = mlp.RECIPES["regression"]._replace(epochs=20)
    first = mlp.victim(*data.secret, recipe, 11)
    monkeypatch.setattr(mlp, "train", None)
    again = mlp.victim(*data.secret, recipe, 11)
    assert torch.equal(mlp.flatten(first.weights), mlp.flatten(again.weights))


@pytest.mark.parametrize("optimiser, steps", [("adam", 300), ("projection", 100), ("sgd", 300)])
@pytest.mark.parametrize("space", ["pixels", "span"])
def test_an_attack_lowers_its_loss_and_keeps_the_best(victim, optimiser, steps, space):
    start, labels = starts.normal(20, 192, 0.02, 0), decoreco_trials.labels(20, 2)
    basis = decoreco.span(victim.weights) if space == "span" else None
    found = decoreco.attack(victim.weights, labels, start, optimiser=optimiser, iterations=steps, basis=basis)
    assert found.history.shape == (steps + 1,) and found.stopped == "iterations"
    assert found.loss.total <= 0.9 * found.history[0]
    assert torch.allclose(found.loss.total, found.history.min(), rtol=1e-3)
    assert found.images.shape == start.shape and found.images.dtype == start.dtype
    if basis is not None:
        assert torch.allclose(found.images @ basis @ basis.T, found.images, atol=1e-5)


def test_projection_keeps_the_bound(data):
    trained = mlp.victim(*data.secret, mlp.RECIPES["two_classes"]._replace(epochs=200), 40)
    start, labels = starts.normal(20, 192, 0.02, 0), decoreco_trials.labels(20, 2)
    found = decoreco.attack(trained.weights, labels, start, rule="margin", optimiser="projection", iterations=20)
    assert (found.coefficients >= 0.3 - 1e-6).all() and found.loss.feasibility == 0


def test_a_batch_of_restarts_equals_its_members(victim):
    start = torch.stack([starts.normal(20, 192, 0.02, seed) for seed in range(3)])
    labels, settings = decoreco_trials.labels(20, 2), {"iterations": 25, "dtype": torch.float64}
    together = decoreco.attack(victim.weights, labels, start, **settings)
    objective = decoreco.Objective(victim.weights, rules.Signed(), 30.0, 0.3, 1.0)
    drawn = decoreco.draw(rules.Signed(), start, 0)
    for k in range(3):
        alone = decoreco.minimise(objective, start[k], drawn[k], "adam", decoreco.SETTINGS["adam"], 25, 0.0, False)
        assert torch.allclose(together.images[k], alone.images, rtol=1e-9, atol=1e-12)
        assert torch.allclose(together.history[:, k], alone.history, rtol=1e-9)


def test_one_diverging_restart_leaves_the_others_alone(victim):
    start = torch.stack([starts.normal(20, 192, 0.02, 0), torch.full((20, 192), 1e30, dtype=torch.float64)])
    found = decoreco.attack(victim.weights, decoreco_trials.labels(20, 2), start, iterations=20)
    assert found.stopped == "diverged" and found.history[-1, 0] < found.history[0, 0]
    assert found.images[0].isfinite().all()


def test_a_loss_below_the_tolerance_ends_the_attack(victim):
    start = starts.normal(20, 192, 0.02, 0)
    found = decoreco.attack(victim.weights, decoreco_trials.labels(20, 2), start, tolerance=1e9)
    assert found.stopped == "converged" and len(found.history) == 1


def test_penalties_are_the_published_ones():
    net = mlp.initial_weights([4, 3, 1], 0, small=1.0)
    objective = decoreco.Objective(net, rules.Margin(torch.tensor([1.0, -1.0])), 5.0, 0.5, 1.0)
    x, c = torch.tensor([[2.0, 0, -1.5, 0.5], [0, 0, 0, 0]]).double(), torch.tensor([0.2, 0.7]).double()
    loss, *_ = objective(x, c)
    assert torch.allclose(loss.range * objective.scale, torch.tensor(1.25).double())
    assert torch.allclose(loss.feasibility * objective.scale, torch.tensor(5 * 0.09).double())
    h = 1e-6
    residual = objective.stationarity(x, c)

    def penalties(x, c):
        loss = objective(x, c)[0]
        return (loss.range + loss.feasibility) * objective.scale

    for k, entry in enumerate(([torch.eye(8)[0].view(2, 4) * h, 0], [0, torch.eye(2)[0] * h])):
        slope = (penalties(x + entry[0], c + entry[1]) - penalties(x - entry[0], c - entry[1])) / (2 * h)
        ours = objective(x, c)[1 + k] - (residual.x_gradient, residual.coefficient_gradient)[k]
        assert torch.allclose(ours.flatten()[0], slope, rtol=1e-5)


WRONG = [
    ({"rule": "best"}, "RULE is 'best', but it must be one of 'signed'"),
    ({"rule": "multiclass"}, "needs a network with several outputs, but this one has 1: use signed or margin"),
    ({"rule": "margin", "labels": torch.arange(20.0)}, "needs labels from 0 to 1, but they reach from 0 to 19"),
    ({"rule": "margin", "lambda_min": -1.0}, "LAMBDA_MIN is -1; a bound on λ cannot be negative"),
    ({"rule": "tied"}, "loss is None, but it must be one of"),
    ({"rule": "tied", "loss": "square"}, "divides by the weight decay, which is None"),
    ({"sharpness": 0.0}, "The sharpness α of the surrogate is 0; it must be larger than 0"),
    ({"rule": "tied", "loss": "square", "weight_decay": 0.1, "optimiser": "projection"}, "leave nothing to project"),
    ({"range_weight": -1.0}, "a penalty cannot be negative"),
    ({"start": torch.full((20, 192), torch.nan)}, "values that are NaN or infinite: draw it anew"),
    ({"optimiser": "newton"}, "OPTIMISER is 'newton', but it must be one of 'sgd', 'adam', 'projection'"),
    ({"start": torch.zeros(20, 7)}, "but there are (20,) labels and 192 inputs"),
    ({"labels": torch.zeros(3)}, "but there are (3,) labels and 192 inputs"),
    ({"weights": torch.zeros(193)}, "needs the Layers of a ReLU network"),
    ({"weights": hidden.initial_weights(192, 5, 0)}, "needs the Layers of a ReLU network"),
]


@pytest.mark.parametrize("given, sentence", WRONG, ids=lambda value: str(value)[:30])
def test_mistakes_are_told_in_one_sentence(victim, given, sentence):
    usual = {
        "weights": victim.weights,
        "labels": decoreco_trials.labels(20, 2),
        "start": starts.normal(20, 192, 0.02, 0),
    }
    with pytest.raises(InputError) as caught:
        decoreco.attack(**{**usual, **given})
    assert sentence in str(caught.value)


def test_too_few_candidates_and_layers_that_do_not_fit(victim):
    with pytest.raises(InputError, match="There are 1 candidates for 2 classes: make CANDIDATES larger"):
        decoreco.attack(victim.weights, torch.zeros(1), starts.normal(1, 192, 0.02, 0), rule="margin")
    with pytest.raises(InputError, match="There are 2 candidates for 4 classes"):
        decoreco_trials.labels(2, 4)
    with pytest.raises(InputError, match="The layers' shapes do not follow each other"):
        decoreco.attack(
            victim.weights[:1] + victim.weights[2:] + victim.weights[2:], torch.zeros(2), starts.normal(2, 192, 0.02, 0)
        )


def test_the_published_evaluation_finds_the_truth_and_the_adversarys_does_not_see_it(data, victim):
    trial = decoreco_trials.attack(data, victim, "signed", 0, data.secret.images - victim.mean, iterations=1)
    matches = decoreco_trials.published(trial, data.secret.images - victim.mean)
    assert matches.index.tolist() == list(range(10)) and (matches.ssim > 0.6).all()
    shuffled = (data.secret.images - victim.mean).flip(0)
    assert decoreco_trials.published(trial, shuffled).index.tolist() == list(range(9, -1, -1))
    lifted = evaluate.as_adversary(
        data.secret.images - victim.mean, data.secret.images - victim.mean, victim.mean, victim.mean, data.shape
    )
    assert torch.allclose(lifted.ssim, torch.ones(10, dtype=torch.float64))
    order, nearest = decoreco_trials.ranked(trial)
    assert sorted(order.tolist()) == list(range(10)) and nearest.max() < 10


def test_half_resolution_ncc_is_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(3, 8 * 8 * 3, dtype=torch.float64, generator=generator) for _ in range(2))

    def small(row):
        plane = row.reshape(1, 8, 8, 3).permute(0, 3, 1, 2)
        return torch.nn.functional.interpolate(plane, scale_factor=0.5, mode="bicubic")[0].reshape(3, -1)

    table = evaluate.half_ncc(a, b, (8, 8, 3))
    for i in range(3):
        for j in range(3):
            plain = sum(torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(small(a[i]), small(b[j]))) / 3
            assert torch.allclose(table[i, j], plain)


def test_many_classes(toy_npz):
    labelled = images.load("photos", binary=False)
    assert set(labelled.labels) == {0, 1, 2, 3}
    data = images.split(labelled, 8, 8)
    assert data.secret.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(InputError, match="give a multiple of the 4 classes"):
        images.split(labelled, 10, 8)
    assert starts.partition(data.known, 4).shape == (4, 3072)
    trained = mlp.victim(*data.secret, mlp.RECIPES["many_classes"]._replace(epochs=100), 20)
    trial = decoreco_trials.attack(data, trained, "multiclass", 0, starts.normal(16, 3072, 0.02, 0), iterations=50)
    assert trial.attack.loss.total < trial.attack.history[0]


def test_parts_and_candidates_are_balanced(toy_npz):
    four = images.load("photos", binary=False)
    data = decoreco_trials.split(four, 50, 0)
    assert data.secret.images.shape == (24, 3072) and data.known.images.shape == (48, 3072)
    assert decoreco_trials.count(data, "signed") == 48 and decoreco_trials.count(data, "tied") == 24
    assert decoreco_trials.split(images.load(str(toy_npz)), 22, 0).secret.labels.tolist() == [0] * 5 + [1] * 5


def test_the_area_under_the_roc_curve():
    mask = torch.tensor([True] * 10 + [False] * 10)
    assert decoreco_trials.area(mask.double(), mask) == 1
    assert decoreco_trials.area(-mask.double(), mask) == 0
    assert decoreco_trials.area(torch.ones(20), mask) == 0.5
    assert decoreco_trials.area(torch.ones(20), mask | True) is None


def test_true_reconstructions_and_baselines(data, victim):
    truth = data.secret.images - victim.mean
    trial = decoreco_trials.attack(data, victim, "signed", 0, starts.normal(10, 192, 1.0, 0), "span", iterations=1)
    assert decoreco_trials.true(trial, torch.cat([truth, trial.start * 0])).tolist() == [True] * 10 + [False] * 10
    for baseline in decoreco_trials.BASELINES.values():
        candidates = baseline(trial)
        assert len(candidates) in (1, 10)
        assert torch.allclose(decoreco_trials.within(candidates, trial.basis), candidates, atol=1e-12)
    assert decoreco_trials.best_baseline(trial, decoreco_trials.published, decoreco_trials.good) >= 0
    assert not decoreco_trials.beats_chance([trial._replace(start=truth)], decoreco_trials.published)
    names = {row.name for row in decoreco_trials.rows(trial, "random")}
    assert names == {name for name in report.NAMES if name.startswith("decoreco/signed/random/")}


def test_the_tied_residual_at_the_training_images_is_the_victims_gradient(data, victim):
    recipe = mlp.RECIPES["regression"]
    rule = rules.make("tied", data.secret.labels, 1, recipe.weight_decay, recipe.loss)
    x = data.secret.images - victim.mean
    residual = Stationarity(victim.weights, rule)(x, torch.zeros(10, dtype=torch.float64))
    expected = torch.tensor((victim.gradient_norm / recipe.weight_decay) ** 2, dtype=torch.float64)
    assert torch.allclose(residual.value, expected, rtol=1e-9)
