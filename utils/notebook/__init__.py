"""What the notebooks share: parameters, RESULTS, records, verdicts, tables and figures. No other room imports it."""
