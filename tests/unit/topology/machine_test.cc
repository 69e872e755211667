#include "topology/machine.h"

#include <sys/stat.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/recorded_sysfs.h"
#include "topology/distance.h"

namespace fabric::topology::machine_test {
namespace {

using test::RecordedSysfs;
using testing::ElementsAre;

std::vector<std::string> names(const std::vector<Nic>& nics) {
  std::vector<std::string> out;
  for (const Nic& nic : nics) out.push_back(nic.name);
  return out;
}

std::vector<std::string> gpu_addresses(const Machine& machine) {
  std::vector<std::string> out;
  for (const Gpu& gpu : machine.gpus) out.push_back(to_string(gpu.pci.address));
  return out;
}

TEST(Machine, ReadsNicsGpusAndNodesOfAnEightGpuHost) {
  const RecordedSysfs sysfs = RecordedSysfs::open("eight_gpus");
  const Machine machine = read_machine(sysfs.root());
  EXPECT_THAT(names(machine.nics), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4",
                                               "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"));
  EXPECT_THAT(names(machine.interfaces), ElementsAre("enp41s0np0", "enp170s0np0"));
  // The video controller of the management processor is none of them.
  EXPECT_THAT(gpu_addresses(machine),
              ElementsAre("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0",
                          "0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0"));
  const Nic& nic = machine.nics[0];
  ASSERT_TRUE(nic.pci);
  EXPECT_THAT(nic.pci->path, ElementsAre("pci0000:15", "0000:15:01.0", "0000:16:00.0",
                                         "0000:17:00.0", "0000:18:00.0"));
  EXPECT_EQ(nic.pci->numa, 0u);
  EXPECT_EQ(nic.state, "ACTIVE");
  EXPECT_EQ(nic.gbit, 400);
  EXPECT_TRUE(nic.rdma && nic.active);
  EXPECT_EQ(machine.interfaces[0].gbit, 200);
  EXPECT_EQ(machine.interfaces[0].state, "up");
  ASSERT_EQ(machine.numa_nodes.size(), 2u);
  EXPECT_THAT(machine.numa_nodes[1].cpus, ElementsAre(std::pair(56u, 111u), std::pair(168u, 223u)));
  EXPECT_THAT(machine.numa_nodes[1].distances, ElementsAre(21u, 10u));
}

TEST(Machine, NumbersGpusOfNvidiaBeforeThoseOfAmd) {
  // An AMD processor with graphics of its own, in a host with NVIDIA GPUs; and the class of the MI
  // series, which is not a display controller.
  const RecordedSysfs sysfs(
      "pci pci0000:00/0000:00:01.1/0000:01:00.0 class=0x030000 vendor=0x1002\n"
      "pci pci0000:40/0000:40:01.1/0000:42:00.0 class=0x120000 vendor=0x1002\n"
      "pci pci0000:60/0000:60:01.1/0000:62:00.0 class=0x030200 vendor=0x10de\n"
      "pci pci0000:60/0000:60:01.1/0000:62:00.1 class=0x040300 vendor=0x10de\n"
      "pci pci0000:20/0000:20:01.1/0000:23:00.0 class=0x030000 vendor=0x10de\n"
      "pci pci0000:20/0000:20:02.1/0000:24:00.0 class=0x120000 vendor=0x10de\n"
      "pci pci0000:80/0000:80:02.1/0000:81:00.0 class=0x068000 vendor=0x10de\n");
  EXPECT_THAT(gpu_addresses(read_machine(sysfs.root())),
              ElementsAre("0000:23:00.0", "0000:62:00.0", "0000:01:00.0", "0000:42:00.0"));
}

TEST(Machine, NestedHostBridgesAndSubfunctionsBelongToTheirPciDevice) {
  const RecordedSysfs sysfs(
      "pci pci0000:c0/0000:c0:05.5/pci10000:00/10000:00:02.0/10000:01:00.0 class=0x020000\n"
      "rdma mlx5_7 pci0000:c0/0000:c0:05.5/pci10000:00/10000:00:02.0/10000:01:00.0\n"
      "pci pci0000:15/0000:15:01.0/0000:18:00.0 class=0x020000\n"
      "rdma mlx5_2 pci0000:15/0000:15:01.0/0000:18:00.0/mlx5_core.sf.2\n");
  const Machine machine = read_machine(sysfs.root());
  ASSERT_THAT(names(machine.nics), ElementsAre("mlx5_2", "mlx5_7"));
  EXPECT_EQ(to_string(machine.nics[0].pci->address), "0000:18:00.0");
  EXPECT_EQ(to_string(machine.nics[1].pci->address), "10000:01:00.0");
  EXPECT_EQ(machine.nics[1].pci->path.size(), 5u);
}

TEST(Machine, ANumaNodeThatIsMissingOrNegativeIsUnknown) {
  const std::string pci = "pci0000:15/0000:15:01.0/0000:18:00.0";
  RecordedSysfs sysfs("pci " + pci + "\nrdma mlx5_0 " + pci + "\n");
  EXPECT_FALSE(read_machine(sysfs.root()).nics[0].pci->numa);
  for (const char* text : {"-1", "", "zero", "99999999999999999999"}) {
    sysfs.add("file devices/" + pci + "/numa_node " + text);
    const Machine machine = read_machine(sysfs.root());
    EXPECT_FALSE(machine.nics[0].pci->numa) << text;
    // There is one node or none: it is that one.
    EXPECT_EQ(numa_of(machine, *machine.nics[0].pci), 0u);
  }
  sysfs.add("node 3 cpulist=0-7");
  const Machine one = read_machine(sysfs.root());
  EXPECT_EQ(numa_of(one, *one.nics[0].pci), 3u);
  sysfs.add("node 4 cpulist=8-15");
  const Machine two = read_machine(sysfs.root());
  EXPECT_FALSE(numa_of(two, *two.nics[0].pci));
  sysfs.add("file devices/" + pci + "/numa_node 4");
  EXPECT_EQ(read_machine(sysfs.root()).nics[0].pci->numa, 4u);
}

TEST(Machine, BrokenLinksAreNicsWithoutAPlace) {
  RecordedSysfs sysfs = RecordedSysfs::open("two_sockets");
  sysfs.add("link class/infiniband/dangling ../../devices/pci0000:ff/nothing/infiniband/dangling");
  sysfs.add("link class/infiniband/cyclic cyclic");
  sysfs.add("link class/infiniband/ring_a ring_b");
  sysfs.add("link class/infiniband/ring_b ring_a");
  sysfs.add("link class/infiniband/outside /");
  sysfs.add("link class/infiniband/virtual ../../devices/system/node");
  sysfs.add("file class/infiniband/plain garbage");
  sysfs.add("link class/net/cyclic cyclic");
  sysfs.add("link bus/pci/devices/0000:99:00.0 0000:99:00.0");
  sysfs.add("link bus/pci/devices/garbage ../../../devices");
  const Machine machine = read_machine(sysfs.root());
  EXPECT_THAT(names(machine.nics), ElementsAre("mlx5_0", "mlx5_1", "cyclic", "dangling", "outside",
                                               "plain", "ring_a", "ring_b", "virtual"));
  for (size_t i = 2; i < machine.nics.size(); ++i) EXPECT_FALSE(machine.nics[i].pci) << i;
  EXPECT_THAT(names(machine.interfaces), ElementsAre("eno1"));
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_FALSE(find_pci(machine, *parse_pci_address("0000:99:00.0")));
  EXPECT_TRUE(find_pci(machine, *parse_pci_address("0000:18:00.0")));
}

TEST(Machine, GarbageInFilesIsLeftOut) {
  RecordedSysfs sysfs = RecordedSysfs::open("two_sockets");
  const std::string nic = "devices/pci0000:17/0000:17:02.0/0000:18:00.0";
  sysfs.add("file " + nic + "/infiniband/mlx5_0/ports/1/rate fast");
  sysfs.add("file devices/system/node/node0/cpulist 0-31,x");
  sysfs.add("file devices/system/node/node1/cpulist 63-32");
  sysfs.add("file devices/system/node/node0/distance 10");
  sysfs.add("file devices/system/node/nodeX/cpulist 0-31");
  sysfs.add("file devices/pci0000:00/0000:00:1d.0/0000:04:00.0/vendor 0x10de_not");
  // What should be a file is a folder, or would block its reader.
  const std::string root = sysfs.root() + "/";
  std::filesystem::remove(root + nic + "/class");
  std::filesystem::create_directories(root + nic + "/class");
  std::filesystem::remove(root + nic + "/vendor");
  ASSERT_EQ(::mkfifo((root + nic + "/vendor").c_str(), 0600), 0);
  const Machine machine = read_machine(sysfs.root());
  EXPECT_FALSE(machine.nics[0].gbit);
  ASSERT_EQ(machine.numa_nodes.size(), 2u);
  EXPECT_TRUE(machine.numa_nodes[0].cpus.empty());
  EXPECT_TRUE(machine.numa_nodes[1].cpus.empty());
  EXPECT_TRUE(machine.numa_nodes[0].distances.empty());
  EXPECT_TRUE(machine.gpus.empty());
}

TEST(Machine, AnEmptyOrMissingTreeIsAMachineWithoutDevices) {
  const RecordedSysfs empty("");
  for (const std::string& root : {empty.root(), empty.root() + "/nothing", std::string()}) {
    const Machine machine = read_machine(root);
    EXPECT_TRUE(machine.nics.empty() && machine.gpus.empty() && machine.interfaces.empty());
    EXPECT_FALSE(find_pci(machine, {}));
  }
}

TEST(Machine, ANicIsActiveIfOneOfItsPortsIs) {
  const std::string pci = "pci0000:15/0000:15:01.0/0000:18:00.0";
  RecordedSysfs sysfs("pci " + pci + "\nrdma mlx5_0 " + pci + "\n");
  const std::string ports = "file class/infiniband/mlx5_0/ports/";
  sysfs.add(ports + "1/state 1:~DOWN");
  EXPECT_FALSE(read_machine(sysfs.root()).nics[0].active);
  EXPECT_EQ(read_machine(sysfs.root()).nics[0].state, "DOWN");
  sysfs.add(ports + "2/state 4:~ACTIVE");
  EXPECT_TRUE(read_machine(sysfs.root()).nics[0].active);
  std::filesystem::remove_all(sysfs.root() + "/class/infiniband/mlx5_0/ports");
  EXPECT_TRUE(read_machine(sysfs.root()).nics[0].active) << "unknown is not inactive";
}

/// `distance(a, b)` of two PCI devices of a tree.
Distance distance(const Machine& machine, const char* one, const char* other) {
  const auto from = find_pci(machine, *parse_pci_address(one));
  const auto to = find_pci(machine, *parse_pci_address(other));
  EXPECT_TRUE(from && to) << one << " " << other;
  return from && to ? closeness(machine, *from, *to).distance : Distance::kUnknown;
}

TEST(Closeness, IsTheLongestCommonPathThenTheNumaNode) {
  const RecordedSysfs sysfs(
      "node 0 cpulist=0-7 distance=10~21\nnode 1 cpulist=8-15 distance=21~10\n"
      "under pci0000:10/0000:10:01.0 numa_node=0\n"
      "pci +/0000:11:00.0/0000:12:00.0/0000:13:00.0\n"
      "pci +/0000:11:00.0/0000:12:01.0/0000:14:00.0\n"
      "under pci0000:10/0000:10:02.0 numa_node=0\n"
      "pci +/0000:21:00.0\npci +/0000:21:00.1\n"
      "under pci0000:30/0000:30:01.0 numa_node=0\npci +/0000:31:00.0\n"
      "under pci0000:40/0000:40:01.0 numa_node=1\npci +/0000:41:00.0\n"
      "under pci0000:50/0000:50:01.0 numa_node=-1\npci +/0000:51:00.0\n"
      "under pci0000:10/0000:10:03.0 numa_node=1\npci +/0000:61:00.0\n");
  const Machine machine = read_machine(sysfs.root());
  EXPECT_EQ(distance(machine, "13:00.0", "13:00.0"), Distance::kSelf);
  EXPECT_EQ(distance(machine, "13:00.0", "14:00.0"), Distance::kSwitch);
  EXPECT_EQ(distance(machine, "11:00.0", "14:00.0"), Distance::kSwitch) << "below that bridge";
  EXPECT_EQ(distance(machine, "21:00.0", "21:00.1"), Distance::kRootPort);
  EXPECT_EQ(distance(machine, "13:00.0", "21:00.0"), Distance::kHostBridge);
  EXPECT_EQ(distance(machine, "13:00.0", "31:00.0"), Distance::kNuma);
  EXPECT_EQ(distance(machine, "13:00.0", "41:00.0"), Distance::kOtherNuma);
  EXPECT_EQ(distance(machine, "13:00.0", "51:00.0"), Distance::kUnknown);
  EXPECT_EQ(distance(machine, "51:00.0", "13:00.0"), Distance::kUnknown);
  EXPECT_EQ(distance(machine, "13:00.0", "61:00.0"), Distance::kOtherNuma)
      << "one host bridge for several nodes";
}

}  // namespace
}  // namespace fabric::topology::machine_test
