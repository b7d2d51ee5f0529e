"""What a study leaves in its folder, and its reader.

DIR/study.json                   a StudyFile: the study and the config of every run, as resolved
DIR/code/DIGEST.zip              the source code (source_files) with which the study began or was continued
DIR/code/VARIANT-seed0.txt       the digests of the code that trained a run
DIR/runs/VARIANT-seed0/          a run's workdir; VARIANT-seed0-start: of its start; VARIANT-seed0-MEASURE: of a
                                     fine-tuning, and of one without pre-training, VARIANT being no_pretraining
DIR/outcomes/VARIANT-seed0.json  an Outcome: what was measured, or why the last try failed
DIR/logs/VARIANT-seed0.log       what the run printed
DIR/report.md, figures/          the report
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from configs.base import get_config
from contract.errors import ConfigError
from experiment.config import from_mapping
from files.atomic import read_json, write_bytes, write_json, write_text
from files.paths import check_local
from studies.plan import Job, Plan, jobs_of
from studies.study import Study
from workdir.run_config import flatten
from workdir.workdir import Workdir

T = TypeVar("T")
_OTHER_OUT = "choose another --out"
_ROOT = Path(__file__).parent.parent
# What trains and measures a run. Configs are not among them: study.json has those of every run, as resolved.
_PACKAGES = ("cluster", "command", "contract", "data", "evaluation", "experiment", "files", "generate", "huggingface")
_PACKAGES += ("learners", "models", "objectives", "run", "studies", "train", "workdir")


def source_files() -> dict[str, bytes]:
    """Returns the files that train and measure runs and write the report: path within the project -> contents."""
    paths = (path for package in _PACKAGES for path in (_ROOT / package).rglob("*") if path.suffix in (".py", ".jinja"))
    names = {path.relative_to(_ROOT).as_posix(): path for path in sorted(paths)}
    # Not an editor's lock .#step.py, ._step.py of macOS, nor the copies in .ipynb_checkpoints of Jupyter.
    return {name: path.read_bytes() for name, path in names.items() if "/." not in name}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Returns a hash of `source_files`, names included."""
    digest = hashlib.blake2b(digest_size=8)
    for name, contents in files.items():
        digest.update(f"{name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Returns a zip file of `source_files`. Equal files give equal archives."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, contents in files.items():
            out.writestr(zipfile.ZipInfo(name), contents, zipfile.ZIP_DEFLATED)  # without the time of the file
    return archive.getvalue()


@dataclasses.dataclass(frozen=True)
class Curve:
    """The held-out loss of a run over its training, one entry for each evaluation."""

    raw_tokens: Sequence[float] = ()
    flops: Sequence[float] = ()
    loss: Sequence[float] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of a variant. Fields below `reason` are of complete runs.

    Attributes:
      field, value: of a run of a sweep; "" otherwise.
      state: "failed" and "diverged" (its gradients were not finite) are of the last try; "damaged" is an outcome that
        cannot be read; "unfinished" and "missing" have no outcome.
      reason: why the run is not complete, one line.
      values: measure -> value. A measure without a finite value is absent. A sweep's run has the first measure alone,
        on validation text.
      curve: the run's own held-out loss.
      num_params: parameters of the trained model, those of the learner's heads included.
      steps, raw_tokens, flops: totals of the training; of a variant with a start, both stages.
      seconds: of training steps. Differs between machines and starts.
      margins: measure -> the standard error of its value over held-out documents, where it is known.
      floors: measure -> the name of a floor (evaluation/floors.py) -> its value, in the unit of the measure.
      swept: the field of a sweep -> the value that the sweep chose.
      commands: the commands that repeat the training, and then the measures that read the finished run.
      heldout_digest: of the held-out text, equal for runs that compare.
      environment: what the run was trained on: name -> text, such as "device": "cpu x 1", "jax": "0.10.2".
      code: digest of the source that trained the run; several, with "+" between them, if the code changed in between.
        measured_by: of the source that measured it.
      config_digest: Plan.config_digest.
    """

    variant: str
    seed: int
    field: str = ""
    value: Any = None
    state: Literal["complete", "failed", "diverged", "damaged", "unfinished", "missing"] = "complete"
    reason: str = ""
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    curve: Curve = Curve()
    num_params: int = 0
    steps: int = 0
    raw_tokens: float = 0
    flops: float = 0
    seconds: float = 0
    swept: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    commands: Sequence[str] = ()
    heldout_digest: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    margins: Mapping[str, float] = dataclasses.field(default_factory=dict)
    code: str = ""
    measured_by: str = ""
    config_digest: str = ""

    @property
    def job(self) -> Job:
        """The job that trained and measured the run."""
        return Job(self.variant, self.seed, self.field, self.value)

    @property
    def version(self) -> str:
        """The code that trained and measured the run."""
        return self.code if self.code == self.measured_by else f"{self.code}, measured by {self.measured_by}"


@dataclasses.dataclass(frozen=True)
class StudyFile:
    """The contents of study.json.

    Attributes:
      study: as it ran last.
      overrides: field -> value, of the command line.
      runs: variant -> its sweep, and the configs of its runs.
      code: digest of the source with which the study began.
      mixed_code: whether the study was continued with --mixed_code.
      warnings: those of the Plan.
      readings: how often the runs read their training text, at most.
      reported: the numbers of seeds of the study for which a report with verdicts has been written.
      tokenizers: variant -> VariantPlan.tokenizer.
    """

    study: Study
    overrides: dict[str, str]
    runs: dict[str, dict[str, dict[str, Any]]]
    code: str
    mixed_code: bool
    warnings: tuple[str, ...]
    readings: float
    reported: tuple[int, ...]
    tokenizers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Results:
    """The outcomes of a study.

    Attributes:
      study: as resolved: --seeds and --config overrides applied.
      command: the command that runs the study.
      outcomes: of complete runs, in the order of variants and seeds.
      problems: of every other run of the study.
      sweeps: of all values that sweeps try.
      confounders, questions, text_facts, warnings: those of the Plan.
      reported: that of the StudyFile, before this report.
      scratch: of complete fine-tunings without pre-training, whose `variant` is a name in Plan.scratch: values of the
        fine-tuned measures alone.
      scratch_of: variant -> that name, where the variant has a fine-tuned measure.
      configs: that of the Plan.
    """

    study: Study
    command: str
    outcomes: Sequence[Outcome]
    problems: Sequence[Outcome]
    sweeps: Sequence[Outcome]
    confounders: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    questions: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    text_facts: str = ""
    warnings: Sequence[str] = ()
    reported: Sequence[int] = ()
    scratch: Sequence[Outcome] = ()
    scratch_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def of(self, variant: str) -> list[Outcome]:
        """Returns the complete runs of a variant, by seed."""
        return [outcome for outcome in self.outcomes if outcome.variant == variant]

    @property
    def versions(self) -> dict[str, list[str]]:
        """The code that trained and measured -> its complete runs, those of sweeps too; {} where all have one code."""
        found: dict[str, list[str]] = {}
        digests = set()
        for outcome in (*self.sweeps, *self.outcomes, *self.scratch):
            if outcome.state == "complete":
                found.setdefault(outcome.version, []).append(outcome.job.name)
                digests |= {*outcome.code.split("+"), outcome.measured_by}
        return found if len(digests) > 1 else {}


class StudyFolder:
    """The folder of a study, on this machine."""

    def __init__(self, out: str | os.PathLike):
        check_local(os.fspath(out), f"--out={out}")
        self.path = Path(os.path.expanduser(out))

    def workdir(self, name: str) -> Workdir:
        """The workdir of a run."""
        return Workdir(self.path / "runs" / name)

    def log(self, job: Job) -> Path:
        """What a job printed."""
        return self.path / "logs" / f"{job.name}.log"

    def begin(self, plan: Plan, overrides: Mapping[str, Any], *, mixed_code: bool = False) -> None:
        """Creates the folder for a study, or checks that it is this study's. Several workers may do so at once.

        The number of seeds may change, and variants may be added.

        Args:
          overrides: those of the command line.
          mixed_code: whether to continue a study that began with other code.

        Raises ConfigError if the folder has another study, or other files alone, or cannot be written, and if the code
        has changed.
        """
        files = source_files()
        file, digest = self.path / "study.json", digest_of(files)
        fields = _study_fields(plan, overrides) | {"code": digest, "mixed_code": mixed_code, "reported": []}
        try:
            if not file.exists():
                others = self.path.iterdir() if self.path.is_dir() else ()
                if any(not other.name.startswith(("study.json", ".")) for other in others) and not file.exists():
                    raise ConfigError(f"--out={self.path} has other files and no study: choose another folder")
                self.path.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):  # another worker was faster
                    write_json(file, fields, replace=False)
            self.check(plan)
            there = self.study_file()
            if not mixed_code:
                self.check_code(digest, there.code)
            for folder in ("runs", "outcomes", "logs", "code"):
                (self.path / folder).mkdir(exist_ok=True)
            archive = self.path / "code" / f"{digest}.zip"
            if not archive.exists():
                write_bytes(archive, archive_of(files))
            # Perhaps with another number of seeds, or other notes.
            kept = {"code": there.code, "mixed_code": mixed_code or there.mixed_code, "reported": there.reported}
            write_json(file, fields | kept)
        except OSError as error:
            raise ConfigError(f"--out={self.path} cannot be written: {error.strerror}: {error.filename}") from error

    def continued(self, plan: Plan) -> Plan:
        """Returns the plan with Plan.later, if the study began with code that did not have all fields of today."""
        if not (self.path / "study.json").exists():
            return plan
        there = [flatten(run.get("main", {})) for run in self.study_file().runs.values()]
        runs = [run for one in plan.variants.values() for run in (*one.stages, *one.fine_tunings.values())]
        here = [flatten(run.fields) for run in runs]
        default = flatten(get_config().to_dict())
        later = {
            field
            for field in default.keys() - set().union(*there)
            if all(run.get(field, default[field]) == default[field] for run in here)
        }
        return dataclasses.replace(plan, later=frozenset(later))

    def check(self, plan: Plan) -> None:
        """Raises ConfigError unless the folder is that of the study, or of one without some of its variants."""
        self.study_file()
        there, here = read_json(self.path / "study.json", remedy=_OTHER_OUT), _study_fields(plan, {})
        here["runs"] = {name: run for name, run in here["runs"].items() if name in there["runs"]}
        old, new = _comparable(there), _comparable(here)
        for field in {**old, **new}:
            if old.get(field) != new.get(field):
                there, here = (json.dumps(fields.get(field))[:60] for fields in (old, new))
                raise ConfigError(
                    f"--out={self.path} has another study than --study: {field} is {there} there and {here} here: "
                    "repeat the flags of that study, or choose another --out"
                )

    def check_code(self, here: str, there: str) -> None:
        """Raises ConfigError unless the digest `here` is that of the study's code, `there`."""
        if here != there:
            raise ConfigError(
                f"--out={self.path} began with code {there}, which code/{there}.zip has, and the code is now {here}: "
                "restore it, or add --mixed_code, and the report names the runs of each"
            )

    def study_file(self, remedy: str = _OTHER_OUT) -> StudyFile:
        """Returns the contents of study.json. Raises ConfigError if the folder is not that of a study.

        remedy: what to do about a damaged file.
        """
        file = self.path / "study.json"
        if not file.exists():
            raise ConfigError(f"--out={self.path} is not the folder of a study: run the study without --report first")
        return _read(StudyFile, file, remedy=remedy)

    def add_report(self, seeds: int) -> None:
        """Records that a report of the study has verdicts, with this number of seeds."""
        file, reported = self.path / "study.json", {*self.study_file().reported, seeds}
        write_json(file, read_json(file, remedy=_OTHER_OUT) | {"reported": sorted(reported)})

    def begin_training(self, job: Job, code: str) -> None:
        """Records the digest of the code that trains, or continues to train, the run of a job."""
        file, before = self.path / "code" / f"{job.name}.txt", self.code_of(job)
        if code not in before:
            write_text(file, "\n".join([*before, code]) + "\n")

    def code_of(self, job: Job) -> list[str]:
        """The digests of the code that trained the run of a job, in order."""
        file = self.path / "code" / f"{job.name}.txt"
        return file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else []

    def write(self, job: Job, outcome: Outcome) -> None:
        """Writes the outcome of a job in place of that of an earlier try."""
        write_json(self._file(job), dataclasses.asdict(outcome))

    def remove(self, job: Job) -> None:
        """Removes the outcome of an earlier try."""
        self._file(job).unlink(missing_ok=True)

    def outcome(self, job: Job, plan: Plan) -> Outcome:
        """Returns the outcome of a job, of whatever state."""
        file, run = self._file(job), vars(job)
        if not file.exists():
            if any((self.path / "runs").glob(f"{job.name}-*")) or self.workdir(job.name).exists:
                return Outcome(**run, state="unfinished", reason="the run or its measures are not complete")
            return Outcome(**run, state="missing", reason="the run has not started")
        remedy, reason = "the same command measures the run again", ""
        try:
            outcome = _read(Outcome, file, remedy)
        except ConfigError as error:
            return Outcome(**run, state="damaged", reason=str(error))
        if problem := _problem(outcome, job, plan):
            reason = f"{file} is damaged: {problem}: {remedy}"
        elif problem := _trained_otherwise(outcome, job, plan):
            reason = f"{file} is of another run: {problem}: restore it, or delete the run to train it again"
        return Outcome(**run, state="damaged", reason=reason) if reason else outcome

    def _file(self, job: Job) -> Path:
        return self.path / "outcomes" / f"{job.name}.json"

    def results(self, plan: Plan, command: str, overrides: Mapping[str, Any]) -> Results:
        """Returns what the runs of the study gave. overrides: those of the command line, for the report."""
        jobs = jobs_of(plan)
        names = [*plan.runs]
        runs = sorted((job for job in jobs if not job.field), key=lambda job: names.index(job.variant))
        outcomes = [self.outcome(job, plan) for job in runs]
        complete = [outcome for outcome in outcomes if outcome.state == "complete"]
        variants = {
            name: dataclasses.replace(
                fields, overrides={field: value for field, value in fields.overrides.items() if field not in overrides}
            )
            for name, fields in plan.study.variants.items()
        }
        return Results(
            study=dataclasses.replace(plan.study, variants=variants, overrides={**plan.study.overrides, **overrides}),
            command=command,
            outcomes=[outcome for outcome in complete if outcome.variant in plan.variants],
            problems=[outcome for outcome in outcomes if outcome.state != "complete"],
            sweeps=[self.outcome(job, plan) for job in jobs if job.field],
            confounders=plan.confounders,
            questions=plan.questions,
            text_facts=plan.text_facts,
            warnings=plan.warnings,
            reported=self.study_file().reported,
            scratch=[outcome for outcome in complete if outcome.variant in plan.scratch],
            scratch_of={variant: one.name for one in plan.scratch.values() for variant in one.shared_by},
            configs=plan.configs,
        )


def _read(cls: type[T], file: Path, remedy: str) -> T:
    """Returns what a study wrote to a JSON file. Raises ConfigError, one line, if it is not of this form."""
    fields = read_json(file, remedy=remedy)
    if "measure_commands" in fields:  # of an outcome that earlier code wrote
        fields["commands"] = [*fields.get("commands", ()), *fields.pop("measure_commands")]
    try:
        return from_mapping(cls, fields, "")
    except ConfigError as error:
        message = str(error).replace("config field ", "field ")
        raise ConfigError(f"{file} is damaged, or of another version: {message}: {remedy}") from error


def _problem(outcome: Outcome, job: Job, plan: Plan) -> str:
    """Returns why an outcome cannot be that of a job of the plan; "" if it can. The digest has the job's name."""
    if outcome.job != job:
        return f"it is the outcome of variant {outcome.variant!r}, seed {outcome.seed}"
    if outcome.state not in ("complete", "failed", "diverged"):
        return f"state={outcome.state!r} is never written"
    if outcome.config_digest != plan.config_digest(job, outcome.swept):
        return "config_digest is not that of the run's config"
    if outcome.state == "complete" and outcome.heldout_digest != plan.heldout_digest_of(job):
        return f"heldout_digest={outcome.heldout_digest} is not {plan.heldout_digest_of(job)}, that of the study"
    for file, now in plan.file_digests.items():
        if (measured := outcome.environment.get(file, now)) != now:
            return f"it was measured with another file than there is now: the {file} was {measured} and is {now}"
    groups = (outcome.values, outcome.margins, *outcome.floors.values())
    if not all(math.isfinite(number) for group in groups for number in group.values()):  # NaN says nothing in a table
        return "it has a number that is not finite"
    return ""


def _trained_otherwise(outcome: Outcome, job: Job, plan: Plan) -> str:
    """Returns in what text or code the run of an outcome differs from the study's; "" where there is no difference."""
    for name, now in plan.runs[job.variant].text_digests.items():
        if now and (then := outcome.environment.get(name, now)) != now:
            return f"it was trained on other text than that of the study: the {name} was {then} and is {now}"
    for name, now in plan.runs[job.variant].code.items():
        if (then := outcome.environment.get(name, now)) != now:
            return f"the {name} has changed since (SHA-256 {then[:12]}, now {now[:12]})"
    return ""


def _study_fields(plan: Plan, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Returns the contents of study.json: the study, and the config of every run as resolved."""
    runs = {
        variant.name: {
            "sweep": variant.sweep,
            "start": plan.kept_fields(variant.start) if variant.start is not None else {},
            "main": plan.kept_fields(variant.main),
            **{measure: plan.kept_fields(run) for measure, run in variant.fine_tunings.items()},
        }
        for variant in plan.variants.values()
    }
    fields = {"study": dataclasses.asdict(plan.study), "overrides": overrides, "runs": runs}
    fields |= {"warnings": plan.warnings, "readings": max(one.readings for one in plan.variants.values())}
    fields["tokenizers"] = {variant.name: variant.tokenizer for variant in plan.variants.values()}
    return json.loads(json.dumps(fields, default=str))


def _comparable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns field -> value of what makes two studies different."""
    study = fields.get("study", {})
    compared = {name: study.get(name) for name in ("name", "baseline", "budget", "measures")}
    return compared | flatten({"runs": fields.get("runs", {})})
