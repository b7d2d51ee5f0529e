"""Checks of the fields of a section against each other, and of texts, before anything is made from them."""

from contract.errors import ConfigError
from data.sources.filters import check_filters
from data.store.store import check_cache_dir
from experiment.config import ExperimentConfig
from experiment.optimizer import make_optimizer
from experiment.tasks import check_sources


def check_sections(sections: ExperimentConfig) -> None:
    """Raises ConfigError for values of single sections that cannot work."""
    data, train, mesh = sections.data, sections.train, sections.mesh
    check_sources(sections)
    check_cache_dir(data.cache_dir)
    check_filters(data.filters)
    if len(set(train.trackers)) < len(train.trackers):
        raise ConfigError(f"train.trackers={train.trackers} must name each tracker once")
    if not train.tracker_project:
        raise ConfigError("train.tracker_project='' must be a name, such as 'cloze'")
    if train.grad_accum_steps and train.batch_size % train.grad_accum_steps:
        raise ConfigError(
            f"train.batch_size={train.batch_size} must be a multiple of train.grad_accum_steps={train.grad_accum_steps}"
        )
    if mesh.backend == "pmap" and (mesh.fsdp, mesh.context, mesh.tensor) != (1, 1, 1):
        raise ConfigError(
            f"mesh.backend='pmap' copies the state to every device: set mesh.fsdp={mesh.fsdp}, "
            f"mesh.context={mesh.context} and mesh.tensor={mesh.tensor} to 1, or mesh.backend='jit'"
        )
    make_optimizer(sections.optimizer, train.assumed_steps)  # raises for fields that cannot work
