"""What the notebooks share: parameters, RESULTS and the registry of its names, tables and figures."""
