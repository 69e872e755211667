# The model of examples/kv, for the demo and for the tests that compare tokens. It is optimised in
# every build, because the matrix product is most of the time of those tests, and compiled without
# fused multiply-adds, because tokens must not depend on the machine (examples/kv/exact_math.h).

file(GLOB FABRIC_TRANSFORMER_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/kv/*.cc)
add_library(example_transformer STATIC EXCLUDE_FROM_ALL ${FABRIC_TRANSFORMER_SOURCES})
target_include_directories(example_transformer PUBLIC ${PROJECT_SOURCE_DIR}/examples/kv)
target_link_libraries(
  example_transformer
  PUBLIC fabric-lib::fabric-lib
  PRIVATE fabric_warnings)
target_compile_options(example_transformer PRIVATE -O2 -ffp-contract=off)
