"""Small data sets that are at hand everywhere: real cells and texts, and data whose truth is known."""

from .cells import Dataset, ManualPages, manual_pages, pancreas
from .made_up import Donors, Tumours, made_up_donors, made_up_tumours

__all__ = [
    "Dataset",
    "Donors",
    "ManualPages",
    "Tumours",
    "made_up_donors",
    "made_up_tumours",
    "manual_pages",
    "pancreas",
]
