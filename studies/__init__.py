"""Measurements that were made once, behind defaults and pages; README.md lists them."""
