"""How many inspections are enough: detection probability, sample sizes and costs, as pure functions over arrays.

The model and its symbols are those of Shavit, "What does it take to catch a Chinchilla?" (arXiv 2303.11341);
`docs/paper.md` in the repository says what each formula assumes and where the paper is off.

Parameters are keyword-only, may be numbers or arrays, and broadcast; units are in every docstring. Inputs out of range
raise `domain.DetectionDomainError`, a ValueError; inputs that are in range but impossible together (a run that does not
fit, a probability that nothing reaches) raise its subclass `domain.InfeasibleError`.

    detection       snapshot_probability, involved_fraction, involved_chips, sample_hit_probability (q of equation 1),
                    detection_probability_{eq1, linearised, hypergeometric},
                    samples_needed{, _linearised, _hypergeometric}
    hypergeometric  seen_probability, least_drawn: exact for any population, in constant time
    periods         accumulating_probability{, _hypergeometric, _followed}, accumulating_samples{, _hypergeometric},
                    seen_in_periods, periods_of_run: snapshots that stay on the chips
    smallest_run    smallest_run_eq1, smallest_run_chips: what could be caught
    stretch         stretch_probability, stretch_limit, stretch_ratio, largest_fraction: longer on fewer chips
    spread          spread_probability (theorem 1), lemma_1, lemma_1_slope
    early_detection threshold_to_catch (the 2H rule), incriminating_flops, probability_by_day,
                    fraction_done_when_detected
    stratified_sampling  strata_probability, worst_shares, best_samples, whole_samples: also for colluding Provers
    withheld_marks  shown_marks, more_marks_than: the draw whose worst items are hidden afterwards
    least_detection least_probability: whole chips of several groups, against the worst spread of a run
    silence         least_probability_despite, GroupedDraw: the same with chips that did not verify after the draw
    unmonitored_chips  unmonitored_flops, monitored_flops, sampled_waste: legacy and exempt chips
    reliability     shown_probability, worst_shown_probability, with_soundness_error: inspections that miss things
    sequential      expected_samples{, _with_replacement}, sequential_test_{lines, samples}, sequential_verdict
    confidence      clopper_pearson, hypergeometric_bounds, largest_hidden_run: after k findings in s samples
    attribute_sampling  sample_size_{exact, iaea, iaea_refined, binomial}: any population
    costs           annual_samples, inspectors_needed, stall_fraction, stored_bytes, interrupt_probability_per_cycle
    coverage        least_union, seen_by_independent_draws, seen_in_sample, paid_off: many auditors of one transcript
    strategies      Strategy, Policy, Goal, Holding, crews: what a Prover may do with a run, as chips at work
    simulated_fleet simulate, Outcome, Estimate: fleets played out, the independent check of every formula
    attack          best_strategy, best_policy, found_probability: the Prover who chooses best, and the answer to it
    planning        best_plan, CostModel, Stratum, Plan: rate, samples and strata for a budget
    paper           table_1, footnote_5, figure_2, MODELS
    catalog         load_models, load_chips, load_systems, named: published figures, from CSV
    economics       compute_optimal, fit_counts, fit_records, transcript_bytes, replayed_fraction, proving_seconds
    benchmark_results  step_times, log_sizes, regenerations, sketches, stalls: results of the benchmarks
    scenario        load, parse, paper, Scenario: a question in TOML
    scenario_answers  answer, samples_needed, plan_for, proofs: what is asked of a scenario
    evasion         seen, way, ways, simulated, worst: what the Prover could do instead
    figure_files    figure, save, inline_svg, DRAWINGS: deterministic SVG and PDF
    scenario_page   html: one page for a scenario
    sweep           axis, grid, evaluate: any function over a grid
"""

__all__ = [
    "attack",
    "attribute_sampling",
    "benchmark_results",
    "catalog",
    "confidence",
    "costs",
    "coverage",
    "detection",
    "domain",
    "early_detection",
    "economics",
    "evasion",
    "figure_files",
    "hypergeometric",
    "least_detection",
    "paper",
    "periods",
    "planning",
    "reliability",
    "scenario",
    "scenario_answers",
    "scenario_page",
    "sequential",
    "silence",
    "simulated_fleet",
    "smallest_run",
    "spread",
    "strategies",
    "stratified_sampling",
    "stretch",
    "sweep",
    "unmonitored_chips",
    "withheld_marks",
]
