#!/usr/bin/env bash
# test_docs.sh SPILLWAY MADE_UP_LIMITS: runs the examples of README.md and docs/*.md, and compares what they print with
# what the pages show. Also checks, in all pages, links and the options of commands; and that README.md names
# the program's commands, docs/options.md its options, docs/measuring.md the fields of its reports, docs/models.md
# the families, and docs/library.md only functions of the public header; of the first four all, and no others.
#
# An example is a block of ```console or ```sh. In a console block a line that begins with "$ " is a
# command; a line that ends in "\" continues on the next line, and <<'END' takes the lines up to END. The
# lines up to the next command are what the command prints, stdout and stderr together. In an sh block
# every line is a command, and nothing is compared. A comment on the line before the block says how it is
# run:
#     <!-- example: numbers vary -->     the text is compared, with every number and run of spaces as one
#     <!-- example: output varies -->    only the exit status is compared
#     <!-- example: not run: WHY -->     the test counts the block as skipped
# A line "..." stands for any number of lines, and "..." within a line for any text. The line "spillway: on
# DEVICE" and the note about a GPU that is not used may differ. An exit status that is not 0 fails the test
# unless the next command is `echo $?`.
#
# The commands of a page run in one shell, in a folder of their own that has the repository's models/,
# tools/ and tests/, with a cache of their own. GPUs are hidden and two processors are used: a plan depends
# on the number of threads.
set -u -o pipefail
command -v python3 >/dev/null || { echo "tools/make_records.py needs python3, which is not here: skipped" && exit 77; }
export LC_ALL=C
root=$(pwd) work=$(mktemp -d) limits=$(realpath "$2")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" && ln -s "$(realpath "$1")" "$work/bin/spillway"
export PATH=$work/bin:$PATH CUDA_VISIBLE_DEVICES='' XDG_CACHE_HOME=$work/cache
mkdir -p "$work/cache/spillway"
two=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr , '\n' |
    while IFS=- read -r from to; do seq "$from" "${to:-$from}"; done | head -n 2 | paste -sd,)
taskset -cp "$two" $$ >/dev/null
"$limits" "$work/cache/spillway/drives.json" "$work" # nothing is measured: that would be said on stderr
pages=(README.md docs/*.md) others=(ARCHITECTURE.md SPEED.md CONTRIBUTING.md CHANGELOG.md)
n_checks=0 n_failed=0 n_run=0 n_skipped=0

fail() {
    n_failed=$((n_failed + 1))
    printf 'failed: %s\n' "$*"
}

# split PAGE FOLDER: for every command N of the page FOLDER/N.command, N.want (the output that the page shows)
# and N.how ("LINE compare|numbers|status"). Prints a line for each block that is not run.
split() {
    awk -v folder="$2" -v page="$1" '
        function finish() {
            if (open) { close(folder "/" n ".command"); close(folder "/" n ".want"); close(folder "/" n ".how") }
            open = 0
        }
        function begin(command) {
            finish()
            n++; open = 1
            printf "" > (folder "/" n ".want")
            print command > (folder "/" n ".command")
            print NR, how > (folder "/" n ".how")
            more = command ~ /\\$/
            until = match(command, /<<.[A-Z]+./) ? substr(command, RSTART + 3, RLENGTH - 4) : ""
        }
        function problem(text) { print page ":" NR ": " text > "/dev/stderr"; bad = 1 }
        /^<!-- example: / {
            mark = $0; sub(/^<!-- example: /, "", mark); sub(/ *-->$/, "", mark)
            next
        }
        /^```/ && !block {
            block = substr($0, 4); if (block == "") block = "text"
            how = "compare"
            if (mark == "numbers vary") how = "numbers"
            else if (mark == "output varies") how = "status"
            else if (mark ~ /^not run: ./) how = "none"
            else if (mark != "") problem("no such mark: " mark)
            if (mark != "" && block != "console" && block != "sh") problem("a mark of no example")
            if (how == "none") print page ":" NR ": " mark
            mark = ""
            next
        }
        /^```$/ && block {
            if (more || until != "") problem("a command without its end")
            block = ""; finish()
            next
        }
        !block { mark = ""; next }
        block == "text" && /^\$ / { problem("a command in a block that is no example") }
        block != "console" && block != "sh" || how == "none" { next }
        more || until != "" {
            print >> (folder "/" n ".command")
            if ($0 == until) until = ""
            more = until == "" && more && /\\$/
            next
        }
        block == "sh" { how = "status"; if ($0 != "") begin($0); next }
        /^\$ / { begin(substr($0, 3)); next }
        !open { problem("output before the first command"); next }
        { print >> (folder "/" n ".want") }
        END { if (block) problem("a block without its end"); exit bad }' "$1"
}

# plain HOW: of a text on stdin what is compared. What was measured on a busy machine is not stored, so each command
# measures again, and says so.
plain() {
    local varies='/^spillway: (on |device cuda: |measuring this machine|while this machine was measured)/d'
    if [ "$1" = numbers ]; then
        sed -E "$varies"'; s/[0-9]+([.,:+e-]+[0-9]+)*/#/g; s/ +/ /g'
    else
        sed -E "$varies"
    fi
}

# same: whether the lines of got[] from $1 on are those of want[] from $2 on
same() {
    local i=$1 j=$2 pattern
    while [ "$j" -lt ${#want[@]} ]; do
        if [ "${want[j]}" = ... ]; then
            for (( ; i <= ${#got[@]}; i++)); do
                same "$i" $((j + 1)) && return
            done
            return 1
        fi
        [ "$i" -lt ${#got[@]} ] || return 1
        pattern=${want[j]//\\/\\\\}
        pattern=${pattern//\*/\\*} pattern=${pattern//\?/\\?} pattern=${pattern//\[/\\[}
        # shellcheck disable=SC2053 # a pattern on purpose
        [[ ${got[i]} == ${pattern//.../*} ]] || return 1
        i=$((i + 1)) j=$((j + 1))
    done
    [ "$i" = ${#got[@]} ]
}

# compare PAGE FOLDER N: the command's exit status and output
compare() {
    local line how status file=$2/$3 next=$2/$(($3 + 1)).command
    read -r line how <"$file.how"
    n_run=$((n_run + 1))
    status=$(<"$file.status") || { fail "$1:$line: was not run" && return; }
    if [ "$status" != 0 ] && ! grep -qsx 'echo \$?' "$next"; then
        fail "$1:$line: exit status $status of: $(<"$file.command")"
        cat "$file.got"
        return
    fi
    [ "$how" != status ] || return
    ! grep -qx 'echo \$?' "$file.command" || how=compare
    mapfile -t want < <(plain "$how" <"$file.want")
    mapfile -t got < <(plain "$how" <"$file.got")
    same 0 0 && return
    fail "$1:$line: not what the page shows (- page, + program): $(<"$file.command")"
    diff -U 100 <(printf '%s\n' "${want[@]}") <(printf '%s\n' "${got[@]}") | tail -n +4
}

run_page() {
    local folder=$work/${1//\//_} n
    mkdir -p "$folder/there"
    cp -r "$work/cache" "$folder" # of measured limits
    ln -s "$root/models" "$root/tools" "$root/tests" "$folder/there"
    split "$1" "$folder" >"$folder/skipped" || fail "$1: see above"
    n_skipped=$((n_skipped + $(wc -l <"$folder/skipped")))
    cat "$folder/skipped"
    n=$(find "$folder" -name '*.command' | wc -l)
    # shellcheck disable=SC2016 # for the shell that runs the page
    (cd "$folder/there" && XDG_CACHE_HOME=$folder/cache bash -c '
        status=0
        for ((i = 1; i <= $2; i++)); do
            command=$(<"$1/$i.command")
            (exit $status)
            eval "$command" >"$1/$i.got" 2>&1 </dev/null
            status=$?
            echo $status >"$1/$i.status"
        done' - "$folder" "$n")
    for ((i = 1; i <= n; i++)); do
        compare "$1" "$folder" "$i"
    done
}

# anchors PAGE: of its headings, as GitHub makes them
anchors() {
    sed -nE '/^```/,/^```$/d; s/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

check_links() {
    local target file
    while read -r target; do
        file=$(dirname "$1")/${target%%#*}
        [ -n "${target%%#*}" ] || file=$1
        n_checks=$((n_checks + 1))
        if [ ! -e "$file" ]; then
            fail "$1: a link to $target: there is no such file"
        elif [[ $target == *#* ]] && ! anchors "$file" | grep -qxF -- "${target#*#}"; then
            fail "$1: a link to $target: there is no such heading"
        fi
    done < <(sed '/^```/,/^```$/d' "$1" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(//; s/\)$//' |
        grep -vE '^[a-z]+://')
}

# words PATTERN: the matches in stdin without backticks, sorted
words() {
    grep -oE -e "$1" | tr -d '`' | sort -u
}

# same_names PAGE: the names in the file shown (of the page) are those in the file real
same_names() {
    local name
    n_checks=$((n_checks + $(wc -l <"$work/real")))
    if [ ! -s "$work/real" ] || [ ! -s "$work/shown" ]; then fail "$1: nothing to compare"; fi
    while read -r name; do fail "$1: there is no $name"; done < <(comm -23 "$work/shown" "$work/real")
    while read -r name; do fail "$1: nothing about $name"; done < <(comm -13 "$work/shown" "$work/real")
}

# The options of every command that a page names, also where the test does not run the command.
check_commands() {
    local command rest option
    while read -r _ command rest; do
        for option in $(grep -oE -e '--[a-z-]+' <<<"$rest"); do
            n_checks=$((n_checks + 1))
            grep -qsx -e "$option" "$work/options_$command" || fail "spillway $command $rest: no option $option"
        done
    done < <(grep -ohE 'spillway [a-z-]+ [^`|<>;]*' "${pages[@]}" "${others[@]}")
}

check_names() {
    local commands command
    spillway --help | sed -nE 's/^  ([a-z-]+) .*/\1/p' | sort -u | grep -vx spillway >"$work/real"
    words '^\| `spillway [a-z-]+' <README.md | sed 's/.* //' >"$work/shown"
    mapfile -t commands <"$work/real"
    same_names README.md

    for command in "${commands[@]}"; do
        spillway "$command" --help all | sed -nE 's/^  (--[a-z-]+).*/\1/p' | sort >"$work/options_$command"
    done
    check_commands
    sort -u "$work"/options_* >"$work/real"
    words '`--[a-z-]+' <docs/options.md | grep -vxE -e '--(help|options)' >"$work/shown"
    same_names docs/options.md
    spillway --options | diff docs/options.md - >"$work/diff" ||
        fail "docs/options.md: not what 'spillway --options' writes (< page, > program): $(<"$work/diff")"

    spillway generate models/records --prompt The --max-new-tokens 1 --drafts auto --draft-model models/records \
        --report "$work/report.json" --quiet >/dev/null
    sed -nE 's/^  "([a-z_]+)":.*/\1/p' "$work/report.json" | sort -u >"$work/real"
    sed -n '/^## The report/,$s/^\(| `[^|]*\).*/\1/p' docs/measuring.md | words '`[a-z_]+`' >"$work/shown"
    same_names docs/measuring.md

    # of the text models inside others the page names the whole ones
    sed -nE 's/.*\{?\.(name|also) = "([a-z0-9_-]+)".*/\2/p' model/config/config_families.c model/config/config_gguf_architectures.c |
        grep -v '_vl.*_text$' | sort -u >"$work/real"
    words '`[a-z0-9_-]+`' <docs/models.md | tr -d '`' | sort -u | comm -12 - "$work/real" >"$work/shown"
    same_names docs/models.md

    words '`spw_[a-z_]+' <docs/library.md >"$work/shown"
    cat runtime/*.h model/source/*.h model/text/*.h model/text/tokenizer/*.h | words 'spw_[a-z_]+' | comm -12 - "$work/shown" >"$work/real"
    same_names docs/library.md
}

for page in "${pages[@]}"; do
    run_page "$page"
done
for page in "${pages[@]}" "${others[@]}"; do
    check_links "$page"
done
check_names
echo "$n_run examples run, $n_skipped not run, $n_checks links and names checked, $n_failed failed"
[ "$n_failed" = 0 ] && [ "$n_run" -gt 0 ]
