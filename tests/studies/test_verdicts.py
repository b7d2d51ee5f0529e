"""benchmarks.verdicts: the simulation of studies."""

from benchmarks.verdicts import SETTINGS, simulate


def test_the_simulation_has_a_line_for_each_setting():
    lines = list(simulate(2))
    assert [(line["setting"], line["seeds"]) for line in lines] == [(name, n) for name in SETTINGS for n in (3, 5, 8)]
    assert all(0 <= line[name] <= 1 for line in lines for name in ("found", "coverage"))
