#pragma once

// Symbols are hidden by default; what a user may call carries FABRIC_EXPORT. The library is for
// Linux, so one attribute serves building it and using it.
#define FABRIC_EXPORT __attribute__((visibility("default")))
