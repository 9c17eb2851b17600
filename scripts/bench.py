"""How long things take, from a checkout: benchmarks/ is no part of the package, so it is found beside this folder."""

import sys

from checkout import ROOT, check_installed

if __name__ == "__main__":
    check_installed()
    sys.path.insert(0, str(ROOT))
    from benchmarks.command import main
    from dpfedmeta.cli.arguments import run_command

    run_command(lambda console: main(sys.argv[1:], console))
