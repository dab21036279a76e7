"""Tools that know nothing of the model: atomic files, untrusted input, arrays, checks, random numbers."""
