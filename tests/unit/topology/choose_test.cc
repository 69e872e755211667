#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/recorded_sysfs.h"
#include "topology/near.h"

namespace fabric::topology::choose_test {
namespace {

using test::RecordedSysfs;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Names = std::vector<std::string>;

NicChoice choose(const Machine& machine, std::string_view near, const ProcessView& process = {}) {
  Names candidates;
  for (const Nic& nic : machine.nics) candidates.push_back(nic.name);
  return choose_nics(machine, process, near, candidates);
}

/// The NICs taken; of a failure, its problem alone.
Names taken(const NicChoice& choice) {
  if (!choice.problem.empty()) return {choice.problem};
  Names names;
  for (const NicChoice::ChosenNic& nic : choice.taken) names.push_back(nic.name);
  return names;
}

Names taken(const Machine& machine, std::string_view near, const ProcessView& process = {}) {
  return taken(choose(machine, near, process));
}

std::string reason(const NicChoice& choice, std::string_view name) {
  for (const NicChoice::LeftOut& nic : choice.left_out) {
    if (nic.name == name) return nic.reason;
  }
  return fmt::format("{} is not left out", name);
}

/// A recorded machine, with its tree: a PCI address is looked up only when `near` is one.
class RecordedMachine {
 public:
  explicit RecordedMachine(const std::string& name)
      : tree_(RecordedSysfs::open(name)), machine_(read_machine(tree_.root())) {}
  operator const Machine&() const { return machine_; }
  const Machine* operator->() const { return &machine_; }

 private:
  RecordedSysfs tree_;
  Machine machine_;
};

// ---- The machines -------------------------------------------------------------------------------

TEST(Near, EachOfEightGpusGetsTheNicBehindItsSwitch) {
  const RecordedMachine machine("eight_gpus");
  const char* const nics[] = {"mlx5_0", "mlx5_2", "mlx5_3", "mlx5_4",
                              "mlx5_5", "mlx5_7", "mlx5_8", "mlx5_9"};
  for (uint32_t gpu = 0; gpu < 8; ++gpu) {
    const NicChoice choice = choose(machine, fmt::format("gpu{}", gpu));
    EXPECT_THAT(taken(choice), ElementsAre(nics[gpu]));
    EXPECT_EQ(choice.taken[0].distance, Distance::kSwitch);
    EXPECT_EQ(choice.left_out.size(), 9u);
    EXPECT_EQ(taken(machine, fmt::format("gpu:{}", gpu)), taken(choice));
    const std::string address = to_string(machine->gpus[gpu].pci.address);
    EXPECT_EQ(taken(machine, address), taken(choice)) << address;
  }
  const NicChoice first = choose(machine, "gpu0");
  EXPECT_EQ(first.target, "gpu0, PCI 0000:1b:00.0");
  EXPECT_EQ(reason(first, "mlx5_2"),
            "nearest to gpu1, farther from gpu0 than mlx5_0: same NUMA node");
  EXPECT_EQ(reason(first, "mlx5_1"),
            "nearest to no GPU, farther from gpu0 than mlx5_0: same NUMA node");
  EXPECT_EQ(reason(first, "mlx5_6"),
            "nearest to no GPU, farther from gpu0 than mlx5_0: other NUMA node");
  EXPECT_EQ(first.note + first.warning, "");
}

TEST(Near, ANumaNodeTakesItsNicsAndANicItself) {
  const RecordedMachine machine("eight_gpus");
  EXPECT_THAT(taken(machine, "numa:1"),
              ElementsAre("mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"));
  EXPECT_THAT(taken(machine, "0000:aa:00.0"), ElementsAre("mlx5_6"));
  EXPECT_THAT(taken(machine, "16:00.0"), ElementsAre("mlx5_0")) << "a switch";
}

TEST(Near, EachGpuOfP5GetsItsFourEfaDevices) {
  const RecordedMachine machine("p5");
  ASSERT_EQ(machine->nics.size(), 32u);
  ASSERT_EQ(machine->gpus.size(), 8u);
  for (uint32_t gpu = 0; gpu < 8; ++gpu) {
    Names expected;
    for (uint32_t i = 0; i < 4; ++i)
      expected.push_back(fmt::format("rdmap{}s0", 79 + 17 * gpu + i));
    EXPECT_EQ(taken(machine, fmt::format("gpu{}", gpu)), expected);
  }
  EXPECT_EQ(taken(machine, "numa:0").size(), 16u);
}

TEST(Near, GpusOfP5enThatShareASwitchDivideItsNics) {
  const RecordedMachine machine("p5en");
  ASSERT_EQ(machine->nics.size(), 16u);
  ASSERT_EQ(machine->gpus.size(), 8u);
  std::set<std::string> all;
  for (uint32_t gpu = 0; gpu < 8; ++gpu) {
    const uint32_t first = 85 + 25 * (gpu / 2) + 2 * (gpu % 2);
    const NicChoice choice = choose(machine, fmt::format("gpu{}", gpu));
    EXPECT_THAT(taken(choice),
                ElementsAre(fmt::format("rdmap{}s0", first), fmt::format("rdmap{}s0", first + 1)));
    for (const NicChoice::ChosenNic& nic : choice.taken) all.insert(nic.name);
  }
  EXPECT_EQ(all.size(), 16u) << "every NIC is used, by one GPU";
  EXPECT_EQ(reason(choose(machine, "gpu0"), "rdmap87s0"),
            "nearest to gpu1, as close to gpu0 as rdmap85s0, but the share of another GPU below "
            "that switch");
}

TEST(Near, AServerWithoutGpusIsDividedByNumaNode) {
  const RecordedMachine machine("two_sockets");
  EXPECT_THAT(taken(machine, "numa:0"), ElementsAre("mlx5_0"));
  EXPECT_THAT(taken(machine, "numa:1"), ElementsAre("mlx5_1"));
  EXPECT_EQ(reason(choose(machine, "numa:1"), "mlx5_0"),
            "farther from numa:1 than mlx5_1: other NUMA node");
  EXPECT_THAT(taken(machine, "auto", {.cpus = {33, 34}}), ElementsAre("mlx5_1"));
  EXPECT_THAT(taken(machine, "auto", {.cpus = {95}}), ElementsAre("mlx5_0"));
  const NicChoice both = choose(machine, "auto", {.cpus = {0, 127}});
  EXPECT_THAT(taken(both), ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(both.warning, HasSubstr("may run on every NUMA node"));
  EXPECT_THAT(choose(machine, "auto", {.cpus = {512}}).problem, HasSubstr("'auto'"));
}

// ---- Errors -------------------------------------------------------------------------------------

TEST(Near, WhatDoesNotExistIsNamedWithWhatDoes) {
  const RecordedMachine gpus("eight_gpus"), none("two_sockets");
  EXPECT_EQ(choose(gpus, "gpu9").problem, "near: no such GPU 'gpu9'; there are gpu0..gpu7");
  EXPECT_EQ(choose(gpus, "gpu:8").problem, "near: no such GPU 'gpu:8'; there are gpu0..gpu7");
  EXPECT_EQ(choose(none, "gpu0").problem, "near: no such GPU 'gpu0'; there is no GPU");
  EXPECT_EQ(choose(gpus, "numa:2").problem,
            "near: no such NUMA node 'numa:2'; there are numa:0, numa:1");
  EXPECT_EQ(choose(none, "0000:99:00.0").problem,
            "near: no PCI device at '0000:99:00.0'; there are mlx5_0 0000:18:00.0, mlx5_1 "
            "0000:ca:00.0");
  EXPECT_THAT(choose(gpus, "0000:fe:00.0").problem, HasSubstr("GPU 0000:1b:00.0, "));
  EXPECT_EQ(choose(gpus, "gpu-0").problem,
            "near: 'gpu-0' is none of a PCI address, gpuN, numa:N and auto");
  EXPECT_EQ(choose(read_machine("/nothing"), "numa:0").problem,
            "near: there is no RDMA NIC to choose from");
}

TEST(Near, IsParsedStrictly) {
  for (const char* good : {"auto", "gpu0", "gpu:12", "numa:1", "0000:19:00.0", "19:00.0"}) {
    EXPECT_TRUE(parse_near(good)) << good;
  }
  for (const char* bad : {"", "AUTO", "gpu", "gpu:", "gpu-1", "gpu1x", "gpu 1", "gpu99999999999",
                          "numa", "numa1", "numa:", "numa:-1", "mlx5_0", "0000:19:00", "0"}) {
    EXPECT_FALSE(parse_near(bad)) << bad;
  }
}

// ---- CUDA_VISIBLE_DEVICES -----------------------------------------------------------------------

TEST(Near, PlainOrdinalsOfCudaVisibleDevicesRenumberGpus) {
  const RecordedMachine machine("eight_gpus");
  const ProcessView process{.cuda_visible_devices = "6,2"};
  const NicChoice choice = choose(machine, "gpu0", process);
  EXPECT_THAT(taken(choice), ElementsAre("mlx5_8"));
  EXPECT_EQ(choice.target, "gpu0, PCI 0000:d1:00.0");
  EXPECT_EQ(choice.note, "CUDA_VISIBLE_DEVICES=6,2: gpu0 is GPU 6 of the host by PCI address");
  EXPECT_EQ(reason(choice, "mlx5_9"),
            "nearest to GPU 0000:df:00.0, farther from gpu0 than mlx5_8: same NUMA node");
  EXPECT_THAT(taken(machine, "gpu1", process), ElementsAre("mlx5_3"));
  EXPECT_EQ(choose(machine, "gpu2", process).problem,
            "near: no such GPU 'gpu2'; there are gpu0..gpu1 (CUDA_VISIBLE_DEVICES=6,2)");
  // As CUDA does: the first ordinal that does not exist ends the list.
  EXPECT_THAT(taken(machine, "gpu0", {.cuda_visible_devices = "1,8,2"}), ElementsAre("mlx5_2"));
  EXPECT_EQ(choose(machine, "gpu1", {.cuda_visible_devices = "1,-1,2"}).problem,
            "near: no such GPU 'gpu1'; there is gpu0 (CUDA_VISIBLE_DEVICES=1,-1,2)");
  EXPECT_EQ(choose(machine, "gpu0", {.cuda_visible_devices = ""}).problem,
            "near: no such GPU 'gpu0'; there is no GPU (CUDA_VISIBLE_DEVICES=)");
  // An address is an address.
  EXPECT_THAT(taken(machine, "0000:1b:00.0", process), ElementsAre("mlx5_0"));
}

TEST(Near, OtherFormsOfCudaVisibleDevicesAreIgnoredWithAWarning) {
  const RecordedMachine machine("eight_gpus");
  for (const char* visible : {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1", "0,x", "0, 1"}) {
    const NicChoice choice = choose(machine, "gpu0", {.cuda_visible_devices = visible});
    EXPECT_THAT(taken(choice), ElementsAre("mlx5_0")) << visible;
    EXPECT_THAT(choice.warning, HasSubstr(visible));
    EXPECT_THAT(choice.warning, HasSubstr("PCI address"));
  }
  // It says nothing of machines without GPUs of NVIDIA.
  const ProcessView process{.cuda_visible_devices = "MIG-1", .cpus = {0}};
  EXPECT_EQ(choose(RecordedMachine("two_sockets"), "auto", process).warning, "");
}

// ---- Other machines -----------------------------------------------------------------------------

TEST(Near, TheInnerOfTwoSwitchesIsCloser) {
  const RecordedSysfs sysfs(
      "under pci0000:10/0000:10:01.0/0000:11:00.0 numa_node=0\n"
      "pci +/0000:12:00.0/0000:13:00.0/0000:14:00.0/0000:15:00.0 class=0x030200 vendor=0x10de\n"
      "pci +/0000:12:00.0/0000:13:00.0/0000:14:01.0/0000:16:00.0\n"
      "rdma inner +/0000:12:00.0/0000:13:00.0/0000:14:01.0/0000:16:00.0\n"
      "pci +/0000:12:01.0/0000:17:00.0\nrdma outer +/0000:12:01.0/0000:17:00.0\n");
  const NicChoice choice = choose(read_machine(sysfs.root()), "gpu0");
  EXPECT_THAT(taken(choice), ElementsAre("inner"));
  EXPECT_EQ(reason(choice, "outer"),
            "nearest to no GPU, farther from gpu0 than inner: a switch farther up");
}

TEST(Near, MoreGpusThanNicsBehindASwitchShareThem) {
  std::string tree = "under pci0000:10/0000:10:01.0/0000:11:00.0 numa_node=0\n";
  for (int i = 0; i < 4; ++i) {
    tree += fmt::format("pci +/0000:12:0{}.0/0000:2{}:00.0 class=0x030200 vendor=0x10de\n", i, i);
  }
  for (int i = 0; i < 2; ++i) {
    tree += fmt::format("pci +/0000:12:1{0}.0/0000:3{0}:00.0\n", i);
    tree += fmt::format("rdma nic{0} +/0000:12:1{0}.0/0000:3{0}:00.0\n", i);
  }
  const RecordedSysfs sysfs(tree);
  const Machine machine = read_machine(sysfs.root());
  EXPECT_THAT(taken(machine, "gpu0"), ElementsAre("nic0"));
  EXPECT_THAT(taken(machine, "gpu1"), ElementsAre("nic0"));
  EXPECT_THAT(taken(machine, "gpu2"), ElementsAre("nic1"));
  EXPECT_THAT(taken(machine, "gpu3"), ElementsAre("nic1"));
}

// As Azure shows its machines: every device on a host bridge of its own.
TEST(Near, WithoutSwitchesAGpuGetsAllNicsOfItsNumaNode) {
  std::string tree = "node 0 cpulist=0-7\nnode 1 cpulist=8-15\n";
  for (int i = 0; i < 4; ++i) {
    tree += fmt::format("under pci000{0}:00 numa_node={1}\n", i, i / 2);
    tree += fmt::format("pci +/000{}:00:00.0 class=0x030200 vendor=0x10de\n", i);
    tree += fmt::format("under pci010{0}:00 numa_node={1}\n", i, i / 2);
    tree += fmt::format("pci +/010{0}:00:00.0\nrdma mlx5_{0} +/010{0}:00:00.0\n", i);
  }
  const RecordedSysfs sysfs(tree);
  const Machine machine = read_machine(sysfs.root());
  EXPECT_THAT(taken(machine, "gpu1"), ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(taken(machine, "gpu2"), ElementsAre("mlx5_2", "mlx5_3"));
}

TEST(Near, TheFirmwaresTableDecidesBetweenOtherNodes) {
  RecordedSysfs sysfs(
      "node 0 cpulist=0-3 distance=10~12~32\nnode 1 cpulist=4-7 distance=12~10~32\n"
      "node 2 cpulist=8-11 distance=32~32~10\n"
      "under pci0000:20 numa_node=1\npci +/0000:20:01.0/0000:21:00.0\n"
      "rdma near +/0000:20:01.0/0000:21:00.0\n"
      "under pci0000:30 numa_node=2\npci +/0000:30:01.0/0000:31:00.0\n"
      "rdma far +/0000:30:01.0/0000:31:00.0\n");
  const NicChoice choice = choose(read_machine(sysfs.root()), "numa:0");
  EXPECT_THAT(taken(choice), ElementsAre("near"));
  EXPECT_EQ(reason(choice, "far"), "farther from numa:0 than near: farther NUMA node");
  sysfs.add("file devices/system/node/node0/distance garbage");
  EXPECT_THAT(taken(read_machine(sysfs.root()), "numa:0"), ElementsAre("near", "far"));
}

TEST(Near, ANicWithoutAnActivePortIsTakenOnlyIfNoneHasOne) {
  RecordedSysfs sysfs = RecordedSysfs::open("eight_gpus");
  sysfs.add("file class/infiniband/mlx5_0/ports/1/state 1:~DOWN");
  const NicChoice choice = choose(read_machine(sysfs.root()), "gpu0");
  EXPECT_THAT(taken(choice), ElementsAre("mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"));
  EXPECT_EQ(reason(choice, "mlx5_0"), "no active port");
  for (int i = 1; i < 10; ++i) {
    sysfs.add(fmt::format("file class/infiniband/mlx5_{}/ports/1/state 1:~DOWN", i));
  }
  EXPECT_THAT(taken(read_machine(sysfs.root()), "gpu0"), ElementsAre("mlx5_0"));
}

TEST(Near, NicsWithoutAPlaceComeLast) {
  RecordedSysfs sysfs = RecordedSysfs::open("two_sockets");
  sysfs.add("link class/infiniband/rxe0 nothing");
  EXPECT_EQ(reason(choose(read_machine(sysfs.root()), "numa:0"), "rxe0"),
            "farther from numa:0 than mlx5_0: no PCI device in sysfs");
  // Of several NICs whose distance is unknown, none is closer.
  const Machine none = read_machine(RecordedSysfs("").root());
  const Names unknown{"rxe0", "rxe1"};
  EXPECT_EQ(taken(choose_nics(none, {}, "numa:0", unknown)), unknown);
}

TEST(Near, ChoosesOnlyAmongTheCandidates) {
  const RecordedMachine machine("eight_gpus");
  const Names named{"mlx5_4", "mlx5_3", "mlx5_9"};
  const NicChoice choice = choose_nics(machine, {}, "gpu0", named);
  EXPECT_THAT(taken(choice), ElementsAre("mlx5_3", "mlx5_4"));
  ASSERT_EQ(choice.left_out.size(), 1u);
  EXPECT_EQ(choice.left_out[0].name, "mlx5_9");
}

TEST(Near, TheViewOfThisProcessHasItsCpusAndVariable) {
  ASSERT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);
  const ProcessView view = this_process();
  ASSERT_EQ(::unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  EXPECT_EQ(view.cuda_visible_devices, "3");
  EXPECT_THAT(view.cpus, testing::Not(IsEmpty()));
  EXPECT_FALSE(this_process().cuda_visible_devices);
}

}  // namespace
}  // namespace fabric::topology::choose_test
