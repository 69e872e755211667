# The job, as root of the guest: three hosts of two rails each, then the commands one after another.
# Host A has the devices xa0 and xa1 with 10.9.0.1 and 10.9.1.1, host B has xb0 and xb1 with .2, and
# so on. A rail is a switch with a port for every host: sa0 is where a0 is plugged in. Either end of
# a cable can be taken down or made lossy; hosts at other ports of the switch do not see it.
export PATH=/tmp/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LD_LIBRARY_PATH=/tmp/bin \
  TERM=dumb
ulimit -l unlimited
dmesg -n 1  # rxe logs every packet that it cannot send
cp -r /tmp/job/bin /tmp/bin
. /tmp/job/environment
cd /tmp || exit 1

# All hosts share one kernel, which would deliver locally: packets from one host to another must
# leave by the host's port, so that control datagrams are lost with their rail.
port() {
  local port=$1$2 address=10.9.$2.$3
  ip link add $port mtu 4200 type veth peer name s$port mtu 4200
  ip addr add $address/32 dev $port
  echo 1 >/proc/sys/net/ipv4/conf/$port/accept_local
  echo 1 >/proc/sys/net/ipv4/conf/$port/arp_ignore
  echo 2 >/proc/sys/net/ipv4/conf/$port/arp_announce
  ip link set s$port master sw$2 up
  ip link set $port up
  ip rule add pref 10 iif $port lookup local
  rdma link add x$port type rxe netdev $port || return 1
  for other in 1 2 3; do
    [ $other = $3 ] && continue
    local there=10.9.$2.$other table=$((100 + 10 * $2 + $3))
    echo "route replace $there dev $port src $address table $table" >>/tmp/routes
    ip rule add pref 20 iif lo from $address to $there lookup $table
    ip rule add pref 21 iif lo from $address to $there unreachable
  done
}
hosts() {
  ip link set lo up
  for rail in 0 1; do
    ip link add sw$rail mtu 4200 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    ip link set sw$rail arp off up  # or the bridge answers ARP for all addresses of this kernel
    port a $rail 1 && port b $rail 2 && port c $rail 3 || return 1
  done
  ip rule add pref 30 lookup local && ip rule del pref 0
  ip -force -batch /tmp/routes
  # The kernel forgets the routes of a port that goes down.
  ip monitor link | while read -r _; do ip -force -batch /tmp/routes 2>/dev/null; done &
}
hosts || { echo 'guest: no rxe devices'; exit 1; }
echo 'guest: up'

run_suite() {
  result=0
  while read -r seconds command; do
    echo "guest: $command"
    begin=$(date +%s%N)
    timeout --kill-after=5 "$seconds" bash -c "$command" </dev/null
    code=$?
    echo "guest: $code after $((($(date +%s%N) - begin) / 1000000)) ms"
    [ $code -eq 0 ] || [ $result -ne 0 ] || result=$code
  done </tmp/job/commands
  dmesg | grep -v 'soft lockup' | grep -E 'BUG:|WARNING:|Oops|lockup' && result=1
}
starved() { dmesg | grep 'soft lockup'; }
device_fault() { cat /tmp/device-fault 2>/dev/null; }  # guest/conformance/interposer.h
inconclusive() { [ $result -ne 0 ] && { starved || device_fault; }; }
run_suite
# When the machine leaves the guest without a core for 20 seconds, writes time out; when a device
# delivers an immediate twice, writes count twice. Then the suite runs once more if its time limit
# leaves room for that, and if the same happens again it is skipped (77).
if inconclusive && [ "$SECONDS" -ge $((SUITE_SECONDS / 2)) ]; then
  result=77
elif inconclusive; then
  dmesg --clear
  rm -f /tmp/device-fault
  echo 'guest: the machine was too busy, or a device was at fault; running the suite once more'
  run_suite
  inconclusive && result=77
fi
exit $result
