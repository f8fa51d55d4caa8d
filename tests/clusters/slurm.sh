#!/usr/bin/env bash
# A Slurm cluster of two nodes on this machine, for tests: slurm.sh up FOLDER, slurm.sh down FOLDER.
# Needs root, and Debian's packages slurm-wlm and munge. Commands find the cluster by
# SLURM_CONF=FOLDER/slurm.conf. Everything listens on this machine alone. Each node mounts file
# systems for itself, where the machine allows so: nsenter -m -t $(cat FOLDER/run/slurmd-NODE.pid).
set -euo pipefail
state="$(realpath -m "${2:?a folder for the state of the cluster}")"
export SLURM_CONF="$state/slurm.conf"
PATH="$PATH:/usr/sbin:/sbin"

stop() { # signal
    for name in slurmctld slurmd-n1 slurmd-n2 munged; do
        pid="$(cat "$state/run/$name.pid" 2> /dev/null || true)"
        [ -z "$pid" ] || kill "$1" "$pid" 2> /dev/null || true
    done
}

node() { # name
    own=()
    ! unshare --mount true 2> /dev/null || own=(unshare --mount)
    "${own[@]}" slurmd -N "$1" -f "$SLURM_CONF"
}

case "$1" in
up)
    mkdir -p "$state"/{state,spool,run,log}
    chmod 755 "$state"
    chmod 700 "$state/log"
    dd if=/dev/urandom of="$state/munge.key" bs=1024 count=1 status=none
    chmod 400 "$state/munge.key"
    read -r controller first second < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for each in sockets: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))')
    cat > "$SLURM_CONF" << CONF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$controller
SlurmdPort=$first
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket
CredType=cred/munge
StateSaveLocation=$state/state
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=5
MinJobAge=300
JobRequeue=1
BatchStartTimeout=10
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$first CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$second CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
    munged --force --key-file="$state/munge.key" --socket="$state/run/munge.socket" \
        --pid-file="$state/run/munged.pid" --log-file="$state/log/munged.log" \
        --seed-file="$state/run/munge.seed"
    slurmctld -f "$SLURM_CONF"
    node n1
    node n2
    for _ in $(seq 100); do
        [ "$(sinfo -h -t idle -o %D 2> /dev/null)" != 2 ] || exit 0
        sleep 0.2
    done
    sinfo
    echo "the nodes are not idle"
    exit 1
    ;;
node-up) # slurm.sh node-up FOLDER NODE
    node "$3"
    ;;
down)
    stop -TERM
    sleep 1
    stop -KILL
    ;;
esac
