"""What knows no model: files written atomically, untrusted input, arrays, checks, random numbers."""
