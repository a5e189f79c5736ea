#!/usr/bin/env bash
# Installs the Slurm programs that `make test-slurm` starts; nothing is started here or left running by the tests.
# Exit codes: 0 it is there, 3 it cannot be installed here, with a message.
set -euo pipefail
packages=(slurmctld slurmd slurm-client munge)

have() { command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged; } >/dev/null

refuse() {
  echo "test-slurm: skipped, $1" >&2
  exit 3
}

[[ $(id -u) == 0 ]] || refuse "starting Slurm needs root"
have && exit 0
command -v apt-get >/dev/null || refuse "there is no apt to install ${packages[*]} with"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || refuse "apt-get update failed"
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null || refuse "apt has no ${packages[*]}"
have || refuse "${packages[*]} are installed, but not all programs are there"
