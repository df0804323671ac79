"""The commands of ``treadle``."""
