#!/bin/sh
# ninja demo: tunes a handful of shapes for 2 and 4 ranks on this machine, with its database under
# generated/demo/, and runs each with its winner against the oracle. A second run is warm.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p generated/demo
rankfold=generated/bin/rankfold
db=generated/demo/tactics.db

for ranks in 2 4; do
    set -- $rankfold tune -n $ranks --db $db --dtype f32,bf16,f16 --hidden 4096 --rows 1,16,128 --budget 90
    echo
    echo "\$ $*"
    "$@"
done
echo
echo "Every line with a check mark was verified against the oracle, bit for bit. What was measured:"
echo "  sqlite3 $db 'SELECT * FROM why'"
echo "  $rankfold explain --db $db bf16:16x4096"
echo "  $rankfold report --db $db"
