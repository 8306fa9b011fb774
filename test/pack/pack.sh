#!/usr/bin/env bash
# The package as a stranger meets it: the tarball in an empty app, installed by the README's command, the README's example under strict settings, in memory and
# in SQLite, and the command with a job file of the app's own.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf -- '-- %s\n' "$*"; }
fail() {
  printf 'FAIL %s\n' "$*" >&2
  exit 1
}

cd "$root"
say "npm pack"
# In CI what was built a moment ago, as other steps read it meanwhile.
npm pack --silent ${LONGHAUL_CI:+--ignore-scripts} --pack-destination "$work" >"$work/pack.log" 2>&1 || fail "npm pack: $(cat "$work/pack.log")"
tarball=$(echo "$work"/*.tgz)
packed=$(tar -tzf "$tarball")
grep -q '^package/dist/index.d.ts$' <<<"$packed" || fail "the tarball has no dist/index.d.ts"
if grep -E '^package/(test|bench|examples|node_modules)/' <<<"$packed"; then fail "the tarball has files of no use to a user"; fi

say "an empty app, npm $(npm --version)"
cp -R "$here/app" "$work/app"
cd "$work/app"
npm init -y >/dev/null
npm pkg set type=module
# npm 12 runs no install script that the app does not allow, and SQLite's binding needs one.
npm pkg set --json 'allowScripts.better-sqlite3=true'
npm install --no-audit --no-fund --loglevel error "$tarball" 'effect@^3.22'
# @types/ws: @effect/platform-node's declarations need it where skipLibCheck is false.
npm install --no-audit --no-fund --loglevel error --save-dev typescript@7.0.2 '@types/node@^20' '@types/ws@^8'
copies=$(find node_modules -path '*node_modules/effect/package.json' | wc -l)
[ "$copies" -eq 1 ] || fail "$copies copies of effect are installed"

# The README's example is its first ts block that runs a job.
example=$(awk '/^```ts/{on=1;block="";next} /^```/{if(on&&block~/Enrichment\.run\(/){printf "%s",block;exit} on=0} on{block=block $0 "\n"}' \
  "$root/README.md" 2>/dev/null || true)
if [ -n "$example" ]; then
  say "the example of README.md"
  printf '%s\n' "$example" >library.ts
else
  say "README.md has no example: examples/library.example.ts"
  cp "$root/examples/library.example.ts" library.ts
fi
sed -e '1i import * as Sqlite from "longhaul/sqlite"' -e 's|\bMemory\.layer|Sqlite.layer({ filename: "vendors.db" })|' library.ts >durable.ts
grep -q 'Sqlite\.layer({ filename: "vendors.db" })' durable.ts || fail "there is no Memory.layer in the example"

say "tsc, strict, with the declarations of the libraries"
node_modules/.bin/tsc -p . || fail "the app does not compile"

says_done() { grep -E '^[1-9][0-9]* done, \$0\.' || fail "$1 printed no result"; }
say "in memory"
node build/library.js </dev/null | says_done "the example"
[ ! -e vendors.db ] || fail "the example in memory wrote a file"
say "in SQLite, and again: the same run, nothing paid twice"
first=$(node build/durable.js </dev/null | says_done "the example on SQLite")
[ -s vendors.db ] || fail "there is no vendors.db"
second=$(node build/durable.js </dev/null | says_done "the example again")
printf '%s\n%s\n' "$first" "$second"
[ "$(cut -d, -f1-2 <<<"$first")" = "$(cut -d, -f1-2 <<<"$second")" ] || fail "the second run of the same id cost something"

version=$(node -p 'JSON.parse(require("fs").readFileSync(process.argv[1])).version' "$root/package.json")
say "npx longhaul --version"
printed=$(npx longhaul --version </dev/null)
[ "$printed" = "$version" ] || fail "longhaul --version printed '$printed', not $version"
say "npx longhaul run job.ts --llm simulated --budget 1 --source rows.csv"
npx longhaul run job.ts --llm simulated --budget 1 --source rows.csv --run-id app --out out.csv </dev/null
[ "$(grep -c . out.csv)" -eq 4 ] || fail "out.csv has not one line for each row: $(cat out.csv)"
grep -q '^rows: 3: 3 done' <<<"$(npx longhaul status app </dev/null)" || fail "status does not say 3 done"

echo "pack: ok"
