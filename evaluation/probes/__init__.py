"""Common-ground probes: measurements of every suitable run on the same text, in the form it was trained for.

PROBES maps the value of --probe to the class. To add a probe, subclass Probe in a file of this package and add it here.
"""

from evaluation.probes.heldout_text import Continuation, Infilling, PseudoLogLikelihood
from evaluation.probes.linear import Linear
from evaluation.probes.minimal_pairs import MinimalPairs
from evaluation.probes.probe import Probe

PROBES: dict[str, type[Probe]] = {
    probe.name: probe for probe in (Continuation, Infilling, Linear, MinimalPairs, PseudoLogLikelihood)
}
