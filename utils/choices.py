"""The words that stand for a choice: data sets, rules, starts and so on. Loads no torch, so that grids are fast."""

from utils.attacks import ATTACKS, RULES

STARTS = ("random", "untuned", "ground_truth", "partition")  # of an attack
BEGUN = ("torch", "pretrained", "elsewhere")  # of a training whose start is known
DATASETS = ("photos", "cifar10", "cifar10-subset")  # beside the path of an .npz file
CHOICES = {
    "DEVICE": ("auto", "cpu", "cuda"),
    "THETA_START": ("uniform", "standard"),
    "RULE": RULES,
    "ATTACK": tuple(ATTACKS),
    "KNOWLEDGE": ("from_weights", "known_theta0", "unknown_theta0"),
    "START": STARTS,
    "KNOWN": ("start", "half", "later"),  # what the attacker has of such a start
    "SPACE": ("span", "pixels"),
    **dict.fromkeys(("RESTART", "UNMIX", "MEASURE", "CONTROLS"), ("yes", "no")),
}


def allowed(name, default, value):
    """What a parameter with this default may be; if it is no choice, the value that it has."""
    return BEGUN if name == "START" and default in BEGUN else CHOICES.get(name, (value,))
