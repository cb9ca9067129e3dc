#!/usr/bin/env bash
# Three network namespaces as three hosts: the label party, `left` and `right` train together, each on its own address,
# with its own folder, over TLS. As root, with flower-vfl on the PATH:   docs/deployment/three-hosts.sh [FOLDER]
# Needs iproute2 and nginx. Everything it makes is gone afterwards, but for FOLDER.
set -euo pipefail
pages=$(cd "$(dirname "$0")" && pwd)
work=$(realpath -m "${1:-$(mktemp -d)}")
net=10.213.77 tag=vfl$$
declare -A address=([label]=$net.1 [left]=$net.2 [right]=$net.3)

clean() {
    for host in label left right; do ip netns pids "$tag-$host" 2>/dev/null | xargs -r kill 2>/dev/null || true; done
    wait
    for host in label left right switch; do ip netns del "$tag-$host" 2>/dev/null || true; done
}
trap clean EXIT

on() { # on HOST COMMAND...: with the environment of that host
    local host=$1; shift
    ip netns exec "$tag-$host" env FLWR_HOME="$work/$host/flwr" FLOWER_VFL_STATE="$work/$host/state" \
        FLOWER_VFL_DATA="$work/label/data" "$@"
}

# --- the network: a switch and three hosts, with no way to anywhere else
ip netns add "$tag-switch"
ip netns exec "$tag-switch" ip link add switch type bridge
ip netns exec "$tag-switch" ip link set switch up
for host in label left right; do
    ip netns add "$tag-$host"
    ip netns exec "$tag-$host" ip link set lo up
    ip link add "$host" netns "$tag-switch" type veth peer name eth0 netns "$tag-$host"
    ip netns exec "$tag-switch" ip link set "$host" master switch up
    ip netns exec "$tag-$host" ip address add "${address[$host]}/24" dev eth0
    ip netns exec "$tag-$host" ip link set eth0 up
done

# --- each host's folder: its own data, its own keys
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.3
mkdir -p "$work"
cd "$work"
flower-vfl data prepare digits --out whole
flower-vfl keys --host "${address[label]}" --parties left,right --out keys
mv keys/superlink keys/label
for host in label left right; do
    mkdir -p "$host/flwr"
    flower-vfl data part whole --party "$host" --out "$host/data"
    mv "keys/$host" "$host/keys"
done

# --- the label party: SuperLink on its loopback, the proxy in front of it
cat > label/flwr/config.toml <<END
[superlink]
default = "three"

[superlink.three]
address = "127.0.0.1:9091"
root-certificates = "$work/label/keys/ca.crt"
END
sed -e "s|192.0.2.10|${address[label]}|; s|/etc/flower-vfl|$work/label/keys|; s|/run/flower-vfl|$work/label|" \
    "$pages/nginx.conf" > label/nginx.conf
on label flower-superlink --host 127.0.0.1 --port 9091 --enable-supernode-auth --ssl-ca-certfile label/keys/ca.crt \
    --ssl-certfile label/keys/server.crt --ssl-keyfile label/keys/server.key > label/superlink.log 2>&1 &
on label nginx -e stderr -c "$work/label/nginx.conf" -g "daemon off;" > label/nginx.log 2>&1 &
until on label bash -c ": < /dev/tcp/127.0.0.1/9091" 2> /dev/null; do sleep 0.5; done
for party in left right; do
    on label flwr supernode register "label/keys/$party.pub" three --name "$party"
done

# --- the feature parties
for party in left right; do
    on "$party" env -u FLOWER_VFL_DATA flower-vfl doctor --party "$party" --data "$party/data" --key "$party/keys/$party.key" \
        --superlink "${address[label]}:9092" --root-certificates "$party/keys/ca.crt" --dial "${address[label]}:9093"
    on "$party" env -u FLOWER_VFL_DATA flower-supernode --superlink "${address[label]}:9092" --port 9094 \
        --root-certificates "$party/keys/ca.crt" --auth-supernode-private-key "$party/keys/$party.key" \
        --node-config "party='$party' data-path='$work/$party/data' train-epochs=1000 out='$work/$party/weights'" \
        > "$party/supernode.log" 2>&1 &
done

# --- the run
cat > run.toml <<END
[data]
name = "digits"

[training]
epochs = 2
batch_size = 128

[attack]
names = []
informed = 0  # no readers that are fitted to labels: they take longer than the rest of this run

[transport]
kind = "stream"
host = "${address[label]}"
port = 9093
END
flower-vfl app run.toml --out app --results "$work/label/run"
(cd app && on label flwr run . three --stream)
grep -q '"status": "finished"' label/run/result.json || { tail -n 20 ./*/*.log; exit 1; }
echo "three hosts have trained together: $work/label/run/report.html"
