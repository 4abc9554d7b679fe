"""The kernels on a GPU, in three precisions, against double precision on the processor; without a GPU, there alone."""

import pytest
import torch
from torch.nn.functional import normalize

from attacks import bilevel, decoreco, starts
from conftest import victim_of_twelve
from training import images, stationary
from utils import networks
from utils.kernels import contrast, similarity, solvers
from utils.kernels.coefficients import Signed
from utils.kernels.products import use_precision
from utils.kernels.residual import Stationarity

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
# How far a result may be off, relative to its norm. TF32 keeps ten bits of each factor, on a GPU.
PRECISIONS = {"float64": 1e-9, "float32": 1e-3, "tf32": 5e-2}
pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(scope="module")
def victim():
    return victim_of_twelve("signed", 40, 30, epochs=200)


def off(ours, exact):
    """By how much a result is off, relative to its norm."""
    return ((ours.double().cpu() - exact).norm() / exact.norm()).item()


def moved(network, device, dtype):
    return networks.change(network, lambda p: p.to(device, dtype))


def residuals(victim, *to):
    x, coefficients = starts.normal(20, 3072, 0.1, 0), starts.normal(20, 1, 1.0, 1)[:, 0]
    energy = Stationarity(moved(victim.released.network, *to), Signed(), 30.0)
    return energy(x.to(*to), coefficients.to(*to))


def contrasts(_, device, dtype):
    rows, basis = normalize(starts.normal(12, 12, 1.0, 0)), starts.normal(12, 3072, 1.0, 1)
    rows, features = rows.to(device), contrast.features(basis.to(device, dtype), (32, 32, 3))
    return contrast.relative_derivatives(rows, contrast.mix(rows, features), 0.1, 3)


def similarities(_, *to):
    x, y = (starts.random(n, 3072, n).to(*to) for n in (9, 7))
    return [similarity.ssim(x, y, (32, 32, 3)), similarity.ncc(x, y), similarity.l2(x, y)]


@pytest.mark.parametrize("kernel", [residuals, contrasts, similarities])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_kernel_is_that_of_the_processor_in_double_precision(device, precision, victim, kernel):
    dtype = torch.float64 if precision == "float64" else torch.float32
    tolerance = max(PRECISIONS[precision], 1e-3 * (kernel is similarities))  # SSIM is single
    exact = kernel(victim, "cpu", torch.float64)
    with use_precision("TF32" if precision == "tf32" else "exact"):
        found = kernel(victim, device, dtype)
    assert all(off(ours, theirs.double()) < tolerance for ours, theirs in zip(found, exact))


@pytest.mark.parametrize("space", ["pixels", "span"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_attack_is_that_of_the_processor(device, victim, optimiser, space):
    """Two sets of candidates in double precision, by the way of taking steps that the device has."""
    start = torch.stack([starts.normal(20, 3072, 0.0197, seed) for seed in range(2)])
    settings = decoreco.SETTINGS[optimiser]._replace(
        iterations=63, dtype=torch.float64, learning_rate=1e-3
    )
    found = []
    for where in ("cpu", device):
        network = moved(victim.released.network, where, torch.float64)
        released = victim.released._replace(network=network)
        basis = networks.span(network) if space == "span" else None
        found.append(decoreco.attack(released, start.to(where), settings, basis=basis))
    exact, ours = found
    assert off(ours.images, exact.images) < 1e-6 and off(ours.history, exact.history) < 1e-6


def test_adams_step_in_one_pass(device):
    """Single precision takes torch's kernel, at a rate that is a tensor of the device."""
    begun = starts.normal(30, 40, 1.0, 0)
    ends = []
    for to in (("cpu", torch.float64), (device, torch.float32)):
        generator = torch.Generator().manual_seed(0)
        x, memory = begun.clone().to(*to), begun.new_zeros(2, 30, 40).to(*to)
        for k in range(50):
            gradient = torch.randn(30, 40, dtype=torch.float64, generator=generator).to(x)
            solvers.adam(x, gradient, memory, x.new_tensor(0.03 * solvers.schedule(k, 50)))
        ends.append((x, memory))
    (exact, moments), (found, theirs) = ends
    assert off(found, exact) < 1e-5 and off(theirs, moments) < 1e-5 and off(found, begun) > 0.1


@pytest.mark.parametrize("hidden", [0, 4])
def test_a_hypergradient_is_that_of_the_processor(device, hidden):
    """Near the secret images: further off there are saddles that rounding decides."""
    recipe = networks.one_hidden(hidden, 0.01) if hidden else networks.affine(0.01)
    found = []
    for where in ("cpu", device):
        x, y = images.split(images.load("photos"), 12, 12, 0, torch.device(where)).secret
        released = stationary.train(images.Part(x, y), recipe).released
        initial = released.network if hidden else None
        near = x + 0.01 * (starts.random(12, 3072, 0).to(x) - 0.5)
        found.append(bilevel.hypergradient(released, near, initial=initial).gradient)
    assert off(found[1], found[0]) < 1e-5


def test_pairs_are_taken_in_slices_that_fit(device, monkeypatch):
    x, y = (starts.random(n, 3072, n).to(device) for n in (9, 7))
    whole = similarity.ssim(x, y, (32, 32, 3))
    monkeypatch.setattr(similarity, "AT_ONCE", 4 * 2 * 65 * 7)  # four images
    torch.testing.assert_close(similarity.ssim(x, y, (32, 32, 3)), whole)
