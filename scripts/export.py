"""`dpfedmeta export` from a checkout."""

from checkout import command

if __name__ == "__main__":
    command("export")
