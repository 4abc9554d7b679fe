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


@pytest.fixture(params=PRECISIONS)
def precision(request):
    """A precision's type and tolerance, while products are rounded as it says."""
    with use_precision({"tf32": "TF32"}.get(request.param, "exact")):
        yield (
            torch.float64 if request.param == "float64" else torch.float32,
            PRECISIONS[request.param],
        )


def residuals(victim, *to):
    x, coefficients = starts.normal(20, 3072, 0.1, 0), starts.normal(20, 1, 1.0, 1)[:, 0]
    return Stationarity(moved(victim.released.network, *to), Signed(), 30.0)(
        x.to(*to), coefficients.to(*to)
    )


def contrasts(_, device, dtype):
    rows, basis = normalize(starts.normal(12, 12, 1.0, 0)), starts.normal(12, 3072, 1.0, 1)
    rows, features = rows.to(device), contrast.features(basis.to(device, dtype), (32, 32, 3))
    return contrast.relative_derivatives(rows, contrast.mix(rows, features), 0.1, 3)


def similarities(_, *to):
    x, y = (starts.random(n, 3072, n).to(*to) for n in (9, 7))
    return [similarity.ssim(x, y, (32, 32, 3)), similarity.ncc(x, y), similarity.l2(x, y)]


@pytest.mark.parametrize("kernel", [residuals, contrasts, similarities])
def test_a_kernel_is_that_of_the_processor_in_double_precision(device, precision, victim, kernel):
    dtype, tolerance = precision
    tolerance = max(tolerance, 1e-3 * (kernel is similarities))  # SSIM is of single precision
    exact, found = kernel(victim, "cpu", torch.float64), kernel(victim, device, dtype)
    assert all(off(ours, theirs.double()) < tolerance for ours, theirs in zip(found, exact))


@pytest.mark.parametrize("space", ["pixels", "span"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_attack_is_that_of_the_processor(device, victim, optimiser, space):
    """Two sets of candidates in double precision, by the way of taking steps that the device has."""
    settings = decoreco.SETTINGS[optimiser]._replace(
        iterations=63, dtype=torch.float64, learning_rate=1e-3
    )
    start = torch.stack([starts.normal(20, 3072, 0.0197, seed) for seed in range(2)])
    basis = networks.span(victim.released.network)
    basis = basis if space == "span" else None
    exact = decoreco.attack(victim.released, start, settings, basis=basis)
    released = victim.released._replace(
        network=moved(victim.released.network, device, torch.float64)
    )
    basis = None if basis is None else basis.to(device)
    found = decoreco.attack(released, start.to(device), settings, basis=basis)
    assert off(found.images, exact.images) < 1e-6 and off(found.history, exact.history) < 1e-6


def test_adams_step_in_one_pass(device):
    """Single precision takes torch's kernel, at a rate that is a tensor of the device."""
    begun, generator = starts.normal(30, 40, 1.0, 0), torch.Generator().manual_seed(0)
    parts = [
        [begun.clone().to(*to), begun.new_zeros(2, 30, 40).to(*to)]
        for to in (("cpu",), (device, torch.float32))
    ]
    for k in range(50):
        gradient = torch.randn(30, 40, dtype=torch.float64, generator=generator)
        for x, memory in parts:
            rate = torch.tensor(0.03 * solvers.schedule(k, 50), dtype=torch.float64).to(x)
            solvers.adam(x, gradient.to(x), memory, rate)
    (exact, moments), (found, theirs) = parts
    assert off(found, exact) < 1e-5 and off(theirs, moments) < 1e-5 and off(found, begun) > 0.1


def test_a_victim_is_that_of_the_processor(device):
    short = {"epochs": 40, "dtype": torch.float64}
    victims = (
        victim_of_twelve("signed", 40, 30, device=where, **short) for where in ("cpu", device)
    )
    exact, found = (networks.flatten(victim.released.network) for victim in victims)
    assert off(found, exact) < 1e-6


@pytest.mark.parametrize("hidden", [0, 4])
def test_a_hypergradient_is_that_of_the_processor(device, hidden):
    recipe = networks.one_hidden(hidden, 0.01) if hidden else networks.affine(0.01)
    found = []
    for where in ("cpu", device):
        data = images.split(images.load("photos"), 12, 12, 0, torch.device(where))
        released = stationary.train(data.secret, recipe).released
        initial = released.network if hidden else None
        near = data.secret.images + 0.01 * (
            starts.random(12, 3072, 0).to(device=where) - 0.5
        )  # further off there are
        found.append(
            bilevel.hypergradient(released, near, initial=initial).gradient
        )  # saddles that rounding decides
    assert off(found[1], found[0]) < 1e-5


def test_pairs_are_taken_in_slices_that_fit(device, monkeypatch):
    x, y = (starts.random(*size, k).to(device) for k, size in enumerate(((9, 3072), (7, 3072))))
    whole, taken, slice_of = similarity.ssim(x, y, (32, 32, 3)), [], similarity.ssim_slice
    monkeypatch.setattr(
        similarity, "room", lambda device: 4 * 4 * 2 * 65 * 7 * 4
    )  # a quarter of it holds four images
    monkeypatch.setattr(
        similarity,
        "ssim_slice",
        lambda part, *rest: taken.append(len(part)) or slice_of(part, *rest),
    )
    torch.testing.assert_close(similarity.ssim(x, y, (32, 32, 3)), whole)
    assert taken == [4, 4, 1]
