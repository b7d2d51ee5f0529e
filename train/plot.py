"""The command `python -m train.plot`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("studies.plot", run_name="__main__")
