"""The `tonnage` command of a pip installation: the binary that the package carries takes over this process."""
import os
import sys


def main():
    binary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dist", "bin", "tonnage")
    if not os.path.exists(binary):
        sys.exit(f"tonnage: {binary} is not there\n  install the package again: pip install --force-reinstall tonnage")
    # pip does not keep the permission of files in every case.
    if not os.access(binary, os.X_OK):
        os.chmod(binary, 0o755)
    os.execv(binary, ["tonnage", *sys.argv[1:]])


if __name__ == "__main__":
    main()
