"""What is proven of each patch on each release: as a matrix, and as one page."""
