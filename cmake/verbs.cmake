# The verbs network needs the headers of libibverbs to be built, and nothing of it to be linked: the
# library is loaded when a network is opened. What has no header in it is always built and tested.

set(FABRIC_VERBS_SOURCES
    "/verbs/(connect|datapath|device|events|library|memory|network|open|rail|teardown)\\.cc$")
set(FABRIC_HAS_VERBS FALSE)
if(FABRIC_VERBS)
  include(CheckCXXSourceCompiles)
  # The table of addresses came with rdma-core 32.
  check_cxx_source_compiles(
    "#include <infiniband/verbs.h>
     int main() { return sizeof(ibv_gid_entry) == 0; }" FABRIC_VERBS_HEADERS)
  set(FABRIC_HAS_VERBS ${FABRIC_VERBS_HEADERS})
  if(NOT FABRIC_HAS_VERBS AND FABRIC_VERBS STREQUAL "ON")
    message(FATAL_ERROR "FABRIC_VERBS is ON and there is no infiniband/verbs.h of rdma-core 32 or "
                        "later: install libibverbs-dev")
  endif()
endif()
