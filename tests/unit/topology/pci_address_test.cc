#include "topology/pci_address.h"

#include <gtest/gtest.h>

namespace fabric::topology::pci_address_test {
namespace {

TEST(PciAddress, IsReadInTheFormsOfSysfsLspciAndNvidiaSmi) {
  for (const char* text : {"0000:1b:00.0", "1b:00.0", "1B:00.0", "00000000:1B:00.0"}) {
    const auto address = parse_pci_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(to_string(*address), "0000:1b:00.0") << text;
  }
  EXPECT_EQ(to_string(*parse_pci_address("10001:ff:1f.7")), "10001:ff:1f.7");
}

TEST(PciAddress, RefusesEverythingElse) {
  for (const char* text : {"",
                           "0",
                           ":",
                           ".",
                           "1b:00",
                           "1b:00.8",
                           "1b:20.0",
                           "1b:0.0",
                           "b:00.0",
                           "0000:1b:00.00",
                           "000:1b:00.0",
                           "000000000:1b:00.0",
                           "0000:1b:00.0 ",
                           " 0000:1b:00.0",
                           "0000:1g:00.0",
                           "0000:1b:-1.0",
                           "0:0000:1b:00.0",
                           "0x00:1b:00.0",
                           "pci0000:1b",
                           "gpu0"}) {
    EXPECT_FALSE(parse_pci_address(text)) << text;
  }
}

TEST(PciAddress, IsOrderedAsCudaOrdersGpus) {
  EXPECT_LT(*parse_pci_address("0000:ff:00.0"), *parse_pci_address("0001:00:00.0"));
  EXPECT_LT(*parse_pci_address("0000:1b:1f.7"), *parse_pci_address("0000:43:00.0"));
  EXPECT_LT(*parse_pci_address("0000:18:00.0"), *parse_pci_address("0000:18:00.1"));
}

}  // namespace
}  // namespace fabric::topology::pci_address_test
