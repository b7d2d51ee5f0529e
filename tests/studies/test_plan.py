"""The plan of a study: equal budgets, and errors before the first run starts."""

import pathlib
import re
import shlex
from unittest import mock

import pytest

from command.flags import resolve
from configs.studies.base import fine_tuning, flops, heldout_loss, probe, raw_tokens, stage, study, variant
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from run.corpus import open_corpora
from studies import dry_run, planning
from studies.dry_run import print_plan
from studies.plan import Job, PlannedRun, find_confounders, jobs_of, unread_fields, with_fields
from studies.planning import make_plan
from studies.results import StudyFolder
from studies.study import load_study, make_study
from tests.studies.studies import SMALL, on, small_study
from tests.train.small_runs import save_random_run
from workdir.workdir import Workdir

DECODER = SMALL | {"model.architecture": "decoder_only"}
DOCUMENTATION = pathlib.Path(__file__).parents[2] / "docs" / "studies.md"


def test_every_variant_trains_the_budget(corpus):
    # Windows of 32 and of 16 tokens, in batches of 4 and of 6 rows: 512 tokens are 4 and 5.33 steps.
    variants = {"long": variant(), "short": variant({"data.inputs_length": 16, "train.batch_size": 2})}
    plan = make_plan(small_study(corpus, variants=variants, baseline="long"), {})
    assert {name: one.steps for name, one in plan.variants.items()} == {"long": 4, "short": 16}
    assert {one.raw_tokens for one in plan.variants.values()} == {512}
    for one in plan.variants.values():
        experiment = make_experiment(one.main.fields)
        assert one.flops == one.steps * experiment.train_step_flops
        assert one.num_params == experiment.num_params
        counted = experiment.batches(open_corpora(experiment).train_documents).count_windows(0, one.steps)
        assert counted.raw_tokens.sum() == one.raw_tokens


def test_a_budget_of_flops_is_met_by_each_variant(corpus):
    plan = make_plan(small_study(corpus, budget=flops(1e9)), {})
    for one in plan.variants.values():
        assert one.flops == pytest.approx(1e9, rel=0.02)


def test_a_budget_of_flops_has_the_forward_passes_of_a_teacher(corpus, tmp_path):
    save_random_run(make_plan(small_study(corpus), {}).variants["slow"].main.fields, str(tmp_path / "teacher"))
    teacher = {"distillation.teacher": str(tmp_path / "teacher")}
    variants = {"slow": variant(), "taught": variant(teacher)}
    plain, taught = make_plan(small_study(corpus, variants=variants, budget=flops(1e9)), {}).variants.values()
    assert taught.flops == pytest.approx(plain.flops, rel=0.02)
    assert taught.steps == pytest.approx(plain.steps * 3 / 4, rel=0.02)  # the teacher is as large as the model
    with pytest.raises(ConfigError, match=r"distillation.teacher=nowhere is not the folder of a run"):
        make_plan(small_study(corpus), {"distillation.teacher": "nowhere"})


def test_a_start_has_its_share_of_the_budget(corpus):
    variants = {
        "clm": variant(),
        "both": variant({}, config="configs/prefix_lm.py", start=stage("configs/clm.py", 0.5)),
    }
    # A row of 32 positions has 30 tokens of prefix LM: 15 steps of CLM and 16 of prefix LM are 1920 tokens each.
    plan = make_plan(small_study(corpus, variants=variants, baseline="clm", budget=raw_tokens(3840)), {})
    both = plan.variants["both"]
    assert (both.start.steps, both.main.steps, both.raw_tokens) == (15, 16, 3840)
    assert both.start.fields["objective"]["name"] == "clm" and both.main.fields["objective"]["name"] == "prefix_lm"


def objectives_study(corpus, **changes):
    """Two objectives in the shortest way: their own configs."""
    variants = {name: variant(config=f"configs/{name}.py") for name in ("clm", "span_corruption")}
    overrides = on(corpus) | {"train.eval_windows": 8, "optimizer.warmup_steps": 1, "data.documents": "join"}
    measures = {"continuation": probe("continuation", "bits_per_byte")}
    fields = dict(variants=variants, baseline="clm", overrides=overrides, measures=measures, budget=raw_tokens(50_000))
    return small_study(corpus, **fields | changes)


def test_configs_with_models_of_their_own_and_two_files_are_confounded(corpus, tmp_path, monkeypatch, capsys):
    """One file is held out: the study measures what the other one says of it."""
    monkeypatch.setattr("studies.dry_run._seconds", lambda *_: 1.0)  # without a step of either model
    for text in sorted((corpus / "text").iterdir(), key=lambda path: path.stat().st_size)[-2:]:
        (tmp_path / text.name).write_bytes(text.read_bytes())
    plan = make_plan(objectives_study(corpus), {"data.path": str(tmp_path), "data.document_per": "paragraph"})
    assert {"model.architecture", "model.mlp", "model.initializer"} <= plan.confounders.keys()
    assert plan.confounders["model.architecture"] == ["decoder_only", "encoder_decoder"]
    assert not {"train.steps", "objective.name", "train.log_every"} & plan.confounders.keys()
    print_plan(plan, [])
    out = capsys.readouterr().out
    assert re.search(
        r"^\d+ documents \(.*k tokens\) held out, \d+ \(.*k tokens\) to train on\nWARNING: .* 1 of 2 files ",
        out,
        re.M,
    )
    assert "CONFOUNDED" in out and "model.architecture: clm decoder_only, span_corruption encoder_decoder" in out


RATE = "optimizer.learning_rate"


@pytest.mark.parametrize(
    ("variants", "varies", "confounders"),
    [
        # rate of the configs: a .01, b .02
        ({"a": variant(), "b": variant(config="b")}, (), {RATE: [0.01, 0.02]}),
        ({"a": variant(), "b": variant(config="b")}, (RATE,), {}),
        ({"a": variant(), "b": variant({RATE: 0.02})}, (), {}),
        # The override of one variant does not excuse the others.
        ({"a": variant(), "b": variant(config="b"), "c": variant({RATE: 0.3})}, (), {RATE: [0.01, 0.02, 0.3]}),
        ({"a": variant({RATE: 0.1}), "b": variant(config="b"), "c": variant({RATE: 0.3})}, (), {}),
        ({"a": variant(), "b": variant({RATE: 0.01}, config="b")}, (), {}),
        # A start is a stage with fields of its own.
        ({"a": variant(), "b": variant(start=stage("b", 0.5))}, (), {RATE: [0.01, "0.02, then 0.01"]}),
        ({"a": variant(), "b": variant(start=stage("b", 0.5))}, (RATE,), {}),
        ({"a": variant(), "b": variant(start=stage("b", 0.5, {RATE: 0.5}))}, (), {}),
        ({"a": variant(), "b": variant(start=stage("a", 0.5))}, (), {}),
        (
            {"a": variant(start=stage("b", 0.5)), "b": variant(config="b", start=stage("b", 0.5))},
            (),
            {RATE: ["0.02, then 0.01", 0.02]},
        ),
        # Sweeps are equal, or a confounder.
        ({"a": variant(sweep={RATE: [1, 2]}), "b": variant(sweep={RATE: [2.0, 1.0]})}, (), {}),
        ({"a": variant(sweep={RATE: [1, 2]}), "b": variant(sweep={RATE: [2, 3]})}, (RATE,), {}),
        (
            {"a": variant(sweep={RATE: [1, 2]}), "b": variant(sweep={RATE: [2, 3]})},
            (),
            {f"sweep of {RATE}": [[1, 2], [2, 3]]},
        ),
        ({"a": variant(sweep={RATE: [1, 2]}), "b": variant(config="b")}, (), {f"sweep of {RATE}": [[1, 2], "none"]}),
    ],
)
def test_what_is_a_confounder(variants, varies, confounders):
    """The question is a field in the stages that name it; all other stages must have one value of it."""
    fields = dict(question="?", config="a", baseline="a", budget=raw_tokens(1), measures={"loss": heldout_loss()})
    made = make_study(study(variants=variants, varies=varies, **fields), "x.py")
    rates = {"a": 0.01, "b": 0.02}

    def config(name, overrides):
        return {
            "model": {"architecture": "decoder_only"},
            "optimizer": {"learning_rate": overrides.get(RATE, rates[name])},
        }

    stages = {
        name: [config(run.config or "a", run.overrides) for run in (each.start, each) if run is not None]
        for name, each in made.variants.items()
    }
    assert find_confounders(made, stages) == confounders


def test_a_decoder_as_deep_as_the_encoder_is_no_difference():
    def unread(*depths):
        fields = {"model.architecture": "encoder_decoder"}
        return "model.num_decoder_layers" in unread_fields(
            fields | dict(zip(("model.num_layers", "model.num_decoder_layers"), depths, strict=True))
        )

    assert [unread(4, 0), unread(4, 4), unread(4, 2)] == [True, True, False]


def test_the_text_of_a_sweep_is_checked_before_anything_runs(corpus):
    variants = {"slow": variant(), "momentum": variant({"optimizer.b2": 0.9})}
    swept = dict(variants=variants, sweep={RATE: [1e-3, 2e-3, 3e-3]})
    plan = make_plan(small_study(corpus, **swept), {})
    slow = plan.variants["slow"]
    assert slow.validation_digest not in ("", slow.heldout_digest)
    assert slow.main.fields["data"]["heldout"] == "test" and plan.confounders == {}
    # With held-out text of its own, the validation text is a fraction of the training text.
    fields = {"data.heldout_path": str(corpus / "text" / "abc.txt"), "data.path": str(corpus / "text" / "a[l-z]*.txt")}
    overrides = SMALL | on(corpus) | fields
    assert make_plan(small_study(corpus, **swept, overrides=overrides), {}).variants["slow"].validation_digest
    none = overrides | {"data.heldout_fraction": 0.0}
    with pytest.raises(ConfigError, match=r"variant slow: its sweep needs validation text .*heldout_fraction=0\.0"):
        make_plan(small_study(corpus, **swept, overrides=none), {})
    pairs = {"pairs": probe("minimal_pairs", "accuracy", better="higher", path="pairs.txt")}
    with pytest.raises(ConfigError, match="is swept, and the first measure, pairs, reads a text of its own"):
        make_plan(small_study(corpus, **swept, measures=pairs), {})


def test_one_model_for_all_variants_is_not_confounded(corpus):
    study = objectives_study(corpus, same_model="configs/clm.py")
    plan = make_plan(study, {})
    clm, spans = (one.main.fields for one in plan.variants.values())
    assert plan.confounders == {} and clm["model"] == spans["model"] and clm["optimizer"] == spans["optimizer"]
    assert clm["objective"]["name"] == "clm" and spans["objective"]["name"] == "span_corruption"
    # An override of a variant is a part of the question, and so is a field of `varies`.
    overridden = {
        "clm": variant({"model.num_layers": 1}),
        "span_corruption": variant(config="configs/span_corruption.py"),
    }
    plan = make_plan(objectives_study(corpus, same_model="configs/clm.py", variants=overridden), {})
    assert plan.confounders == {} and plan.questions == {"model.num_layers": [1, 4]}
    varies = [*make_plan(objectives_study(corpus), {}).confounders]
    assert make_plan(objectives_study(corpus, varies=varies), {}).confounders == {}
    with pytest.raises(ConfigError, match=r"varies='model.nope' is no field of the runs"):
        make_plan(objectives_study(corpus, varies=["model.nope"]), {})


def test_the_better_values_are_those_of_the_metrics_name():
    higher = [
        fine_tuning(),
        fine_tuning("macro_f1"),
        probe("exact_match", "groups.reversed.exact_match"),
        probe("linear", "labels.500.accuracy"),
        heldout_loss(metric="accuracy/clm"),
        heldout_loss(metric="discriminator_recall"),
    ]
    lower = [
        fine_tuning("loss"),
        heldout_loss(),
        heldout_loss(metric="loss/x"),
        probe("infilling", "spans.3.bits_per_byte"),
    ]
    assert [one["better"] for one in higher] == ["higher"] * len(higher)
    assert [one["better"] for one in lower] == ["lower"] * len(lower)
    assert heldout_loss(metric="auc", better="higher")["better"] == "higher"


def test_a_study_and_its_runs_are_in_one_folder_below_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = StudyFolder("~/study")
    assert (str(folder.path), str(folder.workdir("a"))) == (f"{tmp_path}/study", f"{tmp_path}/study/runs/a")


def test_text_that_is_read_often_and_a_long_warm_up_are_said(corpus, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"line {k} of a short text" for k in range(60)))
    text = {"data.path": str(tmp_path), "data.document_per": "line"}
    plan = make_plan(small_study(corpus, budget=raw_tokens(12_800)), text | {"optimizer.warmup_steps": 90})
    tokens = sum(len(f"line {k} of a short text") + 1 for k in range(60))
    read = float(re.search(r"to train on, which are read ([\d.]+) times", plan.text_facts)[1])
    assert 12_800 / tokens < read < 2 * 12_800 / tokens
    StudyFolder(tmp_path / "out").begin(plan, {})
    assert StudyFolder(tmp_path / "out").study_file().readings == pytest.approx(read, abs=0.05)
    assert plan.warnings == [
        f"variant {name}: 90 of 102 updates are warm-up: set a smaller optimizer.warmup_steps"
        for name in ("slow", "fast")
    ]


def imported_run(corpus, tmp_path, **changes):
    """The folder of a model of SMALL, but for `changes` of its model, whose training text is unknown."""
    changed = small_study(corpus, overrides=SMALL | on(corpus) | {f"model.{k}": v for k, v in changes.items()})
    save_random_run(make_plan(changed, {}).variants["slow"].main.fields, str(tmp_path / "imported"))
    Workdir(tmp_path / "imported").write_imported({})
    return str(tmp_path / "imported")


def test_a_start_whose_training_text_is_not_known_is_said(corpus, tmp_path):
    folder, config = imported_run(corpus, tmp_path), tmp_path / "started.py"
    config.write_text(
        "from configs import clm\n\ndef get_config():\n    config = clm.get_config()\n"
        f"    config.train.init_from = '{folder}'\n    return config\n"
    )
    note = f"held-out text was not compared with the training text of {folder}, which is unknown"
    assert make_plan(small_study(corpus, config=str(config)), {}).warnings[-1] == note
    variants = {
        "clm": variant(),
        "both": variant({"optimizer.learning_rate": 0.01}, start=stage(str(config), 0.5)),
    }
    plan = make_plan(small_study(corpus, variants=variants, baseline="clm", budget=raw_tokens(3840)), {})
    assert note not in plan.variants["clm"].warnings and plan.warnings[-1] == note


def test_runs_that_start_from_a_model_have_its_shape_and_its_vocabulary(corpus, tmp_path):
    folder = imported_run(corpus, tmp_path, d_model=32, d_ff=48)
    own = {name: value for name, value in SMALL.items() if not name.startswith("model.")}
    start = own | on(corpus) | {"train.init_from": folder}
    two_stages = variant({"data.inputs_length": 16}, start=stage("configs/clm.py", 0.5))
    changes = {"variants": {"one": variant(), "two": two_stages}, "baseline": "one", "budget": raw_tokens(3840)}
    plan = make_plan(small_study(corpus, same_model="configs/mlm.py", overrides=start, **changes), {})
    for run in (plan.variants["one"].main, plan.variants["two"].start, plan.variants["two"].main):
        assert (run.fields["model"]["d_model"], run.fields["model"]["d_ff"]) == (32, 48)
        assert run.fields["train"]["init_from"] == folder and run.fields["data"]["inputs_length"] in (16, 32)
    with pytest.raises(ConfigError, match=r"^variant slow: train.init_from=.*: model.d_model=24 must be a multiple"):
        make_plan(small_study(corpus, overrides=start), {"model.d_model": 24})


def test_a_start_that_read_heldout_text_is_refused_with_the_name_of_the_variant(corpus, monkeypatch):
    monkeypatch.setattr("studies.planning.check_start", mock.Mock(side_effect=ConfigError("3 documents")))
    with pytest.raises(ConfigError, match=r"^variant \w+: 3 documents$"):
        make_plan(small_study(corpus), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": raw_tokens(640 + 64)}, "variant slow: the nearest number of steps, 5, is 640 raw_tokens"),
        ({"budget": raw_tokens(100)}, "100 raw_tokens are 1 steps, which optimizer.warmup_steps=1 does not fit"),
        ({"variants": {"slow": variant(), "b": variant({"optimizer.learning_rate": 2e-2})}}, "slow and b are equal"),
        ({"variants": {"slow": variant(), "b": variant({"model.nope": 1})}}, "variant b: unknown config field in"),
        ({"variants": {"slow": variant(), "b": variant({"data.split_seed": 1})}}, "hold out different text"),
        ({"measures": {"hidden": probe("infilling", "spans.8.exact_match")}}, "measure hidden does not fit: --probe"),
        (
            {"measures": {"x": heldout_loss(overrides={"objective.mask_rate": 0.15})}},
            "measures.x: overrides need config=..., of which they change fields: add it",
        ),
        (
            {"measures": {"x": probe("continuation", "bits_per_byte", overrides={"data.inputs_length": 8})}},
            "need config=",
        ),
        ({"measures": {"x": probe("nope", "loss")}}, "probe='nope' must be continuation"),
        ({"measures": {"masked": heldout_loss(config="configs/unilm.py")}}, "measure masked does not fit: --config"),
        (
            {"measures": {"x": heldout_loss(metric="a_loss")}},
            "metric='a_loss' is not in its evaluations: use one of loss",
        ),
        ({"measures": {"x": probe("continuation", "bites_per_byte")}}, "'bites_per_byte' is not a number of --probe"),
        ({"variants": {"slow": variant(), "b": variant({"train.log_every": 3})}}, "slow and b are equal"),
        (
            {
                "variants": {
                    "slow": variant(),
                    "b": variant({"data.targets_length": 64, "model.relative_max_distance": 9}),
                }
            },
            "slow and b are equal but for data.targets_length, model.relative_max_distance, which neither reads",
        ),
        *(
            (
                {"variants": {"slow": variant(), "b": variant({field: value})}},
                f"slow and b are equal but for {field}, which neither reads",
            )
            for field, value in {
                "model.rope_original_length": 8,
                "model.local_distance": 8,
                "model.first_layer_global": False,
                "distillation.top_k": 8,
                "model.attention_dropout": False,
            }.items()
        ),
        (
            {"variants": {"slow": variant(), "b": variant({"model.relative_num_buckets": 8})}},
            "slow and b are equal but for model.relative_num_buckets, which neither reads: remove one",
        ),
        ({"same_model": "configs/nope.py"}, "same_model='configs/nope.py': --config=configs/nope.py is not a file"),
        ({"measures": {"x": {"kind": "nope", "better": "lower"}}}, "measures.x.kind='nope' must be heldout"),
        (
            {"measures": {"x": heldout_loss(metric="auc")}},
            "measures.x must say which values of metric='auc' are better",
        ),
        (
            {"measures": {"x": heldout_loss(metric="accuracy", better="lower")}},
            "measures.x: higher values of metric='accuracy' are better: remove better='lower'",
        ),
        (
            {"measures": {"x": heldout_loss(better="higher")}},
            "measures.x: lower values of metric='loss' are better: remove better='higher'",
        ),
        ({"measures": {"x": heldout_loss(better="larger")}}, "measures.x.better='larger' must be one of"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(changes, message, corpus):
    with pytest.raises(ConfigError) as error:
        make_plan(small_study(corpus, **changes), {})
    assert message in str(error.value) and "\n" not in str(error.value)


def test_overrides_of_the_command_line_are_for_all_runs(corpus):
    plan = make_plan(small_study(corpus), {"optimizer.b2": "0.9"})
    assert {one.main.fields["optimizer"]["b2"] for one in plan.variants.values()} == {0.9}
    variants = {"slow": variant(sweep={"optimizer.learning_rate": [1e-3, 2e-3]}), "fast": variant()}
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate is swept, so --config\.optimizer\.learning_rate"):
        make_plan(small_study(corpus, variants=variants), {"optimizer.learning_rate": "1e-4"})


def test_workers_share_the_jobs_and_each_job_has_one_worker(corpus):
    plan = make_plan(small_study(corpus, seeds=3), {})
    names = [job.name for job in jobs_of(plan)]
    assert names[:3] == ["slow-seed0", "fast-seed0", "slow-seed1"]  # all variants first
    shares = [jobs_of(plan, worker, 4) for worker in range(4)]
    assert sorted(job.name for share in shares for job in share) == sorted(names)
    with pytest.raises(ConfigError, match="--worker=6/7 has nothing to do: use at most 6 workers"):
        jobs_of(plan, 6, 7)


def test_a_worker_has_the_whole_sweep_of_a_variant(corpus):
    sweep = {"optimizer.learning_rate": [1e-3, 2e-3]}
    variants = {"slow": variant(sweep=sweep), "fast": variant({"optimizer.b2": 0.9}, sweep=sweep)}
    jobs = jobs_of(make_plan(small_study(corpus, variants=variants), {}), 1, 2)
    swept = ["fast-learning_rate=0.001", "fast-learning_rate=0.002"]
    assert [job.name for job in jobs] == [*swept, "fast-seed0", "fast-seed1"]
    assert jobs[0] == Job("fast", 0, "optimizer.learning_rate", 1e-3)


def test_every_seed_must_meet_the_budget(corpus):
    # Documents end windows, so the raw tokens of a step vary, and with them those of a run, from seed to seed.
    overrides = {**SMALL, **on(corpus), "data.documents": "split", "data.inputs_length": 512, "train.batch_size": 2}
    with pytest.raises(
        ConfigError, match=r"variant slow: the nearest number of steps, \d+, is [\d,]+ raw_tokens with seed"
    ):
        make_plan(small_study(corpus, overrides=overrides, seeds=12, budget=raw_tokens(5000)), {})


@pytest.mark.parametrize(("seed", "where"), [(2000, "slow"), (2000, "both, start"), (1001, "both"), (3000, "both")])
def test_the_seeds_of_sweeps_and_of_runs_after_a_start_must_meet_the_budget_too(seed, where, corpus, monkeypatch):
    monkeypatch.setattr(planning, "_tokens", lambda of, _, count: 128 * count * (2 if of._seed == seed else 1))
    variants = {"slow": variant(), "both": variant({"optimizer.b2": 0.9}, start=stage("configs/clm.py", 0.5))}
    rates = {RATE: [1e-3, 2e-3, 3e-3]}
    swept = {name: fields | {"sweep": rates} for name, fields in variants.items() if name in where}
    study = small_study(corpus, variants=variants | swept, budget=raw_tokens(1024))
    with pytest.raises(ConfigError, match=f"^variant {where}: the nearest .* with seed {seed},"):
        make_plan(study, {})


def test_the_study_that_the_documentation_prints_is_fair(corpus, tmp_path):
    [(name, code)] = re.findall(r"`(\w+\.py)`\n\n```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (tmp_path / name).write_text(code)
    fields = {"data.source": "text", "data.path": str(corpus / "text"), "data.cache_dir": str(corpus / "cache")}
    plan = make_plan(load_study(str(tmp_path / name)), fields)
    assert not plan.confounders and [*plan.variants] == ["clm", "span_corruption"]
    assert plan.variants["clm"].num_params == plan.variants["span_corruption"].num_params


def test_a_dry_run_prints_the_plan(corpus, capsys):
    plan = make_plan(small_study(corpus), {})
    print_plan(plan, jobs_of(plan, 1, 2))
    printed = capsys.readouterr().out
    assert "2 variants x 2 seeds, 512 raw_tokens each" in printed and "of training steps on cpu" in printed
    rows = [line.split() for line in printed.splitlines() if line.strip().startswith(("slow", "fast"))]
    assert [row[:2] for row in rows] == [["slow", "0"], ["fast", "2"]]


def test_variants_share_a_measured_time_only_where_their_programs_are_equal(corpus, capsys):
    """Before, all optimizers had the time of the first one."""
    optimizers = {name: variant({"optimizer.name": name}) for name in ("adamw", "muon")}
    variants = {"slow": variant(optimizers["adamw"]["overrides"]), "fast": optimizers["muon"]}
    variants["faster"] = variant(optimizers["muon"]["overrides"] | {RATE: 0.01})
    with mock.patch("studies.dry_run.make_run", wraps=dry_run.make_run) as made:
        print_plan(make_plan(small_study(corpus, variants=variants), {}), [])
    assert made.call_count == 2


def test_a_command_has_the_overrides_that_make_the_fields():
    overrides = DECODER | {"objective.denoisers.s.mode": "", "optimizer.no_decay": ("norm", "a b")}
    fields = with_fields(resolve("configs/ul2.py", overrides, ""), {"train.steps": 7})
    arguments = shlex.split(PlannedRun("configs/ul2.py", fields, 0, 0).command(fields, "runs/a"))
    assert arguments[:4] == ["python", "-m", "train.main", "--config=configs/ul2.py"]
    assert arguments[-1] == "--workdir=runs/a"
    given = dict(argument.removeprefix("--config.").split("=", 1) for argument in arguments[4:-1])
    assert resolve("configs/ul2.py", given, "") == fields


def test_a_huge_budget_is_counted_at_the_rate_of_the_first_batches(corpus, monkeypatch):
    monkeypatch.setattr("studies.planning._MOST_COUNTED_BATCHES", 40)
    study = small_study(corpus, budget=raw_tokens(128e7))
    run = next(iter(make_plan(study, {}).variants.values())).main
    assert run.steps == pytest.approx(1e7, rel=0.1)
    assert run.raw_tokens == pytest.approx(128e7, rel=1e-6)
