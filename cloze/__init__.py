"""cloze from Python: open a run, or make a model, and read texts with it.

    import cloze

    model = cloze.load("runs/ul2")                   # the newest checkpoint of a run, or a Hugging Face folder
    model = cloze.new("configs/ul2.py:tiny")         # initial parameters
    model = cloze.train("configs/ul2.py:tiny", "runs/ul2")
    model.save("runs/own", params)                   # parameters from a training loop of one's own (docs/python.md)
    batches = cloze.batches("configs/ul2.py:tiny")   # NumPy batches for a model of one's own (docs/only_the_data.md)

    print(model.show("The quick brown fox jumps over the lazy dog."))
    model.losses(["one text", "another"])
    model.generate(["The <extra_id_0> fox", "def main("], temperature=0)

docs/python.md is the tour; cloze/model.py has the methods.
"""

import importlib.util
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = "cluster command configs contract data evaluation experiment files generate huggingface learners models \
objectives run show train workdir"
for _name in _PACKAGES.split():
    # A script's folder is searched first. Its train.py would run here, before an error that names neither file.
    _found = importlib.util.find_spec(_name)
    if _found and _found.origin and _ROOT not in pathlib.Path(_found.origin).resolve().parents:
        raise ImportError(
            f"{_found.origin} shadows cloze's package {_name!r} in {_ROOT}: rename it, or run from elsewhere"
        )

from cloze.model import Model  # noqa: E402
from cloze.opening import batches, load, new, train  # noqa: E402
from contract.errors import ConfigError  # noqa: E402

__all__ = ["ConfigError", "Model", "batches", "load", "new", "train"]
