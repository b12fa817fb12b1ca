# Sourced by the scripts in tools/: install_packages NAME... installs the Debian packages that are missing.

# The packages of packages.txt beside this file.
build_packages() {
  grep -v '^#' "$(dirname "${BASH_SOURCE[0]}")/packages.txt"
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
  # Package lists may be missing or old: fetch them only if they do not do.
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  } || {
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  }
}
