"""Several devices, or several processes, as one learner."""
