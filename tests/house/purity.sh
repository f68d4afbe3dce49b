#!/usr/bin/env bash
# Actors are pure, proved on their object code: for every actor of tests/house/evaluators.txt and every compiler at hand, `ld -r` of
# the actor, its listed evaluators, the outbox, the schema tables and libbase leaves undefined only memory functions, integer
# helpers of libgcc and the assert hook; nothing writable is left in it; the only class is its own; its structs have no padding.
# First the check is shown three impure actors, which it must refuse.
set -uo pipefail
cd "$(dirname "$0")/../.."
list=tests/house/evaluators.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags="-std=gnu11 -O2 -I. -fno-strict-aliasing -fno-stack-protector -U_FORTIFY_SOURCE"
# What may stay undefined. GCC may refer to the global offset table by name.
allowed='^(mem(cpy|move|set|cmp)|bcmp|strlen|qr_assert_failed|_GLOBAL_OFFSET_TABLE_|__(u?div|u?mod|u?divmod|mul|popcount|clz|ctz|ffs|parity|bswap|ashl|ashr|lshr|cmp|ucmp)[sdt]i[234])$'

base_archive() { # compiler -> $scratch/compiler/libbase.a
  local file objects=()
  mkdir -p "$scratch/$1"
  for file in base/*.c; do
    [ "$file" = base/assert.c ] && continue
    $1 $flags -c "$file" -o "$scratch/$1/base_$(basename "$file" .c).o" || return 1
    objects+=("$scratch/$1/base_$(basename "$file" .c).o")
  done
  ar rcs "$scratch/$1/libbase.a" "${objects[@]}"
}

object() { # compiler source -> prints the object, compiled once
  local out
  out=$scratch/$1/$(basename "$2" .c).o
  [ -f "$out" ] || $1 $flags -c "$2" -o "$out" || return 1
  echo "$out"
}

check_closure() { # file name -> complaints
  local undefined writable classes
  undefined=$(nm -u "$1" | awk '{print $NF}' | grep -vE "$allowed")
  [ -z "$undefined" ] || echo "$2 needs" $undefined
  writable=$(readelf -SW "$1" | sed -E 's/^ *\[ *[0-9]+\] *//' | awk '$1 ~ /^\.(data|bss|tdata|tbss|ldata|lbss|init_array|fini_array|preinit_array|ctors|dtors)/ && $1 !~ /^\.data\.rel\.ro/ && $5 !~ /^0+$/ {print $1}')
  [ -z "$writable" ] || echo "$2 has writable memory:" $writable
  classes=$(nm --defined-only "$1" | awk '{print $NF}' | grep -E '^qr_[a-z_]+_class$' | tr '\n' ' ')
  [ "$classes" = "$3" ] || echo "$2 holds the classes '$classes', expected '$3'"
}

check_padding() { # source -> complaints about structs of the file and of its evaluators' headers
  gcc -std=gnu11 -I. -Wpadded -fsyntax-only "$1" 2>&1 | grep -E 'padd' | grep -vE '^\./?(actors/(actor|given|outbox|note)\.h|base/|messages/)|^(actors/(actor|given|outbox|note)\.h|base/|messages/)' | sort -u
}

closure() { # compiler name own-source class evaluators... -> complaints
  local compiler=$1 name=$2 source=$3 class=$4 objects=() evaluator
  shift 4
  for file in "$source" actors/outbox.c messages/schema.c "${@/%/.c}"; do
    case $file in */*) ;; *) file=actors/$file ;; esac
    objects+=("$(object "$compiler" "$file")") || { echo "$name: $file does not compile"; return; }
  done
  ld -r -o "$scratch/$compiler/$name.closure" "${objects[@]}" "$scratch/$compiler/libbase.a" || { echo "$name does not link"; return; }
  check_closure "$scratch/$compiler/$name.closure" "$name" "$class"
}

self_test() { # compiler: each impure example must be refused
  local name complaints
  printf '#include "base/base.h"\nvoid *malloc(size_t);\nvoid *impure_heap(void);\nvoid *impure_heap(void) { return malloc(8); }\n' >"$scratch/impure_heap.c"
  printf 'int impure_static(void);\nint impure_static(void) { static int calls; return ++calls; }\n' >"$scratch/impure_static.c"
  printf '#include "actors/actor.h"\nconst qr_actor_class_t qr_router_class = {"router"};\n' >"$scratch/impure_class.c"
  printf '#include "base/base.h"\nstruct impure_padding { uint8_t a; uint32_t b; };\n' >"$scratch/impure_padding.c"
  for name in impure_heap impure_static impure_class; do
    complaints=$(closure "$1" "$name" "$scratch/$name.c" "")
    [ -n "$complaints" ] || { echo "the check lets $name pass ($1)"; return 1; }
  done
  [ -n "$(check_padding "$scratch/impure_padding.c")" ] || { echo "the check lets impure_padding pass"; return 1; }
}

bad=0 checked=0
for compiler in gcc clang; do
  command -v "$compiler" >/dev/null || { echo "purity: no $compiler here"; continue; }
  base_archive "$compiler" || exit 1
  self_test "$compiler" || exit 1
  while IFS=: read -r name evaluators; do
    class="qr_${name}_class "
    case $name in "- "*) name=${name#- } class= ;; esac
    [ -f "actors/$name.c" ] || { echo "purity: actors/$name.c is listed and does not exist"; bad=1; continue; }
    complaints=$(closure "$compiler" "$name" "actors/$name.c" "$class" $evaluators)
    [ "$compiler" = gcc ] && complaints+=$(check_padding "actors/$name.c")
    [ -z "$complaints" ] || { echo "purity ($compiler): $complaints"; bad=1; }
    checked=$((checked + 1))
  done < <(grep -vE '^(#|$)' "$list")
done
for file in actors/*.c; do
  name=$(basename "$file" .c)
  [ "$name" = outbox ] || grep -qE "^(- )?$name:" "$list" || { echo "purity: actors/$name.c is not in $list"; bad=1; }
done
echo "purity: $checked closures checked"
[ "$checked" -gt 0 ] && [ "$bad" -eq 0 ]
