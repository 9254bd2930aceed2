#!/usr/bin/env python3
"""Reads every #include of ours and refuses one that goes against the direction of the layers."""
import pathlib
import re
import sys

# A folder may include itself, folders of lower layers, and include/terrace.
LAYERS = [
    ["src/base"],
    ["io", "src/device", "kernels", "src/plan", "src/config"],
    ["src/memory", "src/collectives"],
    ["src/optimizer"],
    ["src/runtime"],
    ["src/model", "src/data", "src/checkpoint"],
    ["src/engine"],
    ["src/train", "src/embed", "src/doctor"],
]
PUBLIC = "include/terrace"
PUBLIC_ONLY = ["src/cli", "python", "examples"]  # besides themselves, these see the public headers alone
FREE = ["tests", "benchmarks"]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
OURS = ("src/", "io/", "kernels/", "tests/", "benchmarks/", "terrace/", "python/", "examples/")


def folder_of(path, folders):
    return next((folder for folder in folders if path.startswith(folder + "/")), None)


def refusal(source, included):
    """Why `source` must not include `included` (both from the project root); None when it may."""
    layer_of = {folder: index for index, layer in enumerate(LAYERS) for folder in layer}
    if included.startswith("terrace/"):
        return None
    if folder_of(source, FREE):
        return None
    home = folder_of(source, [PUBLIC, *PUBLIC_ONLY, *layer_of])
    target = folder_of(included, [*PUBLIC_ONLY, *FREE, *layer_of])
    if home is None:
        return "its folder has no layer; add it to LAYERS"
    if target == home:
        return None
    if home == PUBLIC:
        return "public headers include public headers only"
    if home in PUBLIC_ONLY:
        return f"{home} includes public headers (include/terrace) only"
    if target is None:
        return "its folder has no layer; add it to LAYERS"
    if target not in layer_of:
        return f"nothing includes {target}"
    if layer_of[target] >= layer_of[home]:
        return f"{home} does not stand above {target}"
    return None


def self_test():
    assert refusal("io/a.cpp", "src/base/fail.h") is None
    assert refusal("src/train/a.cpp", "io/a.h") is None
    assert refusal("src/cli/a.cpp", "terrace/config.h") is None
    assert refusal("src/cli/a.cpp", "src/cli/b.h") is None
    assert refusal("tests/io/a.cpp", "src/train/a.h") is None
    for source, included in [("src/base/a.cpp", "io/a.h"), ("io/a.cpp", "src/plan/a.h"), ("src/cli/a.cpp", "src/base/log.h"),
                             ("src/model/a.cpp", "src/data/a.h"), ("io/a.cpp", "tests/support/a.h"),
                             ("include/terrace/a.h", "src/base/fail.h"), ("src/new/a.cpp", "src/base/fail.h")]:
        assert refusal(source, included) is not None, (source, included)


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    problems = []
    checked = 0
    for top in ["include", "io", "kernels", "src", "tests", "benchmarks", "examples", "python"]:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh") or not path.is_file():
                continue
            source = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                checked += 1
                included = match.group(1)
                if not included.startswith(OURS):
                    problems.append(f"{source}:{number}: \"{included}\": write our includes from the project root")
                    continue
                reason = refusal(source, included)
                if reason:
                    problems.append(f"{source}:{number}: \"{included}\": {reason}")
    print("\n".join(problems) if problems else f"layers: {checked} includes, all in direction")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
