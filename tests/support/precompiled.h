// Headers of nearly every test, compiled once.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/provider.h>
#include <fabric/sim.h>

#include "support/printers.h"
