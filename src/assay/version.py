"""Which Assay this is: here, so that what lies below `assay/__init__.py` can say it."""

__version__ = "0.1.0"
