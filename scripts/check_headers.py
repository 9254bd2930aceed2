#!/usr/bin/env python3
"""Compiles every header alone. Headers named *-inl.h are left out: a kernel source includes them once per target."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys


def check(root, header):
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-I.", "-Iinclude", "-x", "c++", "-"]
    source = f'#include "{header}"\n#include "{header}"\n'  # twice: the guard is checked too
    done = subprocess.run(command, input=source, cwd=root, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{header} does not compile alone:\n{done.stderr}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    headers = []
    for top in ["include", "io", "kernels", "src", "tests"]:
        headers += [p.relative_to(root).as_posix() for p in sorted((root / top).rglob("*.h")) if not p.name.endswith("-inl.h")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(lambda header: check(root, header), headers) if text]
    print("\n".join(problems) if problems else f"headers: {len(headers)} compile alone")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
