"""Several policies: in one actor, one evaluator, one learner's process."""
