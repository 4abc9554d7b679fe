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
    found = solvers.lbfgs(objective, torch.zeros_like(b), gradient_tolerance=1e-9, memory=100)
    assert found.stopped == ["converged"] * 3 and found.converged.all()
    assert torch.allclose(found.x, expected, atol=1e-8)
    first = solvers.lbfgs(objective, torch.zeros_like(b), iterations=8)
    step, change, _ = first.pairs[-1]
    assert torch.allclose(solvers.quasi_newton_product(first.pairs, change), step, rtol=1e-9)


def rosenbrock(x):
    """A curved valley with its minimum at (1, 1): the value and the gradient."""
    a, b = x[..., 0], x[..., 1]
    value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    return value, torch.stack([2 * (a - 1) - 400 * a * (b - a**2), 200 * (b - a**2)], -1)


def test_cg_counts_no_iteration_that_moves_nothing_and_a_preconditioner_saves_some(monkeypatch):
    """A GPU looks at whether to stop every fifty iterations only; those in between spend nothing of Newton's budget."""
    diagonal = torch.logspace(0, 4, 200, dtype=torch.float64)
    b = torch.ones(200, dtype=torch.float64)
    plain = solvers.cg(lambda v: diagonal * v, b, 1e-6)
    better = solvers.cg(lambda v: diagonal * v, b, 1e-6, precondition=lambda r: r / diagonal.sqrt())
    assert plain.converged and better.converged and len(better.residuals) < len(plain.residuals) / 2
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0]).double())
    counts = []
    for every in (1, 50):
        monkeypatch.setattr(solvers, "LOOK", {"cpu": every})
        counts.append(len(solvers.cg(lambda v: v @ matrix, torch.ones(3).double()).residuals))
    assert counts == [3, 3]


def test_lbfgs_and_newton_cg_walk_out_of_a_saddle_and_down_a_valley():
    def hessian(x):
        a, b = x[..., 0], x[..., 1]
        aa, ab = 2 - 400 * (b - 3 * a**2), -400 * a

        def product(v):
            return torch.stack(
                [aa * v[..., 0] + ab * v[..., 1], ab * v[..., 0] + 200 * v[..., 1]], -1
            )

        return product, lambda r: r

    start = torch.tensor(
        [[-1.2, 1.0], [0.0, 3.0]], dtype=torch.float64
    )  # at the second, its Hessian is indefinite
    ends = (
        solvers.lbfgs(rosenbrock, start, gradient_tolerance=1e-8),
        solvers.newton_cg(rosenbrock, hessian, start),
    )
    for found in ends:
        assert found.stopped == ["converged"] * 2
        assert torch.allclose(found.x, torch.ones(2, 2, dtype=torch.float64), atol=1e-7)
    short = solvers.newton_cg(rosenbrock, hessian, start, products=3)
    assert "iterations" in short.stopped and not short.converged.all()


def test_every_problem_of_a_batch_says_how_it_stopped_even_an_indefinite_one():
    def objective(x):  # the second problem's gradient points the wrong way
        return x.square().sum(-1), 2 * x * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    start = torch.ones(2, 3, dtype=torch.float64)
    found = solvers.lbfgs(objective, start, gradient_tolerance=1e-9)
    assert found.stopped == ["converged", "stalled"]
    left = solvers.lbfgs(objective, start, each=lambda x, value: torch.tensor([True, False]))
    assert left.stopped == ["left", "stalled"]
    diagonal = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -3.0]], dtype=torch.float64)
    solution = solvers.cg(lambda v: diagonal * v, start)
    assert solution.converged.tolist() == [True, False] and solution.x.isfinite().all()
    solution = solvers.cg(
        lambda v: diagonal * v, start, radius=torch.full((2, 1), 0.5, dtype=torch.float64)
    )
    assert torch.allclose(solution.x.norm(dim=-1), torch.full((2,), 0.5, dtype=torch.float64))
    assert not solution.converged.any()
