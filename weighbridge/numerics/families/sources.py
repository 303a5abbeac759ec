"""Where bounds come from, as docs/bounds.md cites it; the page has the titles."""

SUMS = "Higham 2002, lemma 3.1 and section 4.2"
PRODUCTS = "Higham 2002, section 3.1; Cauchy-Schwarz"
VARIANCE = "Chan, Golub and LeVeque 1983, table 1"
EXPONENTIALS = "Blanchard, Higham and Higham 2021, sections 3 and 4"
ANALYSIS = "first-order analysis, stated in the code; Higham 2002, lemma 3.1"
FUNCTIONS = "CUDA, SLEEF and glibc, documented maxima of error"
