"""The command `python -m train.evaluate`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("evaluation", run_name="__main__")
