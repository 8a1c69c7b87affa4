#!/bin/sh
# Writes the pins that `make setup` installs: one file for each supported cell of versions.
# Pins that still fit are kept; `scripts/lock.sh --upgrade` takes the newest of everything else.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-$(command -v uv || echo .venv/bin/uv)}

# lock FILE CELL EXTRA... : CELL is what makes this file's versions differ from the other's.
lock() {
    file=$1 cell=$2 extras=
    shift 2
    for extra in "$@"; do extras="$extras --extra $extra"; done
    # shellcheck disable=SC2086
    echo "$cell" | "$uv" pip compile pyproject.toml $extras --constraint - --universal \
        --python-version 3.12 --no-header --no-annotate --quiet $upgrade --output-file "$file"
    echo "wrote $file"
}

upgrade=${1:-}
lock constraints/skyrl-0.3.0.txt harbor==0.21.0 train dev modal
lock constraints/skyrl-0.3.0-vllm.txt harbor==0.21.0 vllm dev modal
lock constraints/skyrl-0.4.0.txt harbor==0.26.0 train-skyrl04 dev modal
lock constraints/harbor-0.26.0.txt harbor==0.26.0 dev modal
