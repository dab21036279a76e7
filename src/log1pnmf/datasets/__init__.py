"""Small data sets that are at hand everywhere: real cells and texts, and data whose truth is known."""

from .cells import Dataset, pancreas
from .donors import Donors, made_up_donors
from .made_up import Tumours, made_up_tumours
from .manual import ManualPages, manual_pages

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
