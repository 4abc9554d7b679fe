"""What must be true between the numbers of one run, on every machine: bounds by convergence, order and definition."""

import math
from typing import NamedTuple

ROUNDING = 1e-5  # relative, of sums in single precision


class Number:
    """A row of RESULTS: its value and its baseline, NaN where there is none."""

    def __init__(self, row):
        self.value, self.baseline = row.get("value", math.nan), row.get("baseline", math.nan)


class Others(NamedTuple):
    """The other numbers of the same run; {0}, {1}, … in their names are groups of the pattern that was found."""

    rows: dict
    found: object

    def row(self, name):
        return Number(self.rows[name.format(*self.found.groups())])

    def __call__(self, name):
        return self.row(name).value

    def ratio(self, name):
        return self.row(name).value / self.row(name).baseline


def close(a, b, tolerance=ROUNDING):
    return math.isclose(a, b, rel_tol=tolerance)


# A pattern of names, what is true, and the test of it.
RELATIONS = [
    (r"plant/.*/relative_distance", "a closed form is exact", lambda r, of: r.value <= 1e-11 < r.baseline),
    (r"(bilevel/affine/.*)/relative_distance", "solved", lambda r, of: r.value <= 1e-12),
    (r"bilevel/.*/relative_distance", "no worse than the start", lambda r, of: r.value <= r.baseline + 1e-25),
    (r"(.*)/mean_square_distance", "the same per weight",
     lambda r, of: close(r.value / r.baseline, of.ratio("{0}/relative_distance"), 1e-9)),
    (r"(.*)/square_distance", "the same times ‖θ*‖²",
     lambda r, of: close(r.value / r.baseline, of.ratio("{0}/relative_distance"), 1e-9)),
    (r"bilevel/.*/nearest_start_l2", "the start is itself", lambda r, of: r.baseline == 0),
    (r"bilevel/.*/ground_truth/.*nearest_training_l2", "begins there", lambda r, of: r.baseline == 0),
    (r".*/ground_truth/.*leak_auc", "the truth at the start", lambda r, of: r.baseline == 1),
    (r"(.*)/outer_converged", "by its threshold", lambda r, of: r.value == (of("{0}/relative_distance") <= 1e-6)),
    (r".*/inner_gradient_norm", "the inner problem is solved", lambda r, of: r.value <= 1e-8),
    (r"(.*leak_auc)_low", "an interval holds its area", lambda r, of: r.value <= of("{0}") + 1e-9),
    (r".*/attack_loss", "the loss falls", lambda r, of: not r.value >= r.baseline),
    (r"landscape/.*/loss", "the loss falls", lambda r, of: r.value <= r.baseline * (1 + ROUNDING)),
    (r"landscape/(?!bilevel).*/1/1/moved", "stays at a minimum", lambda r, of: r.value <= 1e-3),
    (r"(landscape/cost/.*)/0.001/reached", "nearer is later", lambda r, of: r.value <= of("{0}/0.1/reached")),
    (r"landscape/condition/.*", "a condition number", lambda r, of: r.value >= 1),
    (r"(.*/steps)/6/loss", "the loss falls", lambda r, of: of("{0}/12/loss") <= r.value <= of("{0}/3/loss")),
    (r"(.*)/steps/12/leak_auc", "the end is the end", lambda r, of: r.value == of("{0}/leak_auc")),
    (r".*/victim_error", "the victim has converged", lambda r, of: r.value <= 0.05),
    (r"collapse/no_decay/.*", "a collapsed set is stationary", lambda r, of: r.value < r.baseline),
    (r"collapse/decay/.*", "a collapsed set is not", lambda r, of: r.baseline <= 1e-7 < 1e-3 < r.value),
    (r"(collapse/fewest/affine)/.*", "few images suffice", lambda r, of: r.value <= 1e-20),
    (r"kkt/.*/stationarity", "as good as the truth, better than strangers", lambda r, of: r.value < r.baseline / 3),
    (r"certificate/(planted|split)/residual", "exact sets",
     lambda r, of: close(r.value, of("certificate/original/residual"))),
    (r"certificate/original/(margin|agreement|cosine|like_truth)", "the truth", lambda r, of: close(r.value, 1)),
    (r"plant_network/.*/relative_distance", "planted", lambda r, of: r.value < r.baseline / 100),
    (r"(plant_network/.*)/(trained|fresh)_distance", "trained again",
     lambda r, of: r.value <= 2 * of("{0}/relative_distance") + 1e-6),
    (r"(plant_network/.*)/stored_distance", "8 bits cost", lambda r, of: r.value > of("{0}/relative_distance")),
    (r"patterns/planted/.*_error", "exact", lambda r, of: r.value <= 1e-9),
    (r"reading/ground_truth/(relative_distance|moved)", "the truth stays", lambda r, of: r.value <= 1e-20),
    (r"reading/.*/relative_distance", "no worse than the start", lambda r, of: r.value <= r.baseline + 1e-25),
    (r"known_start/sgd/alpha", "no decay, all of the start is left", lambda r, of: abs(r.value - 1) <= 1e-5),
    (r"(known_start/.*)/ncc_above_0.9", "a higher bar", lambda r, of: r.value <= of("{0}/ncc_above_0.7")),
    (r"speed/(\d+)/operations", "the Gram form saves products", lambda r, of: r.value < r.baseline),
    (r"speed/agreement/float64", "rounding alone", lambda r, of: r.value <= 1e-11),
    (r"speed/agreement/float32", "rounding alone", lambda r, of: r.value <= 1e-4),
    (r"speed/digits/(\d+)/gradient_error", "so many binary digits",
     lambda r, of: r.value <= 2.0 ** (6 - int(of.found[1]))),
    (r"(rank/.*)/rank", "counts are in order",
     lambda r, of: of("{0}/above_1e-2") <= of("{0}/above_1e-4") <= of("{0}/above_1e-6")),
    (r"rank/.*/(accuracy|gradient_error)", "trained to the end", lambda r, of: r.value == 1 or r.value <= 1e-4),
    (r"rank/.*/outside", "training images lie in the rows", lambda r, of: r.value < r.baseline),
    (r"similarity/.*/auc", "it tells pairs apart", lambda r, of: r.value > 0.7),
    (r"(prior/sphere/[\d.]+)/loss", "the loss falls", lambda r, of: r.value < of("{0}/start/loss")),
    (r"(prior/.*)/kkt_at_kinks", "free slopes are no worse", lambda r, of: r.value <= of("{0}/kkt") + 1e-12),
    (r"prior/sphere/victim/loss", "the loss falls",
     lambda r, of: r.value < of("prior/sphere/victim/loss_at/5000/loss")),
    (r"own/network/accuracy", "trained to the end", lambda r, of: r.value == 1),
]  # fmt: skip
