"""The null and the detectors: what they say of leaks that are known, and of none."""

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score
from torch.nn.functional import avg_pool2d

from conftest import drawn
from utils import images, measures, networks, null
from utils.attacks import contract, decoreco, starts
from utils.attacks.contract import Attack, Released
from utils.errors import InputError
from utils.kernels.layers import Layer
from utils.kernels.similarity import detail_ncc
from utils.training import stationary

SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def parts():
    """Forty embedded photographs, and forty others of the same classes."""
    data = images.split(images.load("photos"), 40, 40, held_out=40)
    return data.secret.images, data.held_out.images, data.known.images


def test_nothing_leaks_from_other_photographs_or_noise(parts):
    training, held_out, others = parts
    for candidates in (others, drawn(*training.shape)):
        found = measures.leak(candidates, training, held_out, SHAPE)
        assert found.auc.low < 0.5 < found.auc.high and found.p > 0.05 and found.alike <= 2


def test_noisy_ghosts_of_the_training_images_leak(parts):
    training, held_out, others = parts
    ghosts = 0.7 * training + 0.3 * others + 0.1 * drawn(*training.shape)
    found = measures.leak(ghosts, training, held_out, SHAPE)
    assert found.auc.low > 0.95 and found.p < 0.001 and found.above >= 38 and found.alike >= 38
    turned = measures.leak(ghosts, held_out, training, SHAPE)
    assert abs(found.auc.value + turned.auc.value - 1) < 1e-12 and turned.p > 0.99


def test_the_null_is_exact_where_nothing_leaked():
    """Over many draws without a leak, p is below 0.1 in about a tenth, and the interval holds 0.5 in about 95 %."""
    generator, p, inside = torch.Generator().manual_seed(0), [], []
    for _ in range(200):
        one, two = torch.rand(2, 30, generator=generator, dtype=torch.float64)
        area = null.area(one, two)
        p.append(null.p_value(one, two))
        inside.append(area.low <= 0.5 <= area.high)
    assert 0.04 < sum(value < 0.1 for value in p) / 200 < 0.17 and sum(inside) / 200 > 0.9


def test_area_and_p_are_those_of_other_libraries():
    generator = torch.Generator().manual_seed(1)
    above, below = torch.randn(2, 40, generator=generator).double().round(decimals=1)  # with ties, which count half
    above = above + 0.5
    scores, truth = torch.cat([above, below]), torch.arange(80) < 40
    assert abs(null.area(above, below).value - roc_auc_score(truth, scores)) < 1e-12
    assert abs(null.p_value(above, below) - mannwhitneyu(above, below, alternative="greater").pvalue) < 0.05
    found = null.detection(scores, truth)
    assert found.auc == null.area(above, below)
    assert found.tpr == (above > below.max()).double().mean() and null.p_value(below[:1], below[:1]) == 1
    assert null.detection(scores, truth | True) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_is_constant_up_to_rounding_detects_nothing(dtype):
    """Its order is that of rounding errors, here the truth itself."""
    truth = torch.arange(40) < 20
    rounding = torch.where(truth, 1.0, -1.0).to(dtype) * torch.finfo(dtype).eps
    assert null.detection(3 * (1 + rounding), truth) is None
    assert null.detection(torch.zeros(40, dtype=dtype), truth) is None
    assert null.detection(3 * (1 + 100 * rounding), truth).auc.value == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_share_in_the_span_is_a_score_where_it_differs_alone(parts, dtype):
    """An attack within the span has a share of 1 up to rounding, and one on all pixels has shares of its own."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(60, 40, dtype=torch.float64, generator=generator) @ parts[0]
    released = Released((Layer(mixed.to(dtype), None),), torch.zeros(40), None)
    start, basis = parts[2].to(dtype), networks.span(released.network)
    for x, there in ((networks.within(start, basis), False), (start, True)):
        found = Attack(x + 0.1 * networks.within(x, basis), None, None, *[None] * 5)
        named = contract.scores(released, drawn(*start.shape).to(dtype), found, None, SHAPE)
        assert ("share in the span" in named) == there and "drift from the start" in named


def test_a_null_of_another_size_is_refused(parts):
    with pytest.raises(InputError, match="There are 30 held-out images for 40 training images.*held_out=IMAGES"):
        measures.leak(parts[2], parts[0], parts[1][:30], SHAPE)


def test_alike_ignores_brightness_contrast_shading_and_noise_but_not_content(parts):
    x, others, _ = parts
    planes = x.reshape(-1, *SHAPE)
    shading = torch.linspace(-1, 1, 32, dtype=x.dtype)[:, None, None].expand(SHAPE).flatten()
    blurred = avg_pool2d(planes.permute(0, 3, 1, 2), 3, 1, 1).permute(0, 2, 3, 1).flatten(1)
    for altered in (0.2 * x + 0.5, x + shading, blurred, x + 0.5 * x.std() * drawn(*x.shape)):
        assert (detail_ncc(altered, x, SHAPE).diagonal() > measures.ALIKE).double().mean() > 0.95
    assert (detail_ncc(others, x, SHAPE).amax(0) > measures.ALIKE).double().mean() < 0.05
    assert torch.allclose(detail_ncc(-x, x, SHAPE).diagonal(), -torch.ones(len(x), dtype=x.dtype))


def test_a_flat_image_is_like_no_other(parts):
    flat = 0.5 + torch.zeros(1, 3072, dtype=torch.float64)
    shaded = flat + 0.3 * torch.linspace(-1, 1, 32, dtype=torch.float64)[:, None, None].expand(SHAPE).flatten()
    for candidate in (flat, shaded):
        assert detail_ncc(candidate, parts[0], SHAPE).abs().max() < 0.35


def test_only_the_victim_of_these_images_leaks_them():
    """The same attack on a network that was trained on them, on one trained on others, and on an untrained one."""
    data = images.split(images.load("photos"), 30, 30, held_out=30)
    recipe = networks.perceptron("signed", 100, 100)._replace(epochs=800, stages=2)
    start = starts.normal(60, 3072, 0.02, 0)

    def leak(part, recipe):
        released = stationary.train(part, recipe).released
        found = decoreco.attack(released, start, basis=networks.span(released.network), iterations=200)
        return measures.leak(found.images, data.secret.images, data.held_out.images, SHAPE)

    theirs, of_others, untrained = (
        leak(data.secret, recipe), leak(data.known, recipe), leak(data.secret, recipe._replace(epochs=0, stages=0))
    )  # fmt: skip
    assert theirs.auc.low > 0.6 and theirs.p < 0.01
    for found in (of_others, untrained):
        assert found.auc.low < 0.5 < found.auc.high and found.p > 0.01
