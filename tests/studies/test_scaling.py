"""Scaling laws: the fit against known coefficients and another optimizer, the optimum, and runs as points."""

import dataclasses
import functools
import json
import math
import shutil
import sys

import numpy as np
import pytest
from scipy.optimize import least_squares, minimize_scalar

from configs import clm
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies import scaling as command
from studies.results import StudyFile
from studies.scaling import advice, fit_fields, fit_table, folders_of, read_points, warnings_of
from studies.scaling_law import PUBLISHED, Law, Point, fit, interval
from studies.study import load_study
from workdir.workdir import Workdir

LAW = Law(E=1.2, A=40.0, B=300.0, alpha=0.35, beta=0.4)
NAMES = ("E", "A", "B", "alpha", "beta")
SIZES, TOKENS = np.geomspace(5e4, 2.5e6, 5), 5e5 * 2.0 ** np.arange(4)
STUDY = "configs/studies/scaling.py"
CORPUS = {"heldout": "aa", "tokenizer": "bytes", "fingerprint": "cc"}
STEPS = (250, 500, 1000)
GOPHER_FLOPS = 5.76e23


def study(law=LAW, noise=0.0, seed=0, *, sizes=SIZES, tokens=TOKENS, seeds=1):
    """Runs of each size at each number of tokens, with losses of `law` times exp(noise x a normal number)."""
    rng = np.random.default_rng(seed)
    return [
        point(size, count, float(law.loss(size, count)) * math.exp(noise * rng.standard_normal()))
        for size in sizes
        for count in tokens
        for _ in range(seeds)
    ]


def point(params, tokens, loss):
    return Point(f"{params:.0f} {tokens:.0f}", float(params), float(tokens), loss)


@pytest.mark.parametrize("law", [LAW, *PUBLISHED.values()], ids=["small", *PUBLISHED])
def test_losses_without_noise_give_the_coefficients(law):
    scale = 1 if law is LAW else 1e4
    found = fit(study(law, sizes=SIZES * scale, tokens=TOKENS * scale), num_resamples=1).law
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=0.01), name


def test_the_estimate_is_the_minimum_that_least_squares_with_the_huber_loss_finds():
    """scipy's trust-region solver, from another start and in other units: log A, log B, log E, alpha and beta."""
    points = study(noise=0.002, seed=3)
    sizes, tokens, losses = (np.array([getattr(p, name) for p in points]) for name in ("params", "tokens", "loss"))

    def residuals(theta):
        law = Law(E=np.exp(theta[0]), A=np.exp(theta[1]), B=np.exp(theta[2]), alpha=theta[3], beta=theta[4])
        return np.log(law.loss(sizes, tokens)) - np.log(losses)

    theta = np.array([0.0, 3.0, 5.0, 0.4, 0.4])
    for delta in (1.0, 0.1, 0.01, 1e-3):  # from nearly least squares to the loss of the fit
        theta = least_squares(residuals, theta, loss="huber", f_scale=delta, x_scale="jac", max_nfev=3000).x
    found = fit(points, num_resamples=1).law
    ours = np.array([*np.log([found.E, found.A, found.B]), found.alpha, found.beta])

    def huber(theta):
        size = np.abs(residuals(theta))
        return np.where(size < 1e-3, size**2 / 2, 1e-3 * (size - 1e-3 / 2)).sum()

    assert huber(ours) <= huber(theta) * (1 + 1e-4)
    np.testing.assert_allclose(ours[[0, 3, 4]], theta[[0, 3, 4]], atol=0.01)


@pytest.mark.slow
def test_intervals_contain_the_coefficients():
    """12 studies of 20 runs: with a coverage of 95% fewer than 9 hits have a probability of 0.2%."""
    true = {name: getattr(LAW, name) for name in NAMES}
    true |= {name: getattr(LAW.optimum(1e13), name) for name in ("params", "tokens", "tokens_per_param", "loss")}
    hits = dict.fromkeys(true, 0)
    for seed in range(12):
        points = study(noise=0.003, seed=seed)
        fields = fit_fields(points, fit(points, num_resamples=50), 1e13)
        for name, value in true.items():
            quantity = (fields if name in NAMES else fields["optimum"])[name]
            assert quantity["low"] <= quantity["value"] <= quantity["high"] and quantity["determined"], name
            hits[name] += quantity["low"] <= value <= quantity["high"]
    assert min(hits.values()) >= 9, hits


@pytest.mark.slow
def test_draws_keep_the_seeds_of_a_configuration_together():
    """Three equal runs of each configuration hold no more than one of them: the intervals have the same width."""
    once = study(noise=0.01, seed=1)
    threefold = [p for p in once for _ in range(3)]

    def width(points):
        low, high = interval([law.alpha for law in fit(points, num_resamples=60).resampled])
        return high - low

    assert width(threefold) == pytest.approx(width(once), rel=0.05)


@pytest.mark.slow
def test_a_coefficient_that_the_runs_do_not_determine_is_named():
    noisy = study(noise=0.1, seed=0, tokens=TOKENS[:3])
    fields = fit_fields(noisy, fit(noisy, num_resamples=60), None)
    unknown = [name for name in NAMES if not fields[name]["determined"]]
    assert {"E", "B"} <= set(unknown)
    warnings = list(warnings_of(fields))
    assert warnings[0].startswith("the runs do not determine ") and "E" in warnings[0]
    assert any("the runs do not determine the optimum" in text for text in warnings)
    cells = [cell for column in fit_table(fields).columns for cell in column.cells]
    assert cells.count("not determined") >= len(unknown)


@pytest.mark.slow
def test_a_loss_that_does_not_depend_on_the_size_has_no_optimum():
    flat = study(Law(E=1.2, A=0.0, B=300.0, alpha=0.3, beta=0.4), noise=0.003)
    fields = fit_fields(flat, fit(flat, num_resamples=60), 1e13)
    assert not fields["optimum"]["tokens_per_param"]["determined"]
    assert fields["beta"]["low"] <= 0.4 <= fields["beta"]["high"]


def test_an_irreducible_loss_at_the_least_that_a_fit_has_is_not_determined():
    """Without an E all draws end at the same bound, an interval without a width."""
    points = study(Law(E=0.0, A=40.0, B=300.0, alpha=0.35, beta=0.4))
    fields = fit_fields(points, fit(points, num_resamples=20), None)
    assert fields["E"]["high"] < 1.5 * fields["E"]["low"] and not fields["E"]["determined"]
    assert fields["alpha"]["determined"]


def test_extrapolation_is_warned_about():
    points = study()
    result = fit(points, num_resamples=20)
    assert list(warnings_of(fit_fields(points, result, 1e12))) == []
    beyond = list(warnings_of(fit_fields(points, result, 6e15)))
    assert beyond[0].startswith("extrapolation: 6e+15 FLOPs are 100 times those of the largest run (6e+13)")
    assert beyond[1].startswith("the optimum, ") and "is outside those of the runs" in beyond[1]


def test_interval_of_values_that_are_unknown_is_unbounded():
    assert interval(np.arange(1000.0)) == (24.0, 975.0)
    assert interval([*np.arange(100.0), *[math.nan] * 10]) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            study(sizes=SIZES[:2]),
            "the runs have 2 different sizes, and the fit needs 3: run the study at other budgets",
        ),
        (
            study(tokens=[5e5, 5.01e5, 1e6]),
            "the runs have 2 different numbers of tokens, and the fit needs 3: run",
        ),
        (
            [point(n, d, 3.0 - n * d / 1e13) for n, d in [(1e5, 1e6), (1e5, 2e6), (1e5, 4e6), (2e5, 1e6), (4e5, 1e6)]],
            r"the runs have 5 different pairs of size and tokens, and a fit of five coefficients needs 6 or more",
        ),
        (  # the same five at the same budgets in another folder, whose runs have tokens of about the same number
            [
                Point(f"{folder}/{n} {d}", n, d + extra, float(LAW.loss(n, d)))
                for folder, extra in (("a", 0), ("b", 500))
                for n, d in [(1e5, 5e5), (1e5, 2e6), (4e5, 1e6), (1e6, 5e5), (1e6, 2e6)]
            ],
            r"the runs have 5 different pairs of size and tokens, and a fit of five coefficients needs 6 or more",
        ),
        (
            [point(n, 20 * n, float(LAW.loss(n, 20 * n))) for n in np.geomspace(1e5, 1e7, 8)],
            r"have a correlation of 1.0000, so the effects of size and of tokens cannot be separated",
        ),
    ],
)
def test_points_that_do_not_suffice_are_one_line(points, message):
    with pytest.raises(ConfigError, match=message) as error:
        fit(points)
    assert "\n" not in str(error.value)


def test_loss_by_hand():
    law = Law(E=1.0, A=8.0, B=30.0, alpha=0.5, beta=1.0)
    assert law.loss(16.0, 60.0) == pytest.approx(1.0 + 8 / 4 + 30 / 60)
    np.testing.assert_allclose(law.loss([16.0, 64.0], [60.0, 15.0]), [3.5, 4.0])


def test_optimum_by_hand():
    """alpha = beta and A = B: N and D are equal, so 6 N^2 = 600. A = 4 B and alpha = beta = 1/2: N / D = 4."""
    equal = Law(E=1.0, A=2.0, B=2.0, alpha=0.3, beta=0.3).optimum(600.0)
    assert (equal.params, equal.tokens) == (pytest.approx(10.0), pytest.approx(10.0))
    assert equal.tokens_per_param == pytest.approx(1.0)
    unequal = Law(E=1.0, A=4.0, B=1.0, alpha=0.5, beta=0.5).optimum(600.0)
    assert (unequal.params, unequal.tokens) == (pytest.approx(40.0), pytest.approx(2.5))
    assert unequal.loss == pytest.approx(1 + 4 / 40**0.5 + 1 / 2.5**0.5)


@pytest.mark.parametrize("law", PUBLISHED.values(), ids=PUBLISHED)
@pytest.mark.parametrize("flops", [1e15, 1e21, 1e26])
def test_optimum_is_the_numerical_minimum(law, flops):
    found = minimize_scalar(
        lambda x: float(law.loss(np.exp(x), flops / 6 / np.exp(x))), bounds=(0, np.log(flops)), options={"xatol": 1e-9}
    )
    optimum = law.optimum(flops)
    assert optimum.params == pytest.approx(np.exp(found.x), rel=1e-3)
    assert optimum.loss == pytest.approx(found.fun, rel=1e-12)
    assert 6 * optimum.params * optimum.tokens == pytest.approx(flops)


@pytest.mark.parametrize("field", ["A", "B", "alpha", "beta"])
def test_a_loss_that_does_not_depend_on_size_or_tokens_has_no_optimum(field):
    fields = {"E": 1.0, "A": 2.0, "B": 2.0, "alpha": 0.3, "beta": 0.3} | {field: 0.0}
    assert Law(**fields).optimum(1e12) is None


def test_published_coefficients_at_the_budget_of_chinchilla():
    """Chinchilla has 70B parameters and 1.4T tokens; its paper's approach 3 projects 40B parameters (figure 4)."""
    found = advice(GOPHER_FLOPS)
    assert found["Hoffmann et al. (2022), not rounded"]["params"] == pytest.approx(40e9, rel=0.02)
    # The rounded exponents move the optimum to a smaller model.
    assert found["Hoffmann et al. (2022), as printed"]["params"] == pytest.approx(32.2e9, rel=0.01)
    again = found["Besiroglu et al. (2024)"]
    assert (again["params"], again["tokens"]) == (pytest.approx(70e9, rel=0.06), pytest.approx(1.4e12, rel=0.06))
    ratio = found["20 tokens per parameter"]
    assert (ratio["params"], ratio["tokens"]) == (pytest.approx(69.3e9, rel=1e-3), pytest.approx(1.386e12, rel=1e-3))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three folders of the study, with runs of two seeds whose losses are those of LAW up to 0.2%."""
    root, rng = tmp_path_factory.mktemp("studies"), np.random.default_rng(0)
    study = load_study(STUDY)
    for variant, fields in study.variants.items():
        for steps in STEPS:
            folder = root / f"scaling_{steps:04d}"
            config = config_of(fields.overrides, steps)
            params = make_experiment(config).num_params
            for seed in range(2):
                loss = float(LAW.loss(params, 2048 * steps)) * math.exp(0.002 * rng.standard_normal())
                run = folder / "runs" / f"{variant}-seed{seed}"
                write_run(run, config | {"seed": seed, "corpus": CORPUS}, {steps // 2: 9.0, steps: loss}, 2048 * steps)
            rest = {"warnings": (), "readings": 0.5, "reported": (), "tokenizers": {}}
            contents = StudyFile(dataclasses.replace(study, seeds=2), {}, {}, code="aa", mixed_code=False, **rest)
            (folder / "study.json").write_text(json.dumps(dataclasses.asdict(contents)))
    return root


@pytest.fixture
def studies(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "studies")


def config_of(overrides, steps):
    config = clm.get_config()
    config.update_from_flattened_dict(overrides)
    config.train.steps = steps
    return config.to_dict()


def write_run(folder, config, losses, tokens):
    folder.mkdir(parents=True, exist_ok=True)
    Workdir(folder).write_config(config)
    lines = [{"step": step, "split": "eval", "loss": loss, "raw_tokens": tokens} for step, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(monkeypatch, capsys, *arguments):
    """Runs the command with few resamples, and returns its JSON line and what it prints to standard error."""
    monkeypatch.setattr(command, "fit", functools.partial(fit, num_resamples=40))
    monkeypatch.setattr(sys, "argv", ["train.scaling", *map(str, arguments)])
    command.main()
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_parameters_by_hand():
    """A Llama block of 64 with 4 heads of 16 and 128 hidden: 4 x 64^2 + 3 x 64 x 128, and two norms of 64."""
    overrides = load_study(STUDY).variants["layers_2_width_64"].overrides
    blocks = 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 64
    assert make_experiment(config_of(overrides, steps=100)).num_params == blocks + 2 * 384 * 64


def test_a_point_is_the_last_evaluation(studies):
    points, left_out = read_points(load_study(STUDY), folders_of([f"{studies}/scaling_*"]))
    assert left_out == [] and len(points) == 30
    assert len({point.configuration for point in points}) == 15
    assert len({point.params for point in points}) == 5
    assert {point.tokens for point in points} == {2048.0 * steps for steps in STEPS}
    assert max(point.loss for point in points) < 9.0


def test_the_command_recovers_the_law(studies, monkeypatch, capsys):
    out = f"--out={studies}/scaling_0250,{studies}/scaling_0500,{studies}/scaling_1000"
    line, printed = run(monkeypatch, capsys, f"--study={STUDY}", out, "--advise", "--flops=1e13")
    assert (line["runs"], line["configurations"]) == (30, 15)
    for name in NAMES:
        assert line[name]["low"] <= getattr(LAW, name) <= line[name]["high"], name
    assert line["optimum"]["tokens_per_param"]["low"] <= LAW.optimum(1e13).tokens_per_param
    assert "Besiroglu et al. (2024)" in line["published"] and "Besiroglu" in printed and "alpha" in printed
    assert any("extrapolation: the published coefficients" in text for text in line["warnings"])


def test_advice_needs_no_study(monkeypatch, capsys):
    line, printed = run(monkeypatch, capsys, "--advise", "--flops=1e21")
    assert list(line) == ["published", "warnings"] and line["warnings"] == [] and "2.78B" in printed


def test_warnings_of_the_studies_and_text_that_is_read_again_are_said(studies, monkeypatch, capsys):
    for steps, readings in zip(STEPS, (2.2, 4.0, 8.8), strict=True):
        file = studies / f"scaling_{steps:04d}" / "study.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"readings": readings, "warnings": ["a warning"]}))
    line, _ = run(monkeypatch, capsys, f"--study={STUDY}", f"--out={studies}/scaling_*")
    found = [text for text in line["warnings"] if text.startswith(f"{studies}/")]
    assert [text.endswith(": a warning") for text in found] == [True, True, True, False]
    assert found[-1].startswith(
        f"{studies}/scaling_1000: runs read their text up to 8.8 times, and the law is of text "
    )


def test_runs_without_a_point_are_named(studies, monkeypatch, capsys):
    runs = studies / "scaling_0500" / "runs"
    config = json.loads((runs / "layers_2_width_32-seed0" / "config.json").read_text())
    write_run(runs / "layers_2_width_32-seed0", config, {250: 3.0}, 1)
    write_run(runs / "layers_2_width_32-seed1", config, {500: None}, 1)
    shutil.rmtree(runs / "layers_6_width_192-seed0")
    line, printed = run(monkeypatch, capsys, f"--study={STUDY}", f"--out={studies}/scaling_*")
    assert line["runs"] == 27
    expected = [
        f"{runs}/layers_2_width_32-seed0: unfinished: the last evaluation is at step 250 of 500",
        f"{runs}/layers_2_width_32-seed1: the last evaluation has no finite loss",
        f"{runs}/layers_6_width_192-seed0: ",
    ]
    for warning, begin in zip(line["warnings"], expected, strict=False):
        assert warning.startswith(f"not in the fit: {begin}") and f"warning: {warning}" in printed


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("corpus", "heldout", "bb", r"differ in corpus.heldout \(aa and bb\), so they are not points of one law: fit"),
        ("corpus", "fingerprint", "dd", r"differ in corpus.fingerprint \(cc and dd\)"),
        ("optimizer", "name", "adamw", r"differ in optimizer.name \(rms_scaled_adamw and adamw\)"),
        ("train", "batch_size", 99, "differ in train.batch_size"),
        ("data", "inputs_length", 128, r"differ in data.inputs_length \(256 and 128\)"),
    ],
)
def test_runs_that_are_not_of_one_law_are_refused(studies, section, field, value, message):
    folder = studies / "scaling_1000" / "runs" / "layers_6_width_192-seed1"
    config = json.loads((folder / "config.json").read_text())
    config[section][field] = value
    Workdir(folder).write_config(config)
    with pytest.raises(ConfigError, match=message) as error:
        read_points(load_study(STUDY), folders_of([f"{studies}/*"]))
    assert "\n" not in str(error.value)


def test_precisions_are_not_mixed_and_cadence_and_machine_may_differ(studies):
    folder = studies / "scaling_1000" / "runs" / "layers_6_width_192-seed1"
    config = json.loads((folder / "config.json").read_text())
    config["train"] |= {"eval_every": 7, "grad_accum_steps": 2}
    config["data"] |= {"cache_dir": "elsewhere", "path": "a copy"}
    config["mesh"]["fsdp"] = 4
    Workdir(folder).write_config(config)
    assert len(read_points(load_study(STUDY), folders_of([f"{studies}/*"]))[0]) == 30
    Workdir(folder).write_config(config | {"precision": "bfloat16"})
    with pytest.raises(ConfigError, match=r"differ in precision \(float32 and bfloat16\)"):
        read_points(load_study(STUDY), folders_of([f"{studies}/*"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--study is missing: write --study=configs/studies/scaling.py --out=DIR, or --advise --flops=1e21"),
        ([f"--study={STUDY}"], "--out= must name folders: those of --out of python -m train.ablate"),
        ([f"--study={STUDY}", "--out=nowhere"], "--out=nowhere must name folders"),
        ([f"--study={STUDY}", "--out=tests"], "tests is not the folder of a study"),
        (["--advise"], "--advise needs --flops: for example --flops=1e21"),
        (["--advise", "--flops=-1"], "flops.*-1"),
        (["--advise", "--flops=nan"], "--flops=nan must be finite"),
        (["--advise", "--flops=1e300"], r"--flops=1e\+300 has no optimum in the range of floats: set a budget such as"),
        (["--advise", "--flops=inf"], "--flops=inf must be finite"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run(monkeypatch, capsys, *arguments)
    assert "\n" not in str(error.value)
