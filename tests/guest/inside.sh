# The job, as root of the guest: two hosts of two rails each, then the commands one after another.
# Host A has the devices xa0 and xa1 with 10.9.0.1 and 10.9.1.1, host B has xb0 and xb1 with .2.
# A rail is a veth pair, so that either end can be taken down or made lossy.
export PATH=/tmp/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LD_LIBRARY_PATH=/tmp/bin \
  TERM=dumb
ulimit -l unlimited
dmesg -n 1  # rxe tells the console of every packet that it cannot send
cp -r /tmp/job/bin /tmp/bin
. /tmp/job/environment
cd /tmp || exit 1

# Both hosts have one kernel, which would rather deliver to itself: what goes from one end of a rail
# to the other must leave by its port, so that the control datagrams share the fate of their rail.
rail() {
  local here=10.9.$1.1 there=10.9.$1.2
  ip link add a$1 mtu 4200 type veth peer name b$1 mtu 4200
  ip addr add $here/32 dev a$1
  ip addr add $there/32 dev b$1
  for port in a$1 b$1; do
    echo 1 >/proc/sys/net/ipv4/conf/$port/accept_local
    echo 1 >/proc/sys/net/ipv4/conf/$port/arp_ignore
    echo 2 >/proc/sys/net/ipv4/conf/$port/arp_announce
    ip link set $port up
    ip rule add pref 10 iif $port lookup local
    rdma link add x$port type rxe netdev $port || return 1
  done
  echo "route replace $there dev a$1 src $here" >>/tmp/routes
  echo "route replace $here dev b$1 src $there" >>/tmp/routes
  for way in "from $here to $there" "from $there to $here"; do
    ip rule add pref 20 iif lo $way lookup main
    ip rule add pref 21 iif lo $way unreachable
  done
}
hosts() {
  ip link set lo up
  rail 0 && rail 1 && ip rule add pref 30 lookup local && ip rule del pref 0
  ip -force -batch /tmp/routes
  # The kernel forgets the routes of a port that goes down.
  ip monitor link | while read -r _; do ip -force -batch /tmp/routes 2>/dev/null; done &
}
hosts || { echo 'guest: no rxe devices'; exit 1; }
echo 'guest: up'

play() {
  verdict=0
  while read -r seconds command; do
    echo "guest: $command"
    begin=$(date +%s%N)
    timeout --kill-after=5 "$seconds" bash -c "$command" </dev/null
    code=$?
    echo "guest: $code after $((($(date +%s%N) - begin) / 1000000)) ms"
    [ $code -eq 0 ] || [ $verdict -ne 0 ] || verdict=$code
  done </tmp/job/commands
  dmesg | grep -v 'soft lockup' | grep -E 'BUG:|WARNING:|Oops|lockup' && verdict=1
}
starved() { [ $verdict -ne 0 ] && dmesg | grep 'soft lockup'; }
play
# A host that leaves the guest without one of its cores for 20 seconds makes writes time out. Then
# it counts how it goes once more; if that happens again, it is as if there were no guest here.
if starved; then
  dmesg --clear
  echo 'guest: the host was too busy to run this, so once more'
  play
  starved && verdict=77
fi
exit $verdict
