#!/bin/sh
# ninja demo: tunes a handful of shapes for 2 and 4 ranks on this machine, with its database under
# generated/demo/, and runs each with its winner against the oracle. A second run is warm.
set -eu
cd "$(dirname "$0")/../.."
RANKFOLD_DB=generated/demo/tactics.db
export RANKFOLD_DB
mkdir -p generated/demo
rankfold=generated/bin/rankfold

for ranks in 2 4; do
    echo
    echo "\$ rankfold tune -n $ranks"
    $rankfold tune -n $ranks --dtype f32,bf16,f16 --hidden 4096 --rows 1,16,128 --budget 90
done
echo
echo "Every line with a check mark was verified against the oracle, bit for bit. What was measured:"
echo "  sqlite3 $RANKFOLD_DB 'SELECT * FROM why'"
echo "  RANKFOLD_DB=$RANKFOLD_DB $rankfold explain bf16:16x4096"
echo "  RANKFOLD_DB=$RANKFOLD_DB $rankfold report"
