import torch

from utils import solvers


def quadratic(generator, n=15, problems=3):
    """Symmetric positive definite matrices (problems, n, n) and right-hand sides (problems, n)."""
    root = torch.randn(problems, n, n, dtype=torch.float64, generator=generator)
    return root @ root.mT + torch.eye(n), torch.randn(problems, n, dtype=torch.float64, generator=generator)


def test_cg_solves_several_systems(small):
    matrix, b = quadratic(small[2])
    solved = solvers.cg(lambda v: (matrix @ v[..., None])[..., 0], b)
    assert torch.allclose(solved.x, torch.linalg.solve(matrix, b), atol=1e-9)
    assert (solved.residuals[-1] <= 1e-12).all()


def test_lbfgs_minimises_and_its_memory_obeys_the_secant_equation(small):
    matrix, b = quadratic(small[2])

    def objective(x):
        product = (matrix @ x[..., None])[..., 0]
        return (x * product).sum(-1) / 2 - (b * x).sum(-1), product - b

    found = solvers.lbfgs(objective, torch.zeros_like(b), gradient_tolerance=1e-9, memory=100)
    assert found.stopped == "converged" and found.converged.all()
    assert torch.allclose(found.x, torch.linalg.solve(matrix, b), atol=1e-8)
    first = solvers.lbfgs(objective, torch.zeros_like(b), iterations=8)
    step, change, _ = first.pairs[-1]
    assert torch.allclose(solvers.quasi_newton_product(first.pairs, change), step, rtol=1e-9)


def test_lbfgs_solves_a_curved_valley():
    def rosenbrock(x):
        x = x.detach().requires_grad_()
        value = 100 * (x[..., 1] - x[..., 0] ** 2) ** 2 + (1 - x[..., 0]) ** 2
        (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient

    start = torch.tensor([[-1.2, 1.0], [0.0, 3.0]], dtype=torch.float64)
    found = solvers.lbfgs(rosenbrock, start, gradient_tolerance=1e-8)
    assert found.stopped == "converged"
    assert torch.allclose(found.x, torch.ones(2, 2, dtype=torch.float64), atol=1e-7)


def test_descent_without_a_minimum_is_reported():
    found = solvers.gradient_descent(lambda x: (x.square().sum(-1), 2 * x), torch.ones(2), 2.0, iterations=200)
    assert found.stopped == "diverged"
    assert torch.equal(found.x, torch.ones(2))  # the best iterate is kept


def test_wrong_gradient_stalls():
    found = solvers.lbfgs(lambda x: (x.square().sum(-1), -2 * x), torch.ones(3, dtype=torch.float64))
    assert found.stopped == "stalled" and not found.converged
