# Functions for the scripts in tools/, which source this file. install_packages NAME... installs the Debian packages
# that are missing.

# Prints the packages that packages.txt lists.
build_packages() {
  grep -v '^#' "$(dirname "${BASH_SOURCE[0]}")/packages.txt"
}

# Prints the packages that only tools/examples/service needs besides.
service_packages() {
  grep -v '^#' "$(dirname "${BASH_SOURCE[0]}")/service_packages.txt"
}

install_packages() {
  local missing=() name
  for name in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" == installed ]] || missing+=("$name")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "Missing: ${missing[*]}. These are Debian 12 packages, and there is no apt-get here." >&2
    return 1
  fi
  if [[ $EUID -ne 0 ]]; then
    echo "Missing: ${missing[*]}. Install them as root, then run this again:" >&2
    echo "  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Fetches package lists only if the installation fails, because they may be missing or old.
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  } || {
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  }
  # A Bazel that runs would not look for them again.
  ! command -v bazel >/dev/null || bazel shutdown >/dev/null 2>&1 || true
}

# say_build_time CUDA: says how long a first build of the tools takes; CUDA is yes or no. A core of a Zen 4 takes about
# 340 seconds without CUDA, one of a Zen 5 two thirds of that, and one without AVX-512 up to 2.5 times as long. With
# nvcc it is about half as much again.
say_build_time() {
  local cores least=230 most=850
  cores=$(nproc)
  [[ $1 == no ]] || least=350 most=1300
  echo "Building on $cores cores. The first time this takes about $(((least - 1) / (60 * cores) + 1)) to" \
    "$(((most - 1) / (60 * cores) + 1)) minutes, later seconds."
}

# Returns whether programs can find an NVIDIA driver on this machine.
has_nvidia_driver() {
  [[ -e /dev/nvidiactl || $(PATH=$PATH:/sbin ldconfig -p 2>/dev/null) == *libcuda.so.1* ]]
}

# Installs the headers of cuDNN's frontend, for which Debian has no package, into the user's cache, where
# cudnn_configure.bzl finds them. Does nothing without a CUDA toolkit and cuDNN. A failure is not an error: our own
# kernels compute attention then.
install_cudnn_frontend() {
  local cuda=${CUDA_HOME:-/usr/local/cuda} requirement version folder found= work
  for folder in "$cuda/include" /usr/include /usr/include/*-linux-gnu; do
    [[ -e $folder/cudnn.h ]] && found=1
  done
  [[ -x $cuda/bin/nvcc && -n $found && -z ${CUDNN_FRONTEND:-} ]] || return 0
  requirement=$(dirname "${BASH_SOURCE[0]}")/cudnn_frontend.txt
  version=$(sed -n 's/.*==\([^ ]*\).*/\1/p' "$requirement")
  folder=${XDG_CACHE_HOME:-${HOME:-}/.cache}/shale/cudnn_frontend-$version
  [[ ! -e $folder ]] || return 0
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip || return 0
  echo "Fetching the headers of cuDNN's frontend $version"
  mkdir -p "$(dirname "$folder")" && work=$(mktemp -d "$folder.XXXX") || {
    echo "Could not write to $(dirname "$folder"): our own kernels will compute attention on CUDA" >&2
    return 0
  }
  # The rename makes the folder appear complete or not at all, even if two processes do this at once. Bazel is shut down
  # because a running one would not look for the headers again.
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
      --implementation cp --python-version 3.11 --platform manylinux_2_28_x86_64 -d "$work" -r "$requirement" &&
    (cd "$work" && python3 -m zipfile -e ./*.whl . && chmod 755 . && rm -rf ./*.whl ./cudnn) &&
    mv -T "$work" "$folder" 2>/dev/null; then
    bazel shutdown >/dev/null 2>&1 || true
  else
    rm -rf "$work"
    [[ -e $folder ]] || echo "Could not fetch them: our own kernels will compute attention on CUDA" >&2
  fi
}
