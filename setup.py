"""The package's data. Tool settings are in pyproject.toml, the pinned set in requirements/."""

from pathlib import Path

from setuptools import find_packages, setup

# Lower bounds hold both for the pinned set on Python 3.10 and for current releases on newer ones.
REQUIRES = [
    "absl-py>=2.0",
    "cloudpickle>=2.2",
    "dm-env>=1.6",
    "dm-haiku>=0.0.14",
    "envpool>=0.8.4",
    "gymnasium>=1.0",
    "jax>=0.5.3",
    "numpy>=1.26",
    "optax>=0.2.4",
    "rlax>=0.1.7",
    "threadpoolctl>=3.1",
]

# Suites of environments, each optional: Atari and MiniGrid and MuJoCo by gymnasium, dm_control.
SUITES = ["ale-py>=0.10", "dm-control>=1.0", "minigrid>=3.0", "mujoco>=3.0"]

# What the topologies other than single_process need. These packages' binaries fit one another in
# these versions only, and are built for Python 3.10 at most (docs/install.md).
LAUNCHPAD = [
    "dm-launchpad==0.5.1",
    "dm-reverb==0.7.3",
    "tensorflow-cpu==2.8.4",
    "tensorflow-probability==0.16.0",
    "cryptography>=42",
    "protobuf==3.19.6",
    "numpy==1.26.4",
    "jax==0.5.3",
    "jaxlib==0.5.3",
    "ml_dtypes<0.6",
    "envpool==0.8.4",
    "rlax==0.1.7",
    "distrax==0.1.5",
    "PyYAML>=6.0",
    "setuptools<81",
]

DEV = [
    "hypothesis>=6.100",
    "mypy>=1.10",
    "pytest>=9.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.6",
]

setup(
    name="distrl",
    version="0.1.0",
    description="Reinforcement learning with many actors: one experiment, several topologies",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    if Path(__file__).with_name("README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    # Naming the root makes an editable install a plain path entry; import hooks are slower.
    package_dir={"": "."},
    packages=find_packages(include=["distrl", "distrl.*"]),
    install_requires=REQUIRES,
    extras_require={"launchpad": LAUNCHPAD, "suites": SUITES, "dev": DEV},
    entry_points={"console_scripts": ["distrl=distrl.launch.main:main"]},
)
