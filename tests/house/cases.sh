#!/usr/bin/env bash
# Every case of cases.txt marked `here` is a test function named by its id.
set -euo pipefail
cd "$(dirname "$0")/../.."
missing=0 found=0
while read -r id state _; do
  [ "$state" = here ] || continue
  if grep -rqE "(void|def) test_([A-Za-z0-9_]*_)?${id/-/_}(_|\()" tests --include='*.c' --include='*.h' --include='*.py'; then
    found=$((found + 1))
  else
    echo "cases: no test is named by $id"
    missing=$((missing + 1))
  fi
done < <(grep -v '^#' tests/house/cases.txt)
echo "cases: $found named, $missing missing"
[ "$missing" -eq 0 ]
