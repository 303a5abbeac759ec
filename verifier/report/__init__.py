"""Report: the ledger, the bound on what was missed, figures, document and signature."""
