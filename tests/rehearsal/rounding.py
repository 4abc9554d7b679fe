"""Round as another processor might: a mode that moves the results of torch by a few units of rounding.

What differs between processors is the order of additions and the last bit of elementary functions. A sum of k terms may
so move by a few units of rounding of the sum of their sizes, a function by one of its value, and a factorisation by as
much as if the matrix had been changed by its last bits. Whole numbers stay: counts are exact everywhere. Equal results
move equally, as on any one processor: the same call gives the same numbers.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

SUMS = (
    """mm bmm mv dot vdot addmm baddbmm addmv addr sum mean cumsum linalg_vector_norm norm convolution var std prod"""
)
FUNCTIONS = """exp expm1 log log1p log2 log10 sigmoid tanh softplus softplus_backward sigmoid_backward tanh_backward sin
    cos pow log_sigmoid_forward logsumexp _softmax _log_softmax binary_cross_entropy_with_logits rsqrt"""
FACTORISATIONS = """linalg_qr _linalg_svd _linalg_eigh linalg_lu_factor_ex linalg_lu_solve _linalg_solve_ex
    linalg_cholesky_ex linalg_inv_ex linalg_solve_triangular triangular_solve cholesky_solve"""
KINDS = {name: kind for kind in (SUMS, FUNCTIONS, FACTORISATIONS) for name in kind.split()}
UNITS = 2  # of rounding by which a result moves at most


def is_real(value):
    """Whether a value is a tensor of real numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class OtherRounding(TorchDispatchMode):
    """Under this mode every result is rounded in another way, which `seed` chooses."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def __torch_dispatch__(self, function, types, given=(), named=None):
        named, kind = named or {}, KINDS.get(function._schema.name.split("::")[1].rstrip("_"))
        if kind is FACTORISATIONS and is_real(given[0]):
            given = (self.moved(given[0].clone(), given[0].abs().mean().expand_as(given[0])), *given[1:])
        sizes = self.sizes(function, given, named) if kind is SUMS else None
        results = function(*given, **named)
        return self.moved(results, results if sizes is None else sizes) if kind in (SUMS, FUNCTIONS) else results

    def sizes(self, function, given, named):
        """The same sum over the sizes of all terms; the call changes none of its own arguments."""
        given, named = tree_map_only(torch.Tensor, lambda part: part.abs() if is_real(part) else part, (given, named))
        return function(*given, **named)

    def moved(self, results, sizes):
        """Move results by at most UNITS of rounding of `sizes`, unless they are whole numbers."""
        for result, size in zip(*([part] if isinstance(part, torch.Tensor) else part for part in (results, sizes))):
            if is_real(result) and result.numel():
                step = UNITS * torch.finfo(result.dtype).eps * drawn(result, self.seed) * size.abs()
                result.copy_(torch.where(result == result.round(), result, result + step))
        return results


def drawn(result, seed):
    """A number in [−1, 1) for each entry, which its bits and the seed decide: the highest bits of a product of both."""
    bits = result.double().view(torch.int64) + seed
    return (bits * -7046029254386353131 >> 40).to(result.dtype) / 2**23  # an odd number near 2⁶⁴/φ, as hashes take


def begin(seed):
    """Round in another way from here on, in this process."""
    OtherRounding(int(seed)).__enter__()
