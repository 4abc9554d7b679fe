"""The shared code of the book: what two chapters need, and the arithmetic that must be fast.

images → victims (the trainer) → attacks (the attacker) → experiment, evaluate (the evaluator) → figures, tables, report

`kernels` is the arithmetic of all of them, tensors in and tensors out; `networks` what trainer, attacker and evaluator
agree on. Attackers are given a `attacks.contract.Released`, and can reach neither the images nor the trainer.
"""

import warnings

# torch.func imports a part of torch that warns about another one; the warning would print a path of the machine.
warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
