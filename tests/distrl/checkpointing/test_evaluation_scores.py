"""Which evaluation scores which checkpoint."""

from distrl.checkpointing.evaluation_scores import CheckpointScorer


def evaluated(number, version):
    """Returns the monitor's state after an evaluation."""
    report = {"evaluation_return": 10.0 * number, "version": version, "learner_life": 0}
    return {"evaluation": {**report, "evaluations": number}}


def test_an_evaluation_of_parameters_that_were_replaced_scores_no_checkpoint():
    scorer = CheckpointScorer({}, 0)
    assert scorer.take(evaluated(1, 5), 6) == {"evaluation_return": 10.0, "evaluated_version": 5}
    for number, version in ((2, 7), (3, 8)):  # made before another member was copied at version 8
        assert scorer.take(evaluated(number, version), 9, adopted=8) == {}
    assert scorer.newest == {**evaluated(1, 5)["evaluation"], "evaluations": 3}
    assert scorer.take(evaluated(4, 9), 9, 8) == {"evaluation_return": 40.0, "evaluated_version": 9}
