"""`python -m mrv2_fixes`: the command, with the Python that is to serve."""

from mrv2_fixes.cli import main

main()
