"""Minimisers and linear solvers, against matrices and valleys whose answer is known."""

import torch

from conftest import drawn
from utils.kernels import solvers


def test_cg_and_lbfgs_solve_several_systems_and_the_memory_obeys_the_secant_equation():
    root, b = drawn(3, 15, 15), drawn(3, 15, seed=1)
    matrix = root @ root.mT + torch.eye(15)
    expected = torch.linalg.solve(matrix, b)

    def product(v):
        return (matrix @ v[..., None])[..., 0]

    def objective(x):
        return (x * product(x)).sum(-1) / 2 - (b * x).sum(-1), product(x) - b

    solved = solvers.cg(product, b)
    assert torch.allclose(solved.x, expected, atol=1e-9) and (solved.residuals[-1] <= 1e-12).all()
    found = solvers.lbfgs(objective, 0 * b, gradient_tolerance=1e-9, memory=100)
    assert torch.allclose(found.x, expected, atol=1e-8)
    pairs = solvers.lbfgs(objective, 0 * b, iterations=8).pairs
    step, change, _ = pairs[-1]
    assert torch.allclose(solvers.quasi_newton_product(pairs, change), step, rtol=1e-9)


def rosenbrock(x):
    """A curved valley with its minimum at (1, 1): the value and the gradient."""
    a, b = x.unbind(-1)
    value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    return value, torch.stack([2 * (a - 1) - 400 * a * (b - a**2), 200 * (b - a**2)], -1)


def test_cg_counts_no_iteration_that_moves_nothing_and_a_preconditioner_saves_some(monkeypatch):
    """A GPU looks at whether to stop every fifty iterations only; those in between spend nothing of Newton's budget."""
    diagonal, b = torch.logspace(0, 4, 200).double(), torch.ones(200).double()
    plain, better = (
        solvers.cg(lambda v: diagonal * v, b, 1e-6, precondition=lambda r, p=p: r / diagonal**p)
        for p in (0, 0.5)
    )
    assert plain.converged and better.converged and len(better.residuals) < len(plain.residuals) / 2
    monkeypatch.setattr(solvers, "LOOK", {"cpu": 50})
    found = solvers.cg(lambda v: v * torch.arange(1, 4), torch.ones(3).double())
    assert len(found.residuals) == 3


def test_lbfgs_and_newton_cg_walk_out_of_a_saddle_and_down_a_valley():
    def hessian(x):
        a, b = x.unbind(-1)
        rows = torch.stack([2 - 400 * (b - 3 * a**2), -400 * a, -400 * a, 200 + 0 * a], -1)
        return lambda v: (rows.unflatten(-1, (2, 2)) @ v[..., None])[..., 0], lambda r: r

    # At the second, the Hessian is indefinite.
    start = torch.tensor([[-1.2, 1.0], [0.0, 3.0]], dtype=torch.float64)
    for found in (
        solvers.lbfgs(rosenbrock, start, gradient_tolerance=1e-8),
        solvers.newton_cg(rosenbrock, hessian, start),
    ):
        assert found.stopped == ["converged"] * 2 and (found.x - 1).abs().max() < 1e-7
    assert not solvers.newton_cg(rosenbrock, hessian, start, products=3).converged.all()


def test_every_problem_of_a_batch_says_how_it_stopped_even_an_indefinite_one():
    def objective(x):  # the second problem's gradient points the wrong way
        return x.square().sum(-1), 2 * x * torch.tensor([[1.0], [-1.0]])

    start = torch.ones(2, 3, dtype=torch.float64)
    assert solvers.lbfgs(objective, start, gradient_tolerance=1e-9).stopped[1] == "stalled"
    diagonal = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -3.0]]).double()
    assert solvers.cg(lambda v: diagonal * v, start).converged.tolist() == [True, False]
    radius = torch.full((2, 1), 1.1).double()  # between the first iterate and the solution
    solution = solvers.cg(lambda v: diagonal * v, start, radius=radius)
    assert torch.allclose(solution.x.norm(dim=-1, keepdim=True), radius)
