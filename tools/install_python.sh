#!/usr/bin/env bash
# Unpacks Python 3.14 into build/python3.14 for `make test-pythons`, from the packages of Debian 14, if this machine has
# none. The packages bring their C library and its loader, and replace nothing of the system.
# Exit codes: 0 a Python 3.14 is there, 3 it cannot be had here, with a message.
set -euo pipefail
cd "$(dirname "$0")/.."
version=3.14
suite=forky # the first Debian release with 3.14
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
target=$PWD/build/python$version
work=$target.part

refuse() {
  rm -rf "$work"
  echo "test-pythons: without Python $version, $1" >&2
  exit 3
}

found() { [[ -n $(tools/pythons.sh "$version") ]]; }

found && exit 0
[[ $(id -u) == 0 ]] || refuse "installing it needs root"
command -v apt-get >/dev/null || refuse "there is no apt to fetch it with"
[[ -r $keyring ]] || refuse "$keyring is missing, which verifies Debian's packages"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || refuse "apt-get update failed"
apt-get install -y -qq --no-install-recommends patchelf >/dev/null || refuse "apt has no patchelf"
# shellcheck disable=SC2016  # apt-get expands it
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u)
[[ -n $mirror ]] || refuse "apt knows no mirror of Debian"

# An apt of its own, with an empty list of installed packages, so that it fetches everything that Python needs, and so
# that the system's sources and lists stay as they are.
rm -rf "$target" "$work"
mkdir -p "$work"/{lists,cache/archives}/partial "$work/root"
echo "deb [signed-by=$keyring] ${mirror%%$'\n'*} $suite main" >"$work/sources.list"
private_apt() {
  apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State::status=/dev/null \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
    -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@" >/dev/null
}
private_apt update || refuse "apt cannot read $suite from ${mirror%%$'\n'*}"
private_apt install -y --no-install-recommends --download-only "python$version-venv" ||
  refuse "the packages of $suite cannot be fetched"
trap 'refuse "the packages of $suite cannot be unpacked"' ERR
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$work/root"
done

# The program names the loader and the libraries that came with it by path: those of the system are older than it needs.
program=$work/root/usr/bin/python$version
libraries=$(dirname "$(find "$work/root/usr/lib" -name libc.so.6)")
patchelf --set-interpreter "$target$(patchelf --print-interpreter "$program")" "$program"
patchelf --force-rpath --set-rpath "$target/${libraries#"$work/root/usr/"}" "$program"
# Debian's ensurepip looks for pip's wheel in a folder named by path.
sed -i "s|/usr/share/python-wheels|$target/share/python-wheels|" "$work/root/usr/lib/python$version"/_sysconfigdata_*.py
mv "$work/root/usr" "$target"
rm -rf "$work"
found || refuse "the one unpacked in $target does not start"
