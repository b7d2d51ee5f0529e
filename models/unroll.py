"""Chooses how many layers one iteration of the loop over layers computes."""

from models.config import ModelConfig

# XLA's programs for CPUs are faster without a loop, and take longer to compile the more layers they contain.
_MOST_LAYERS = 12


def choose_unroll(config: ModelConfig, platform: str) -> tuple[int, str]:
    """Returns the number of layers in an iteration for `config.scan_unroll` on `platform` (`platform_of`); the reason.

    0 is all layers on a CPU, where there are at most 12 and nothing is recomputed in the backward pass (outside a loop,
    XLA would not recompute), and one layer elsewhere: the time to compile then does not depend on the depth.
    """
    if config.scan_unroll:
        return config.scan_unroll, f"model.scan_unroll={config.scan_unroll}"
    if platform != "cpu":
        return 1, f"compiles one layer for {platform}"
    if config.remat != "none":
        return 1, f"model.remat={config.remat!r}"
    if config.num_layers > _MOST_LAYERS:
        return 1, f"more than {_MOST_LAYERS} layers take long to compile"
    return config.num_layers, "faster on cpu"
