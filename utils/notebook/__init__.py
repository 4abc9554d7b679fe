"""What the notebooks share: parameters, RESULTS, records, the ledger, tables and figures. No other room imports it."""
