"""cloze from Python: open a run, or make a model, and read texts with it.

    import cloze

    model = cloze.load("runs/ul2")                   # the newest checkpoint of a run, or a Hugging Face folder
    model = cloze.new("configs/ul2.py:tiny")         # initial parameters
    model = cloze.train("configs/ul2.py:tiny", "runs/ul2")
    batches = cloze.batches("configs/ul2.py:tiny")   # NumPy batches for a model of one's own (docs/only_the_data.md)

    print(model.show("The quick brown fox jumps over the lazy dog."))
    model.losses(["one text", "another"])
    model.generate(["The <extra_id_0> fox", "def main("], temperature=0)

docs/python.md is the tour; cloze/model.py has the methods.
"""

from cloze.model import Model
from cloze.opening import batches, load, new, train
from contract.errors import ConfigError

__all__ = ["ConfigError", "Model", "batches", "load", "new", "train"]
