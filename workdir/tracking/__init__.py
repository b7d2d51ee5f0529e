"""Where a run writes its metrics, its config and its sample: workdir.tracking.writer alone knows the trackers."""
