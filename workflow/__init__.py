"""Run experiments and chapters: grids of runs (`grid`), their records (`record`, `verify`), the book's chapters."""
