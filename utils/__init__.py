"""The shared kernels of the book, one idea per file.

Data flows one way: `images` → `affine` (the victim) → `starts` → `bilevel` (the attack) → `evaluate` → `figures`.
"""

import warnings

# torch.func imports a part of torch that warns about another one; the warning would print a path of the machine.
warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
