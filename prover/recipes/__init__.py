"""Real trainings, small enough for a laptop: what the demo, the tests and the benchmarks record, hide and alter.

Each module is a recipe that can be imported, and a program: `python -m prover.recipes.gpt2 --out RUN --steps 20`.
"""
