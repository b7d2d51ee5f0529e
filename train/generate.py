"""The command `python -m train.generate`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("generate", run_name="__main__")
