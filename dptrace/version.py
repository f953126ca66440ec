"""The version of dptrace, which the build reads too."""

__all__ = ["__version__"]

__version__ = "0.1.0"
