"""Small deep networks for pictures, and their ordinary training by torch's optimisers: no first layer sees a picture whole.

Images are (n, C, H, W), as torch takes them: in [0, 1] less the mean of every colour, over DEVIATION.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from utils.errors import InputError, choose

DEVIATION = 0.25  # about that of a photograph's pixels
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
NORMS = {  # of a convolution's outputs
    "none": nn.Identity,
    "group": lambda channels: nn.GroupNorm(channels // 8, channels),
    "batch": nn.BatchNorm2d,  # in evaluation mode its statistics are fixed
}
OPTIMISERS = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=1e-2),
}


class Block(nn.Module):
    """Two convolutions, added to what went in: He et al. (2016), Fig. 2."""

    def __init__(self, inputs, outputs, stride, norm, activation):
        super().__init__()
        conv = partial(nn.Conv2d, padding=1, bias=norm == "none")
        self.first = nn.Sequential(conv(inputs, outputs, 3, stride), NORMS[norm](outputs), ACTIVATIONS[activation]())
        self.second = nn.Sequential(conv(outputs, outputs, 3), NORMS[norm](outputs))
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x):
        return self.activation(self.second(self.first(x)) + self.short(x))


def residual(classes, width=16, activation="gelu", norm="none", pooled=False, blocks=(1, 1, 1)):
    """A residual network for images of 32 × 32: `blocks` of three stages; ResNet-8 has one in each.

    Its head sees all 8 × 8 places or, if `pooled`, their mean.
    """
    layers, inputs = [nn.Conv2d(3, width, 3, padding=1), NORMS[norm](width), ACTIVATIONS[activation]()], width
    for stage, count in enumerate(blocks):
        for k in range(count):
            outputs = width * 2**stage
            layers.append(Block(inputs, outputs, 2 if stage and not k else 1, norm, activation))
            inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1)] if pooled else []
    return nn.Sequential(*layers, *head, nn.Flatten(), nn.Linear(inputs * (1 if pooled else 64), classes))


def lenet(classes, width=32, activation="relu"):
    """Three convolutions, two of them with stride, and one fully connected layer, for images of 32 × 32."""
    act, conv = ACTIVATIONS[activation], partial(nn.Conv2d, padding=2)
    body = conv(3, width, 5, 2), act(), conv(width, 2 * width, 5, 2), act(), conv(2 * width, 2 * width, 5, 1), act()
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(128 * width, classes))


def pictures(part, shape, mean=None):
    """Images (n, C, H, W) and labels (n,) of a Part with images of a shape (H, W, C), as these networks see them."""
    x = part.images.view(-1, *shape).permute(0, 3, 1, 2)
    mean = x.mean((0, 2, 3), keepdim=True) if mean is None else mean
    return ((x - mean) / DEVIATION).float(), part.labels.long(), mean
