"""What a step of the stationarity attack costs: its operations and bytes, by formula and as torch counts them.

A product of matrices of a×b and b×c entries takes 2abc operations; all else, slopes, sums and masks, is not counted.
Networks are given by their widths (n₀, …, n_L), with biases in the first layer alone, as in the attacked ones.
"""

from torch.utils.flop_counter import FlopCounterMode


def operations(n, widths, form="cheaper"):
    """F(n): the operations of a step of n candidates; shares of R in the `gram`, `direct` or `cheaper` form."""
    total = 0
    for layer, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        share = {"gram": 4 * n**2 * (inputs + outputs), "direct": 6 * n * inputs * outputs}
        share["cheaper"] = min(share.values())
        total += (8 if layer else 4) * n * inputs * outputs + share[form]
    return total


def plain_operations(n, widths):
    """The operations of `naive.residual`: the direct form, but for a product by zeros in the last layer."""
    return operations(n, widths, "direct") - 2 * n * widths[-2] * widths[-1]


def least_bytes(n, widths, number=4):
    """B(n): the bytes to read weights, candidates and λ once, and write two gradients, with `number` bytes each."""
    weights = sum(a * b for a, b in zip(widths, widths[1:])) + widths[1]
    return number * (weights + 2 * n * widths[0] + 2 * n)


def roofline(operations, moved, peak, bandwidth):
    """The least seconds of so many operations and bytes, on a machine that makes at most so many in a second."""
    return max(operations / peak, moved / bandwidth)


def counted(function, *given):
    """How many operations the products of a call take, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function(*given)
    return counter.get_total_flops()
