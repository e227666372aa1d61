"""How the parts are wired: one topology a file, each a function from an experiment to a program.

Nothing is imported here, so that `single_process` runs where Launchpad is not installed.
"""

TOPOLOGIES = {
    "single_process": "one process, no Launchpad: the parts take turns",
    "heavy_env": "actors that infer for themselves, a learner, a replay",
    "light_env": "actors that ask inferencer services, a learner, a replay",
    "multi_machine": "either of the two over the machines of --hosts",
}
"""Name to what it is. `programs.<name>` has the function of that name."""
