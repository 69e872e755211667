// What nearly every test includes, compiled once.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/provider.h>
#include <fabric/sim.h>
