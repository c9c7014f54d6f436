"""`python -m mrv2_fixes`: the command, with the Python that is to serve."""

import sys

if not getattr(sys.flags, "safe_path", False):  # new in Python 3.11
    del sys.path[0]  # the folder at hand, in which a server that is started looks for no modules

from mrv2_fixes.cli import main

main()
