"""Tools independent of the model: atomic files, untrusted input, arrays, checks, random numbers."""
