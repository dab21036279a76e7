"""The outer loop: `alternate` yields iterations; stopping rules and callbacks watch them."""
