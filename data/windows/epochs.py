"""The length of an epoch: how many windows contain the text of some documents once."""

import dataclasses

from contract.errors import ConfigError
from contract.windows import BatchSpec, WindowSpec
from data.windows.documents import Documents
from data.windows.windows import WindowReader


def windows_per_epoch(documents: Documents, spec: BatchSpec) -> int:
    """Returns how many windows are one pass over `documents`; with data.documents="whole" windows are rows.

    The denoisers of a mixture have a common epoch where their windows are alike: they have the same length, the same
    document handling and the same eligible documents. Each denoiser draws from all windows in an order of its own. As
    many draws as there are windows, over all denoisers, then read every window once on average.

    Raises ConfigError where windows are not alike: the same text would be read more often by one denoiser than by
    another, so the number of passes over the text depends on the denoiser. Raises as `WindowReader` does.
    """
    drawn = _drawn_specs(spec)
    alike = {dataclasses.replace(windows, name="", weight=0.0, ramp=None) for windows in drawn}
    if len(alike) > 1:
        lengths = ", ".join(dict.fromkeys(f"{windows.name} {windows.raw_length}" for windows in drawn[:8]))
        raise ConfigError(
            f"train.epochs needs windows of one kind, and the windows of this config differ ({lengths} raw tokens): "
            "set train.steps instead, and train.epochs=0"
        )
    return len(WindowReader(documents, drawn[0]))


def _drawn_specs(spec: BatchSpec) -> list[WindowSpec]:
    """The specs that windows are drawn from: one for each denoiser, or for each denoiser and length of a row plan."""
    if spec.plan is None:
        return [windows for windows in spec.windows if windows.weight > 0 or windows.final_weight > 0]
    return [
        dataclasses.replace(windows, raw_length=length)
        for denoiser_id, windows in enumerate(spec.windows)
        for length in spec.plan.lengths_of(denoiser_id).tolist()
    ]
