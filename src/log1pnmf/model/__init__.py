"""The statistics in plain NumPy: link, zeros, problem, objective, simulation."""
