"""From text to batches: documents, token stores, windows of documents, and batches of windows.

This package imports no objective: the function that makes a batch of windows is passed in.
"""

from absl import logging

# With jaxlib below 0.11, Grain prints at its import that it cannot profile worker processes. Ours are threads.
# Python's logging would make a logger that does not know the caller's file, by which workdir/checkpoint.py filters.
logging.get_absl_logger().addFilter(lambda record: "worker profiling requires" not in str(record.msg))
