#!/usr/bin/env bash
# test_slurm.sh SPILLWAY: tools/slurm/batch.sbatch on a real Slurm of one node, which this test starts as root: an array
# of four tasks; one of them is requeued while it runs. Every item has one answer, and the answers are those of one
# process that nobody disturbed. 77 where Slurm is not installed or cannot be started.
set -eu -o pipefail

skip() {
    echo "$*: skipped"
    exit 77
}
for program in munged slurmctld slurmd sbatch srun scontrol squeue python3; do
    command -v $program >/dev/null || skip "$program is not installed (Debian: slurm-wlm)"
done
[ "$(id -u)" = 0 ] || skip "Slurm's daemons are started as root, and this is another user"

root=$(pwd) spillway=$(realpath "$1") work=$(mktemp -d) model=$(pwd)/models/records
chmod 755 "$work"
daemons=()
finish() {
    scancel --quiet --user=root 2>/dev/null || true
    [ "${#daemons[@]}" = 0 ] || kill "${daemons[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# ---- Slurm ----

name=$(hostname -s)
port=$((20000 + $$ % 20000))
mkdir -p "$work/state" "$work/spool"
head -c 1024 /dev/urandom >"$work/munge.key"
chmod 600 "$work/munge.key"
cat >"$work/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthInfo=socket=$work/munge.socket,cred_expire=5
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=$name NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
echo "CgroupPlugin=cgroup/v1" >"$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf

munged --foreground --force --num-threads=1 --key-file="$work/munge.key" --socket="$work/munge.socket" \
    --pid-file="$work/munge.pid" --log-file="$work/munge.log" --seed-file="$work/munge.seed" >"$work/munged.out" 2>&1 &
daemons+=($!)
slurmctld -D >"$work/slurmctld.out" 2>&1 &
daemons+=($!)
slurmd -D -N "$name" >"$work/slurmd.out" 2>&1 &
daemons+=($!)
for _ in $(seq 100); do
    state=$(sinfo --noheader --format=%T 2>/dev/null || true)
    [ "$state" != idle ] || break
    sleep 0.2
done
if [ "$state" != idle ]; then
    tail -n 3 "$work"/*.out >&2 || true
    skip "Slurm does not start here (its node is '$state')"
fi

# ---- the job ----

n=96
python3 - $n >"$work/in.jsonl" <<'END'
import json, sys
for i in range(int(sys.argv[1])):
    print(json.dumps({"id": "item %d" % i, "prompt": "The access code of Bergen is %04d.\n\nQ: What is" % (37 * i),
                      "max_new_tokens": 40 + i, "ignore_eos": True}))
END
cd "$work"
common=(--device cpu --threads 1 --sessions 2 --drive-profile "$work/drives.json")
export SPILLWAY=$spillway
id=$(sbatch --parsable --array=0-3 --output="$work/log-%a" "$root/tools/slurm/batch.sbatch" "$model" "$work/in.jsonl" \
    "$work/out" "${common[@]}" --quiet)

# One task is requeued when it has written an answer and has others to write.
for _ in $(seq 300); do
    [ "$(cat out/shard-1.jsonl 2>/dev/null | wc -l)" -lt 1 ] || break
    sleep 0.05
done
before=$(cat out/shard-1.jsonl | wc -l)
scontrol requeue "${id}_1"
echo "task 1 was requeued after $before answers"

for _ in $(seq 300); do
    [ -n "$(squeue --noheader --job="$id" 2>/dev/null)" ] || break
    sleep 0.2
done
"$spillway" batch --status out/shard-*.jsonl || {
    tail -n 5 log-* slurmd.out >&2
    exit 1
}
"$spillway" batch "$model" --input in.jsonl --output whole.jsonl "${common[@]}" --quiet
python3 - $n "$before" <<'END'
import glob, json, sys
n, before = int(sys.argv[1]), int(sys.argv[2])
parts = [[json.loads(line) for line in open(name)] for name in sorted(glob.glob("out/shard-?.jsonl"))]
lines = [line for part in parts for line in part]
whole = {line["id"]: line for line in map(json.loads, open("whole.jsonl"))}
assert len(parts) == 4 and all(parts), "a shard has no items"
assert len(lines) == n == len(whole), (len(lines), len(whole))
assert {line["id"]: line for line in lines} == whole, "an answer differs"
assert 0 < before < len(parts[1]), "task 1 was not interrupted in the middle: %d of %d" % (before, len(parts[1]))
print("%d items in 4 shards, each once, as one process answers them" % n)
END
