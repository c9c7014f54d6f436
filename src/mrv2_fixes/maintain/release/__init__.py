"""What a release of this project gives people to download, and where that comes from."""
