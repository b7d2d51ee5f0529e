"""Where a run writes its metrics, its config and its sample: train.tracking.writer alone knows the trackers."""
