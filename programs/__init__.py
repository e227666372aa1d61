"""Wiring: one topology per file, each a function from an experiment to a program.

Nothing is imported here, so that `single_process` runs without Launchpad.
"""

AUTO = "auto"
TOPOLOGIES = {
    AUTO: "the fastest of the next three here, by a measurement of about a second",
    "single_process": "one process, no Launchpad: actor and learner take turns",
    "heavy_env": "actors with their own inferencers, a learner, a replay",
    "light_env": "actors that call inference services, a learner, a replay",
    "multi_machine": "either of the two, over the machines of --hosts",
}
"""From name to description. `distrl.programs.<name>` has the function of all names but AUTO."""
