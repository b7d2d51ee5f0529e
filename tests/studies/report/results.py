"""Results of studies that nobody ran, for the tests of the report."""

import dataclasses

import numpy as np

from configs.studies.base import heldout_loss, published, raw_tokens, study, variant
from studies.results import Curve, Outcome, Results
from studies.study import make_study

MEASURES = {"loss": heldout_loss(config="configs/mlm.py")}


def make_results(values, *, baseline=None, measures=None, problems=(), sweeps=(), seeds=3, **fields):
    """Returns results. values: measure -> variant -> list of values, one a seed; None: the run has no such value."""
    variants = list(next(iter(values.values())))
    measures = measures or {name: MEASURES["loss"] for name in values}
    fields = {"variants": {name: variant() for name in variants}, "budget": raw_tokens(1e6)} | fields
    made = study(
        question="Does the mask rate matter?",
        config="configs/mlm.py",
        baseline=baseline or variants[0],
        measures=measures,
        seeds=seeds,
        **fields,
    )
    runs = {name: max(len(of[name]) for of in values.values()) for name in variants}
    outcomes = [
        make_outcome(
            name,
            seed,
            {
                measure: of[name][seed]
                for measure, of in values.items()
                if seed < len(of[name]) and of[name][seed] is not None
            },
        )
        for name in variants
        for seed in range(runs[name])
    ]
    return Results(
        name="mask_rates",
        study=make_study(made, "mask_rates.py"),
        command="python -m train.ablate --study=configs/studies/mask_rates.py --out=studies/mask_rates",
        outcomes=outcomes,
        problems=problems,
        sweeps=sweeps,
        environment={"device": "cpu x 1", "jax": "0.10.2"},
    )


def make_outcome(name, seed, values, **fields):
    """Returns a run whose loss falls as a power of its tokens."""
    tokens = np.linspace(1e5, 1e6, 10)
    last = values.get("loss", 2.0)
    loss = last + 3 * (tokens / 1e5) ** -0.7 - 3 * 10**-0.7
    outcome = Outcome(
        variant=name,
        seed=seed,
        values=values,
        samples={},
        curve=Curve(tokens.tolist(), (6e6 * tokens).tolist(), loss.tolist()),
        num_params=1_234_567,
        steps=500,
        raw_tokens=1e6,
        flops=6e12,
        seconds=60.0 + seed,
        swept={},
        commands=[f"python -m train.main --config=configs/mlm.py --workdir=runs/{name}_{seed}"],
        heldout_digest="aa",
    )
    return dataclasses.replace(outcome, **fields)


def paper(values=None, **fields):
    """Returns a published result on the measure `loss`."""
    return published("Author et al. (2020), Table 1", measure="loss", metric="GLUE", values=values, **fields)
