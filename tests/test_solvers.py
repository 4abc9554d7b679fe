import torch

from utils.kernels import solvers


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
    assert found.stopped == ["converged"] * 3 and found.converged.all()
    assert torch.allclose(found.x, torch.linalg.solve(matrix, b), atol=1e-8)
    first = solvers.lbfgs(objective, torch.zeros_like(b), iterations=8)
    step, change, _ = first.pairs[-1]
    assert torch.allclose(solvers.quasi_newton_product(first.pairs, change), step, rtol=1e-9)


def rosenbrock(x):
    """A curved valley with its minimum at (1, 1): the value and the gradient."""
    a, b = x[..., 0], x[..., 1]
    value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    return value, torch.stack([2 * (a - 1) - 400 * a * (b - a**2), 200 * (b - a**2)], -1)


START = torch.tensor([[-1.2, 1.0], [0.0, 3.0]], dtype=torch.float64)  # at the second, its Hessian is indefinite


def test_lbfgs_solves_a_curved_valley():
    found = solvers.lbfgs(rosenbrock, START, gradient_tolerance=1e-8)
    assert found.stopped == ["converged"] * 2
    assert torch.allclose(found.x, torch.ones(2, 2, dtype=torch.float64), atol=1e-7)


def test_cg_counts_no_iteration_that_moves_nothing(monkeypatch):
    """A GPU looks at whether to stop every fifty iterations only; those in between spend nothing of Newton's budget."""
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0]).double())
    counts = []
    for every in (1, 50):
        monkeypatch.setattr(solvers, "LOOK", {"cpu": every})
        counts.append(len(solvers.cg(lambda v: v @ matrix, torch.ones(3).double()).residuals))
    assert counts == [3, 3]


def test_cg_reports_an_indefinite_matrix():
    diagonal = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    solution = solvers.cg(lambda v: diagonal * v, torch.ones(3, dtype=torch.float64))
    assert not solution.converged and solution.x.isfinite().all()


def test_cg_stays_in_its_trust_region():
    diagonal = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -3.0]], dtype=torch.float64)
    b = torch.ones(2, 3, dtype=torch.float64)
    solution = solvers.cg(lambda v: diagonal * v, b, radius=torch.full((2, 1), 0.5, dtype=torch.float64))
    assert torch.allclose(solution.x.norm(dim=-1), torch.full((2,), 0.5, dtype=torch.float64))
    assert not solution.converged.any()


def test_cg_with_a_preconditioner_needs_fewer_products():
    diagonal = torch.logspace(0, 4, 200, dtype=torch.float64)
    b = torch.ones(200, dtype=torch.float64)
    plain = solvers.cg(lambda v: diagonal * v, b, 1e-6)
    better = solvers.cg(lambda v: diagonal * v, b, 1e-6, precondition=lambda r: r / diagonal.sqrt())
    assert plain.converged and better.converged and len(better.residuals) < len(plain.residuals) / 2


def test_newton_cg_walks_out_of_a_saddle_and_down_a_valley():
    def hessian(x):
        a, b = x[..., 0], x[..., 1]
        aa, ab = 2 - 400 * (b - 3 * a**2), -400 * a

        def product(v):
            return torch.stack([aa * v[..., 0] + ab * v[..., 1], ab * v[..., 0] + 200 * v[..., 1]], -1)

        return product, lambda r: r

    found = solvers.newton_cg(rosenbrock, hessian, START)
    assert found.stopped == ["converged"] * 2 and torch.allclose(found.x, torch.ones(2, 2, dtype=torch.float64))
    short = solvers.newton_cg(rosenbrock, hessian, START, products=3)
    assert "iterations" in short.stopped and not short.converged.all()


def test_every_problem_of_a_batch_says_how_it_stopped():
    def objective(x):  # the second problem's gradient points the wrong way
        return x.square().sum(-1), 2 * x * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    start = torch.ones(2, 3, dtype=torch.float64)
    found = solvers.lbfgs(objective, start, gradient_tolerance=1e-9)
    assert found.stopped == ["converged", "stalled"]
    left = solvers.lbfgs(objective, start, each=lambda x, value: torch.tensor([True, False]))
    assert left.stopped == ["left", "stalled"]
