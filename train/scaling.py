"""The command `python -m train.scaling`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("studies.scaling", run_name="__main__")
