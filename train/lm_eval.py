"""The command `python -m train.lm_eval`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("evaluation.lm_eval", run_name="__main__")
