"""`weighbridge analysis ...`: detection probability, samples, plans, figures and pages."""
