"""Common-ground probes: measurements of every suitable run on the same text, in the form it was trained for.

PROBES maps the value of --probe to the class. To add a probe, subclass Probe in a file of this package and add it here.
"""

from train.probes.continuation import Continuation
from train.probes.infilling import Infilling
from train.probes.minimal_pairs import MinimalPairs
from train.probes.probe import Probe
from train.probes.pseudo_likelihood import PseudoLogLikelihood

PROBES: dict[str, type[Probe]] = {
    probe.name: probe for probe in (Continuation, Infilling, MinimalPairs, PseudoLogLikelihood)
}
