"""Weights & Biases, which the extra `wandb` installs."""

import html
import importlib.util
import tempfile
from collections.abc import Mapping

from contract.errors import ConfigError
from files.paths import in_bucket
from workdir.tracking.tracker import TrackedRun

_INIT_SECONDS, _FINISH_SECONDS = 60, 60


class WandB:
    """Logs to a run of Weights & Biases with the TrackedRun's id, which exists already if the run was restarted.

    wandb's own variables select the rest: WANDB_MODE=offline, WANDB_ENTITY, WANDB_BASE_URL, WANDB_TAGS, ... Its local
    files are in workdir/wandb.

    wandb ignores values of a step that is lower than one it has seen (`log(step=...)`), even where a killed run had
    written a part of the step alone. So `step` is a metric, and the axis of all others: nothing is ignored, and the
    steps after a checkpoint, which a continued run writes again, are points at the same places.
    """

    def __init__(self, run: TrackedRun):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.name,
            dir=tempfile.gettempdir() if in_bucket(run.workdir) else run.workdir,
            config=dict(run.config),
            allow_val_change=True,  # a continued run may change fields
            resume="allow",
            settings=wandb.Settings(
                console="off",
                silent=True,
                reinit="create_new",  # several runs in one process, as of cloze.train
                init_timeout=_INIT_SECONDS,
                finish_timeout=_FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        offline = f"offline: to upload it, wandb sync {run.workdir}/wandb/offline-run-*-{run.run_id}"
        self.address = offline if self._run.offline else f"{self._run.url}"

    @staticmethod
    def check() -> None:
        """Raises ConfigError if wandb is not installed, or if it is online without an API key."""
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError("train.trackers has 'wandb', which is not installed: pip install -e '.[wandb]'")
        import wandb

        settings = wandb.setup(wandb.Settings(silent=True)).settings
        if settings.mode in ("online", "shared") and not wandb.login(prompt=False, verify=False):
            raise ConfigError(
                "train.trackers has 'wandb', which has no API key on this machine: run wandb login, or set "
                "WANDB_MODE=offline"
            )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Logs scalars."""
        self._run.log({"step": step, **values})

    def text(self, step: int, name: str, text: str) -> None:
        """Logs a text as preformatted HTML."""
        self._run.log({"step": step, name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def close(self, *, failed: bool) -> None:
        """Waits until everything is uploaded, for 60 seconds at most; then raises TimeoutError."""
        self._run.finish(exit_code=int(failed))
