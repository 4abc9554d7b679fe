"""The trainer: to a stationary point, or by torch's optimisers as a practitioner writes them."""

import utils  # noqa: F401, I001  (before torch: how threads wait)
import math
from typing import NamedTuple

import torch

from utils.networks import Released


class Victim(NamedTuple):
    """What a trainer released, and what only the trainer and the evaluator know."""

    released: Released
    mean: torch.Tensor  # (d,), was subtracted from the training images; zero if none was
    loss: float  # (1/m) Σ ℓ of the training images at the end
    versions: int  # how many pictures the network saw, mirrored and shifted copies included
    # θ⁰, of Layers or a module, where others may know it as well
    initial: tuple | torch.nn.Module = ()
    gradient_norm: float = math.nan  # ‖∇_θ E‖ at the end of a training to a stationary point

    def subtract_mean(self, images):
        """Images (…, d) as the network saw them: without the mean."""
        return images - self.mean

    def add_mean(self, images):
        """What the network saw as images again."""
        return images + self.mean
