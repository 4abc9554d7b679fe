"""What trainer, attacker and evaluator share: networks, errors, and the arithmetic that must be fast.

`kernels` is that arithmetic, tensors in and tensors out; `networks` is what all three agree on, such as what is
`Released` of a victim, which is all that an attacker is given.

To import it sets how threads wait for each other: asleep (OMP_WAIT_POLICY, unless the environment has one). By default
they spin, and on busy cores two threads took 2.6 to 11 times as long as one; asleep, on idle cores, half as long again
at most. OpenMP reads the setting once, when torch is loaded: so a notebook imports utils first.
"""

import builtins
import os
import warnings

from utils.errors import InputError

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# torch.func imports a part of torch that warns about another one; the warning would print a path of the machine.
warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)

if hasattr(builtins, "__IPYTHON__"):  # a notebook, which needs torch in any case
    try:
        import torch  # noqa: F401
    except ImportError as error:
        if "failed to map" not in str(error):
            raise
        needed = "its libraries take up to 4 GB of address space: raise the limit (ulimit -v), or end what else runs"
        raise InputError(
            f"There is too little memory to load PyTorch ({error}); {needed}."
        ) from error
