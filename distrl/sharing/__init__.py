"""Parameters that several tasks share, by name."""

from distrl.sharing.config import Shared as Shared
