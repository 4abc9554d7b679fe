"""The evaluator: it sees the training images and held-out ones, and judges by both what an attack returned."""

import utils  # noqa: F401  (before torch: how threads wait)
