"""Both half-steps from one pass over chunks of rows."""
