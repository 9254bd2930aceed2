#!/usr/bin/env bash
# Installs, on Debian 12, the packages of Terrace that are missing. As root, or with sudo.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git python3
  liburing-dev libtbb-dev libspdlog-dev libfmt-dev libhwy-dev libdnnl-dev libtomlplusplus-dev libcli11-dev
  nlohmann-json3-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin
  bible-kjv clang-format clang-tidy
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error: missing packages (${missing[*]}), and neither root nor sudo to install them" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
