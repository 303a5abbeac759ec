"""The published method that ours is measured against, written anew from its description.

Srivastava, Arora and Boneh, "Optimistic verifiable training by controlling hardware nondeterminism" (NeurIPS 2024):
train in float64, round what modules return to float32 after each of them, and log for every rounded element which way
it went if a rounding boundary was near. `ternary` is the log's code, `rounding` rounds and classifies, `hooks` puts it
into a model, `threshold` measures how wide the logged band must be, `training` trains and audits.

What the method leaves alone is left alone here too: gradients of weights, the optimizer's state, updated weights and
running statistics stay in float64 and are neither rounded nor logged; so are results of functions that are no modules.
Where the published code departs from the description to its own disadvantage (a band that follows decimal exponents, a
cast whose derivative rounds without logging), the description is followed.
"""
