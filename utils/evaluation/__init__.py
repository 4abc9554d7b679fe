"""The evaluator: what an experiment leaves behind, how close an attack came, and the null beside every number."""
