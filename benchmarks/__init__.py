"""What the program costs, and what the fixes are worth; `make bench` runs all."""
