"""The words that stand for a choice: data sets, rules, starts and so on. Loads no torch, so that grids are fast."""

RULES = ("signed", "margin", "multiclass", "tied")
DATASETS = ("photos", "cifar10", "cifar10-subset")  # beside the path of an .npz file
CHOICES = {
    "DEVICE": ("auto", "cpu", "cuda"),
    "THETA_START": ("uniform", "standard"),
    "RULE": RULES,
    "ATTACK": ("affine", "one_hidden", *RULES),
    "KNOWLEDGE": ("from_weights", "known_theta0", "unknown_theta0"),
    "START": ("random", "untuned", "ground_truth", "partition"),
    "SPACE": ("span", "pixels"),
    **dict.fromkeys(("RESTART", "UNMIX", "MEASURE"), ("yes", "no")),
}
